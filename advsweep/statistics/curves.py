"""Lines of least squares, and curves: interpolation, and the detection of a collapse."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy as sp
from numpy.typing import ArrayLike

from advsweep.errors import AdvsweepError, FitError, counted
from advsweep.statistics.association import correlation_interval
from advsweep.statistics.intervals import LEVEL, ROUNDING, Estimate, as_pairs

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class Regression:
    """The line of least squares y = intercept + slope · x, or parallel lines of groups of points.

    Attributes:
        slope, intercept: with t intervals; of several groups there is no intercept, NaN.
        r_squared: the share of y's variance within groups that the line explains. Its interval is
            Fisher's, of the correlation r within them: tanh(artanh r ± z/√(n-3)), squared; it
            starts at 0 if that contains 0. NaN for n = 3, and entirely NaN if all y are equal.
        p_value: two-sided p of the hypothesis that the slope is 0.
        n: number of points.
    """

    slope: Estimate
    intercept: Estimate
    r_squared: Estimate
    p_value: float
    n: int
    groups: int
    _x_mean: float
    _x_spread: float  # Σ (x - x̄)²
    _half_width: float  # t · s

    def band(
        self, x: ArrayLike
    ) -> tuple[Float[np.ndarray, "*x"], Float[np.ndarray, "*x"], Float[np.ndarray, "*x"]]:
        """Return the line at x, and the ends of the interval of the mean of y there."""
        xs = np.asarray(x, dtype=np.float64)
        line = self.intercept.value + self.slope.value * xs
        half = self._half_width * np.sqrt(1 / self.n + (xs - self._x_mean) ** 2 / self._x_spread)
        return line, line - half, line + half


def regress(x: ArrayLike, y: ArrayLike, groups: Sequence[Hashable] | None = None) -> Regression:
    """Fit a line by least squares, such as final accuracy against the early collapse rate.

    With groups it fits parallel lines, one for each: differences between groups then explain
    nothing. Intervals and p assume independent points. Runs of one configuration with different
    seeds are similar, so with few configurations and many seeds the intervals are too narrow.

    Args:
        x, y: [points]. Points with a value that is not finite are left out.
        groups: the group of each point.

    Raises:
        FitError: fewer than two points more than groups, or the same x within every group.
        AdvsweepError: not lists of the same length.
    """
    all_x, all_y = as_pairs(x, y)
    if groups is not None and len(groups) != all_x.size:
        raise AdvsweepError(f"expected a group for each of {all_x.size} points, got {len(groups)}")
    whole = np.isfinite(all_x) & np.isfinite(all_y)
    xs = all_x[whole]
    ys = all_y[whole]
    n = xs.size
    numbers, count = _number_groups(groups, whole)
    of = "" if groups is None else f" of {counted(count, 'group')}"
    # Each group's intercept takes one degree of freedom, and so does the slope.
    freedom = n - count - 1
    if freedom < 1:
        raise FitError(
            f"{counted(n, 'point')}{of}: a line with an interval needs at least {count + 2}"
        )
    x_mean = float(xs.mean())
    y_mean = float(ys.mean())
    if groups is None:
        dx = xs - x_mean
        dy = ys - y_mean
    else:
        dx = _centred(xs, numbers)
        dy = _centred(ys, numbers)
    if np.abs(dx).max() <= ROUNDING * np.abs(xs).max():
        raise FitError(
            f"all {n} points{of} have the same x ({xs[0]:.4g}), so that no line is theirs"
        )
    x_spread = float(dx @ dx)
    y_spread = float(dy @ dy)
    largest = float(np.abs(ys).max())
    flat = float(np.ptp(dy)) <= ROUNDING * largest
    # Equal y differ in their last bits after centring, which are no slope.
    slope = 0.0 if flat else float(dx @ dy) / x_spread
    residuals = dy - slope * dx
    # The residuals of points exactly on a line are rounding errors, not a spread.
    exact = float(np.abs(residuals).max()) <= ROUNDING * largest
    s = 0.0 if exact else math.sqrt(float(residuals @ residuals) / freedom)
    half_width = float(sp.special.stdtrit(freedom, (1 + LEVEL) / 2)) * s
    p_value = float(slope == 0)
    if s:
        p_value = float(2 * sp.special.stdtr(freedom, -abs(slope) * math.sqrt(x_spread) / s))
    correlation = math.nan if flat else slope * math.sqrt(x_spread / y_spread)
    if abs(correlation) > 1 or (exact and not flat):
        correlation = math.copysign(1.0, slope)
    intercept = y_mean - slope * x_mean if groups is None else math.nan
    of_slope = half_width / math.sqrt(x_spread)
    of_intercept = half_width * math.sqrt(1 / n + x_mean**2 / x_spread)
    return Regression(
        slope=Estimate(slope, slope - of_slope, slope + of_slope),
        intercept=Estimate(intercept, intercept - of_intercept, intercept + of_intercept),
        r_squared=_r_squared(correlation, freedom + 2),
        p_value=p_value,
        n=n,
        groups=count,
        _x_mean=x_mean,
        _x_spread=x_spread,
        _half_width=half_width,
    )


def _number_groups(
    groups: Sequence[Hashable] | None, whole: Bool[np.ndarray, " points"]
) -> tuple[Int[np.ndarray, " whole"], int]:
    """Return the number of each whole point's group, from 0, and how many groups there are.

    Args:
        whole: whether a point has two finite values.
    """
    if groups is None:
        return np.zeros(int(whole.sum()), dtype=np.int64), 1
    numbers: dict[Hashable, int] = {}
    of_points = []
    for group, is_whole in zip(groups, whole, strict=True):
        if is_whole:
            of_points.append(numbers.setdefault(group, len(numbers)))
    return np.array(of_points, dtype=np.int64), len(numbers)


def _centred(
    values: Float[np.ndarray, " points"], numbers: Int[np.ndarray, " points"]
) -> Float[np.ndarray, " points"]:
    """Return the differences to the mean of each point's group."""
    means = np.bincount(numbers, values) / np.bincount(numbers)
    return np.asarray(values - means[numbers])


def _r_squared(correlation: float, n: int) -> Estimate:
    """Return R² and its interval by Fisher's z."""
    ends = correlation_interval(correlation, n)
    low, high = sorted(end**2 for end in ends)
    return Estimate(correlation**2, 0.0 if ends[0] <= 0 <= ends[1] else low, high)


def value_at(x: ArrayLike, y: ArrayLike, at: ArrayLike) -> Float[np.ndarray, "*places"]:
    """Return the value of y where a curve's x first reaches `at`, by linear interpolation.

    The points are in the order of training. A spent budget only grows, but pass@1 may fall, so a
    curve may pass the same value several times. The first time counts: it lies between the first
    point at or above `at` and the point before. If x never falls this is ordinary interpolation;
    the first of several points with the same x counts.

    Args:
        x: [points], the quantity in which curves are compared.
        y: [points]. Points with NaN for x or y are left out.
        at: places, of any shape.

    Returns:
        NaN where x starts above `at` or never reaches it: nothing is extrapolated.

    Raises:
        AdvsweepError: x and y are not two lists of numbers of the same length.
    """
    xs, ys = as_pairs(x, y)
    whole = ~(np.isnan(xs) | np.isnan(ys))
    xs = xs[whole]
    ys = ys[whole]
    places = np.asarray(at, dtype=np.float64)
    if not xs.size:
        return np.full(places.shape, np.nan)
    # pass@1 may fall and rise again, so that x is not sorted.
    # Only a point above all before it can be the first at or above a place.
    highest = np.maximum.accumulate(xs)
    after = np.searchsorted(highest, places)
    reached = (after < xs.size) & (places >= xs[0])
    after = np.where(reached, after, 0)
    before = np.maximum(after - 1, 0)
    step = xs[after] - xs[before]
    share = np.where(step > 0, (places - xs[before]) / np.where(step > 0, step, 1.0), 0.0)
    return np.where(reached, ys[before] + share * (ys[after] - ys[before]), np.nan)


# Steps over which curves are averaged.
WINDOW = 10

# Share of its highest mean reward below which a policy has fallen.
FALLEN = 0.5

# Rise of the share of all-wrong groups that must come with it.
RISEN = 0.1


def collapse_onset(
    rewards: Float[np.ndarray, " steps"], all_wrong: Float[np.ndarray, " steps"]
) -> int | None:
    """Return after how many steps a training's policy collapsed; None if it did not.

    It collapsed if, over the last 10 steps, the mean reward is at most half of its highest
    running mean, and the share of groups without a success is at least .1 above that at the
    height. It began after the last step whose running mean was above half of the height.
    Trainings of fewer than 30 steps, or without a positive reward, count as not collapsed.

    Source: A-GRAE (arXiv:2602.05548), App. D.3: fully unsolved questions that rise in a late
    stage, with a significant decrease of performance, in some of the runs of one configuration.

    Departures: the paper counts collapsed runs and gives no criterion; this one is ours.

    Args:
        rewards: mean reward of each step; NaN where no rollout was scored.
        all_wrong: share of groups without a success, of the same steps.
    """
    if len(rewards) < 3 * WINDOW:
        return None
    reward = _running_mean(rewards)
    wrong = _running_mean(all_wrong)
    if np.isnan(reward).all() or math.isnan(reward[-1]):
        return None
    height = int(np.nanargmax(reward))
    has_fallen = reward[height] > 0 and reward[-1] <= FALLEN * reward[height]
    if not has_fallen or not wrong[-1] >= wrong[height] + RISEN:
        return None
    # The running mean at index i is over the steps i + 1 to i + WINDOW.
    return int(np.flatnonzero(reward > FALLEN * reward[height])[-1]) + WINDOW


def _running_mean(values: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " windows"]:
    windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        means: Float[np.ndarray, " windows"] = np.nanmean(windows, axis=1)
    return means
