"""Lines of least squares, curves at equal budgets, and collapsed trainings."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import linregress, t

from advsweep.errors import AdvsweepError, FitError
from advsweep.statistics import regress, value_at
from advsweep.statistics.curves import collapse_onset


def test_a_line_by_hand():
    # x̄ = 2, Σ(x-x̄)² = 2, Σ(x-x̄)(y-ȳ) = 1: slope 1/2, intercept 1. Residuals (.5, -1, .5): s²
    # = 1.5, of Σ(y-ȳ)² = 2: R² = 1 - 1.5/2. t(.975, 1) = 12.7062.
    found = regress([1, 2, 3], [2, 1, 3])
    half = 12.706204736 * math.sqrt(1.5)
    assert found.slope == pytest.approx((0.5, 0.5 - half / math.sqrt(2), 0.5 + half / math.sqrt(2)))
    of_intercept = half * math.sqrt(1 / 3 + 4 / 2)
    assert found.intercept == pytest.approx((1, 1 - of_intercept, 1 + of_intercept))
    assert found.r_squared == pytest.approx((0.25, np.nan, np.nan), nan_ok=True)
    assert found.n == 3


points = st.lists(
    st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=4, max_size=15
).filter(lambda found: all(len(set(side)) > 1 for side in zip(*found, strict=True)))


@given(points)
def test_lines_against_scipy(found):
    x, y = np.array(found, dtype=float).T
    line, expected = regress(x, y), linregress(x, y)
    assert line.slope.value == pytest.approx(expected.slope)
    assert line.intercept.value == pytest.approx(expected.intercept)
    assert line.r_squared.value == pytest.approx(expected.rvalue**2)
    assert line.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    half = t.ppf(0.975, len(x) - 2) * expected.stderr
    assert line.slope.high - line.slope.value == pytest.approx(half, abs=1e-6)
    half = t.ppf(0.975, len(x) - 2) * expected.intercept_stderr
    assert line.intercept.high - line.intercept.value == pytest.approx(half, abs=1e-6)


@pytest.mark.parametrize("n", [5, 10, 30])
def test_lines_cover_the_true_one_as_often_as_they_say(n):
    rng = np.random.default_rng(n)
    covered = np.zeros(4)
    for _ in range(3000):
        x = rng.normal(0.4, 1, n)
        found = regress(x, 0.7 - 2 * x + rng.normal(0, 1, n))
        _, low, high = found.band(1.0)
        covered += [
            found.slope.low <= -2 <= found.slope.high,
            found.intercept.low <= 0.7 <= found.intercept.high,
            low <= -1.3 <= high,
            # The correlation of x and y is -2/√5.
            found.r_squared.low <= 4 / 5 <= found.r_squared.high,
        ]
    assert covered / 3000 == pytest.approx(0.95, abs=0.02)


def test_points_on_a_line_leave_no_doubt_of_it():
    found = regress([1, 2, 3, 4], [0.3, 0.2, 0.1, 0.0])
    assert found.slope == pytest.approx((-0.1, -0.1, -0.1))
    assert found.r_squared == (1, 1, 1)
    assert found.p_value == 0


def test_equal_y_have_no_slope_and_nothing_to_explain():
    found = regress([1, 2, 3, 4], [0.3, 0.3, 0.3, 0.1 + 0.2])
    assert found.slope == (0, 0, 0)
    assert found.p_value == 1
    assert np.isnan(found.r_squared).all()


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([], [], "0 points"),
        ([1, 2], [1, 2], "2 points: a line with an interval needs at least 3"),
        ([0.3, 0.1 + 0.2, 0.3], [1, 2, 3], r"all 3 points have the same x \(0.3\)"),
        ([0, 0, 0], [1, 2, 3], "all 3 points"),
    ],
)
def test_points_that_support_no_line_are_refused(x, y, reason):
    with pytest.raises(FitError, match=reason):
        regress(x, y)


def test_within_groups_a_slope_can_be_the_other_way():
    """Two groups that fall by 1 each, the second of them further up: the line of all rises."""
    x, y = [0, 1, 2, 5, 6, 7], [2, 1, 0, 9, 8, 7.6]
    assert regress(x, y).slope.low > 0
    found = regress(x, y, list("aaabbb"))
    # Σ dx dy = -2 - 1.4 and Σ dx² = 2 + 2.
    assert found.slope.value == pytest.approx(-3.4 / 4)
    assert found.slope.high < 0
    assert (found.n, found.groups) == (6, 2)


def test_parallel_lines_are_those_of_least_squares_with_an_intercept_each():
    rng = np.random.default_rng(3)
    groups = np.repeat([0, 1, 2], [4, 6, 1])
    x, y = rng.normal(size=(2, 11))
    found = regress(x, y, groups.tolist())
    design = np.column_stack([x, *(groups == g for g in range(3))])
    beta, [squares], *_ = np.linalg.lstsq(design, y, rcond=None)
    error = math.sqrt(squares / (11 - 4) * np.linalg.inv(design.T @ design)[0, 0])
    half = t.ppf(0.975, 7) * error
    assert found.slope == pytest.approx((beta[0], beta[0] - half, beta[0] + half))
    assert found.p_value == pytest.approx(2 * t.sf(abs(beta[0]) / error, 7))
    means = np.array([y[groups == g].mean() for g in groups])
    assert found.r_squared.value == pytest.approx(1 - squares / ((y - means) ** 2).sum())


@pytest.mark.parametrize(
    ("x", "y", "groups", "reason"),
    [
        ([1, 2, 3], [1, 2, 3], ["a", "a", "b"], "3 points of 2 groups: .* needs at least 4"),
        ([1, 1, 2, 2], [1, 2, 3, 4], ["a", "a", "b", "b"], "4 points of 2 groups have the same x"),
        ([], [], [], "0 points of 0 groups"),
    ],
)
def test_groups_without_a_common_slope_are_refused(x, y, groups, reason):
    with pytest.raises(FitError, match=reason):
        regress(x, y, groups)
    with pytest.raises(AdvsweepError, match="expected a group for each"):
        regress(x, y, [*groups, "c"])


ROLLOUTS = [0, 100, 300]
ACCURACY = [0.1, 0.5, 0.6]


def test_values_between_points():
    # Half way from 100 to 300, and at the points themselves.
    assert value_at(ROLLOUTS, ACCURACY, 200) == pytest.approx(0.55)
    assert value_at(ROLLOUTS, ACCURACY, [0, 50, 100, 300]) == pytest.approx([0.1, 0.3, 0.5, 0.6])


def test_nothing_is_extrapolated():
    assert np.isnan(value_at(ROLLOUTS, ACCURACY, [-1, 301, np.nan])).all()
    assert np.isnan(value_at([], [], [1.0])).all()
    assert value_at([5], [0.3], [4, 5, 6]) == pytest.approx([np.nan, 0.3, np.nan], nan_ok=True)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(-2, 22).map(lambda n: n / 2)
)
def test_no_earlier_point_has_got_there(x, at):
    place = float(value_at(x, range(len(x)), at))
    if np.isnan(place):
        assert x[0] > at or max(x) < at
    else:
        assert x[int(np.ceil(place))] >= at
        assert all(value < at for value in x[: int(np.ceil(place))])


def curve(*pieces: tuple[float, int]) -> np.ndarray:
    return np.concatenate([np.full(steps, value) for value, steps in pieces])


def test_a_fall_to_half_with_more_unsolved_groups_is_a_collapse() -> None:
    # Rewards of .4 for 50 steps, then .1 for 30. The mean over 10 steps, of which the last k are
    # low, is .4 - .03 k: above .2 up to k = 6, so that the last such window ends at step 56.
    rewards = curve((0.4, 50), (0.1, 30))
    assert collapse_onset(rewards, curve((0.2, 50), (0.6, 30))) == 56


@pytest.mark.parametrize(
    ("rewards", "all_wrong"),
    [
        # It falls to .25, above half of .4.
        (curve((0.4, 50), (0.25, 30)), curve((0.2, 50), (0.6, 30))),
        # The unsolved groups do not become more: a harder part of the data, say.
        (curve((0.4, 50), (0.1, 30)), curve((0.2, 50), (0.25, 30))),
        # It recovers.
        (curve((0.4, 50), (0.1, 30), (0.4, 10)), curve((0.2, 50), (0.6, 30), (0.2, 10))),
        # Too short to judge.
        (curve((0.4, 15), (0.0, 14)), curve((0.2, 15), (1.0, 14))),
        # There is nothing to lose.
        (curve((0.0, 80)), curve((1.0, 80))),
        (curve((np.nan, 80)), curve((np.nan, 80))),
    ],
)
def test_what_is_no_collapse(rewards: np.ndarray, all_wrong: np.ndarray) -> None:
    assert collapse_onset(rewards, all_wrong) is None
