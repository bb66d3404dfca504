"""Laws of pass@k over k, fitted to the same points and compared by AIC.

shifted_power    exp(-a (k+c)^-b)    FADE (arXiv:2607.01490), sec. 12
power            exp(-a k^-b)        Brown et al. 2024 (arXiv:2407.21787)
exponential      1 - a exp(-b k)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, stdtrit

from advsweep.errors import AdvsweepError, FitError, counted
from advsweep.statistics.intervals import LEVEL, ROUNDING, Estimate, as_sample

if TYPE_CHECKING:
    from jaxtyping import Float

    # pass@k at each k, and the parameters of a law on the scale of its fit.
    Points = Float[np.ndarray, " points"]
    Parameters = Float[np.ndarray, " parameters"]

_PARAMETERS = 3

# Bounds of ln a, ln b and ln(k + c) at the smallest k. They are wide enough for every curve with
# the shape of the law, so a fit at an edge means another shape.
_EDGES = np.array([[-20.0, -7.0, -9.0], [60.0, 4.0, 9.0]])
_STARTS = (0.1, 1.0, 10.0, 100.0)
_NEAR_AN_EDGE = 0.05
_TRIES = 1000
_TRIES_AGAIN = 50  # for resampled rows: a fit that takes longer diverges
_CLIPPED = 1e-4  # for starting points only, because 0 and 1 have no logarithm


@dataclass(frozen=True)
class PowerLaw:
    """pass@k = exp(-a (k+c)^-b), a law of three parameters fitted to a curve.

    Attributes:
        a: the level: lower is better at every k.
        b: the steepness: higher values gain more from more samples.
        c: the shift of k, above minus the smallest k.
        mse: mean squared residual, in pass@k squared.
        r_squared: the share of the curve's variance over its points that the law explains.
        resampled: number of rows resampled for the intervals; 0 for intervals from residuals.
    """

    a: Estimate
    b: Estimate
    c: Estimate
    mse: float
    r_squared: float
    resampled: int

    def pass_at_k(self, k: ArrayLike) -> Float[np.ndarray, "*k"]:
        """Return the law's pass@k; NaN where it is undefined, below the smallest k of the fit."""
        shifted = np.asarray(k, dtype=np.float64) + self.c.value
        with np.errstate(invalid="ignore", divide="ignore"):
            exponents = self.a.value * np.exp(-self.b.value * np.log(shifted))
        return np.asarray(np.exp(-exponents))


def fit_pass_at_k(k: ArrayLike, values: ArrayLike, resamples: int = 200, seed: int = 0) -> PowerLaw:
    """Fit exp(-a (k+c)^-b) by least squares in pass@k, with a, b > 0 and k + c > 0.

    FADE (arXiv:2607.01490), sec. 12, which also calls c k₀.

    There are two kinds of intervals. For a table of values, whose mean over rows is the curve,
    they are quantiles of fits to resampled rows and show how much other problems (or seeds)
    would change the parameters. For a curve alone they are t intervals of ln a, ln b and ln(k+c)
    from the residuals' spread and the curvature at the best fit (n-3 degrees of freedom). These
    show how well the points determine the law if each is measured independently. Points of one
    evaluation share their samples, so their intervals are too narrow for other purposes.

    Args:
        k: [points], without repetition.
        values: pass@k of each: [points], or [rows, points] with a row for each problem or
            seed. A k with a NaN value is left out.
        resamples, seed: number and seed of the resamples of a table's rows; with 0 the ends of
            its intervals are NaN, and the fit takes a hundredth of the time.

    Raises:
        FitError: the curve does not support a fit: fewer than 4 points, values that are all 0,
            all 1 or all equal, values that fall with k, or a best fit whose parameters diverge
            because the curve has another shape.
        AdvsweepError: the arrays do not match, k is below 1 or repeated, or values are outside
            [0, 1].
    """
    ks, table = _points(k, values)
    curve = table.mean(axis=0)
    _refuse_hopeless(ks, curve)
    # Least squares in pass@k, not in ln(-ln pass@k): there the noise of small pass@k would count
    # most. The surface has local minima, so that several starts are needed.
    best = min((_solve(ks, curve, start) for start in _starts(ks, curve)), key=lambda fit: fit.cost)
    if (np.abs(best.x - _EDGES) < _NEAR_AN_EDGE).any():
        raise FitError(
            "the best fit is no shifted power law: its parameters run away "
            f"(a = {math.exp(best.x[0]):.3g}, b = {math.exp(best.x[1]):.3g}, "
            f"c = {math.exp(best.x[2]) - ks[0]:.3g})"
        )
    rows = len(table) if len(table) > 1 else 0
    if rows and not resamples:
        low = high = np.full(_PARAMETERS, math.nan)
    elif rows:
        rng = np.random.default_rng(seed)
        drawn = rng.multinomial(rows, np.full(rows, 1 / rows), size=resamples) / rows
        # Each from the best fit, which is near: one start does.
        fits = [_solve(ks, weights @ table, best.x, _TRIES_AGAIN).x for weights in drawn]
        low, high = np.quantile(fits, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    else:
        half = _t_half_widths(best)
        low = best.x - half
        high = best.x + half
    # From (ln a, ln b, ln(k + c)) at the smallest k, in which a, b and k + c stay positive.
    shift = np.array([0.0, 0.0, ks[0]])
    with np.errstate(over="ignore"):  # an end may be infinite
        ends = [np.exp(x) - shift for x in (best.x, low, high)]
    a, b, c = (Estimate(*map(float, ends_of_one)) for ends_of_one in zip(*ends, strict=True))
    mse = float(2 * best.cost / ks.size)
    return PowerLaw(a, b, c, mse, float(1 - mse / curve.var()), rows)


def _solve(k: Points, curve: Points, start: Parameters, tries: int = _TRIES) -> Any:
    """Return SciPy's best fit in (ln a, ln b, ln(k+c) at the smallest k)."""
    from scipy.optimize import least_squares

    def residuals(at: Parameters) -> Points:
        log_a, log_b, log_first = at
        exponents = np.exp(log_a - np.exp(log_b) * np.log(k - k[0] + np.exp(log_first)))
        return np.asarray(np.exp(-exponents) - curve)

    def jacobian(at: Parameters) -> Float[np.ndarray, "points parameters"]:
        log_a, log_b, log_first = at
        b = np.exp(log_b)
        first = np.exp(log_first)
        shifted = k - k[0] + first
        exponents = np.exp(log_a - b * np.log(shifted))
        slopes = [-np.ones_like(k), b * np.log(shifted), b * first / shifted]
        return np.asarray(np.exp(-exponents) * exponents * slopes).T

    return least_squares(
        residuals,
        np.clip(start, *_EDGES),
        jac=jacobian,
        bounds=tuple(_EDGES),
        x_scale="jac",
        max_nfev=tries,
    )


def _starts(k: Points, curve: Points) -> Iterator[Parameters]:
    """Yield starts: for some shifts, the line ln(-ln pass@k) = ln a - b ln(k+c) gives a and b."""
    heights = np.log(-np.log(np.clip(curve, _CLIPPED, 1 - _CLIPPED)))
    for first in _STARTS:
        slope, intercept = np.polyfit(np.log(k - k[0] + first), heights, 1)
        yield np.array([intercept, math.log(max(-slope, _CLIPPED)), math.log(first)])


def _points(k: ArrayLike, values: ArrayLike) -> tuple[Points, Float[np.ndarray, "rows points"]]:
    """Return the k in ascending order, and the table of values known at them."""
    ks = as_sample(k)
    table = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if table.ndim != 2 or table.shape[1] != ks.size:
        raise AdvsweepError(
            f"expected pass@k for each of {ks.size} k, or a table with a row of such for each "
            f"problem, got an array of shape {np.shape(values)}"
        )
    if (ks < 1).any() or np.unique(ks).size < ks.size:
        raise AdvsweepError("expected every k once, and k >= 1")
    if ((table < -ROUNDING) | (table > 1 + ROUNDING)).any():
        raise AdvsweepError("expected pass@k as shares in [0, 1]; divide percentages by 100")
    order = np.argsort(ks)
    complete = order[~np.isnan(table[:, order]).any(axis=0)]
    return ks[complete], table[:, complete]


def _refuse_hopeless(k: Points, curve: Points) -> None:
    if k.size <= _PARAMETERS:
        raise FitError(
            f"{counted(k.size, 'point')} of pass@k: a law of {_PARAMETERS} parameters needs more"
        )
    for value, meaning in ((0, "nothing"), (1, "everything")):
        if (np.abs(curve - value) <= ROUNDING).all():
            raise FitError(f"pass@k is {value} at every k: {meaning} was solved")
    # It would be the mean of other problems at each k, or of other samples.
    falls = np.flatnonzero(np.diff(curve) < -ROUNDING)
    if falls.size:
        i = falls[0]
        raise FitError(
            f"pass@k falls from {curve[i]:.4g} at k = {k[i]:g} to {curve[i + 1]:.4g} at "
            f"k = {k[i + 1]:g}, which that of the same samples cannot do"
        )
    if np.ptp(curve) <= ROUNDING:
        raise FitError(f"pass@k is {curve[0]:.4g} at every k: more samples solve nothing more")


def _t_half_widths(best: Any) -> Parameters:
    """Return the half-widths of t intervals, from the curvature at the best fit."""
    points = len(best.jac)
    _, singular, directions = np.linalg.svd(best.jac, full_matrices=False)
    # The fit says nothing about a direction on which no point depends: its variance is infinite.
    with np.errstate(divide="ignore"):
        variances = ((directions / singular[:, None]) ** 2).sum(axis=0)
    spread = np.sqrt(2 * best.cost / (points - _PARAMETERS) * variances)
    return np.asarray(float(stdtrit(points - _PARAMETERS, (1 + LEVEL) / 2)) * spread)


# The names of the laws.
LAWS = ("shifted_power", "power", "exponential")

_EDGE = 30.0  # of the logarithm of a parameter


@dataclass(frozen=True)
class LawFit:
    """A law at its best fit.

    Attributes:
        parameters: a, b and for `shifted_power` c.
        mse: mean squared residual, in pass@k squared.
        aicc: n ln(mse) + 2 p + 2 p (p+1)/(n - p - 1) for n points and p parameters, the spread
            of the residuals among them; infinite where n <= p + 1.
    """

    parameters: tuple[float, ...]
    mse: float
    aicc: float


def compare_laws(k: ArrayLike, values: ArrayLike) -> dict[str, LawFit]:
    """Fit every law by least squares in pass@k, and return the fits by name.

    Points of one evaluation share their samples, so their residuals are not independent: AICc
    orders the laws, but its differences are no test.

    Args:
        k: [points], without repetition.
        values: pass@k of each; a k with NaN is left out.

    Returns:
        The laws that could be fitted; `shifted_power` may be missing.

    Raises:
        FitError, AdvsweepError: no law can be fitted, as in `fit_pass_at_k`.
    """
    ks, table = _points(k, values)
    curve = table.mean(axis=0)
    _refuse_hopeless(ks, curve)
    fits = {}
    with suppress(FitError):
        shifted = fit_pass_at_k(ks, curve)
        parameters = (shifted.a.value, shifted.b.value, shifted.c.value)
        fits["shifted_power"] = _law_fit(parameters, ks.size, shifted.mse)
    at, mse = _fit_rival(_power, ((0.0, -1.0), (1.0, 0.0)), ks, curve)
    fits["power"] = _law_fit(np.exp(at), ks.size, mse)
    at, mse = _fit_rival(_exponential, ((0.0, -3.0), (2.0, -1.0), (2.0, -5.0)), ks, curve)
    fits["exponential"] = _law_fit((expit(at[0]), np.exp(at[1])), ks.size, mse)
    return fits


def _power(k: Points, at: Parameters) -> Points:
    return np.asarray(np.exp(-np.exp(at[0] - np.exp(at[1]) * np.log(k))))


def _exponential(k: Points, at: Parameters) -> Points:
    return np.asarray(1 - expit(at[0]) * np.exp(-np.exp(at[1]) * k))


def _fit_rival(
    law: Callable[[Points, Parameters], Points],
    starts: Sequence[tuple[float, float]],
    k: Points,
    curve: Points,
) -> tuple[Parameters, float]:
    """Return the parameters, on the scale of the law's function, and the mean squared residual."""
    from scipy.optimize import least_squares

    def residuals(at: Parameters) -> Points:
        return np.asarray(law(k, at) - curve)

    fits = [
        least_squares(residuals, start, bounds=(-_EDGE, _EDGE), x_scale="jac") for start in starts
    ]
    best = min(fits, key=lambda fit: float(fit.cost))
    return best.x, float(2 * best.cost / k.size)


def _law_fit(values: Sequence[float], points: int, mse: float) -> LawFit:
    parameters = len(values) + 1
    aicc = math.inf
    if points > parameters + 1:
        # A perfect fit has a likelihood without bound.
        fit = points * math.log(mse) if mse > 0 else -math.inf
        aicc = fit + 2 * parameters * (1 + (parameters + 1) / (points - parameters - 1))
    return LawFit(tuple(map(float, values)), mse, aicc)
