"""Two curves read where their x is equal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.statistics.matching import MAX_SHARE, Reading, match_curves, read_at

# Five evaluations of a training: pass@1, and a diversity that falls by .1 with each .1 of it.
SLOW = [0.1, 0.2, 0.3, 0.4, 0.5], [1.0, 0.9, 0.8, 0.7, 0.6]


def test_curves_are_read_at_the_lower_of_their_ends():
    # .5 lies in the middle between .4 and .6, where y is .75 and .65; `SLOW` ends there.
    pair = match_curves(([0.1, 0.2, 0.4, 0.6], [1.0, 0.9, 0.75, 0.65]), SLOW)
    assert pair.level == 0.5
    assert (pair.one.value, pair.other.value) == pytest.approx((0.7, 0.6))
    assert pair.difference == pytest.approx(0.1)
    assert (pair.one.gap, pair.other.gap, pair.gap) == pytest.approx((0.2, 0.0, 0.2))


def test_a_level_may_be_given():
    pair = match_curves(SLOW, SLOW, level=0.35)
    assert pair.one == pair.other
    assert (pair.level, pair.one.value, pair.gap) == pytest.approx((0.35, 0.75, 0.1))


def test_the_first_time_counts():
    # pass@1 falls to .3 and ends there; it was .3 before, at a y of .8.
    found = match_curves(([0.1, 0.2, 0.3, 0.4, 0.3], [1.0, 0.9, 0.8, 0.7, 0.2]), SLOW)
    assert (found.level, found.one.value) == pytest.approx((0.3, 0.8))


def test_what_is_never_reached_is_not_extrapolated():
    nothing = Reading(math.nan, math.nan)
    assert str(read_at(*SLOW, 0.6)) == str(read_at(*SLOW, 0.05)) == str(nothing)
    # A run that ends below where the other starts.
    assert math.isnan(match_curves(([0.1, 0.05], [1.0, 0.9]), SLOW).difference)
    assert math.isnan(match_curves(([], []), SLOW).level)
    # Points without a y do not count: the end is .4.
    gone = ([0.1, 0.2, 0.3, 0.4, 0.5], [1.0, 0.9, 0.8, 0.7, math.nan])
    assert match_curves(gone, SLOW).level == 0.4


def test_long_lines_are_not_read_from():
    # From .1 to .5 it is .4, of which a line may have half.
    assert MAX_SHARE == 0.5
    assert read_at([0.1, 0.4, 0.6], [1.0, 0.8, 0.6], 0.5).value == pytest.approx(0.7)
    assert math.isnan(read_at([0.1, 0.39, 0.6], [1.0, 0.8, 0.6], 0.5).value)
    # At a point there is no line.
    assert read_at([0.1, 0.5], [1.0, 0.6], 0.5) == Reading(0.6, 0.0)


@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=9), st.integers(1, 9))
def test_a_training_that_is_faster_along_the_same_curve_does_not_differ(gains, ahead):
    """y is a straight line of x, so that interpolation is exact."""

    def along(steps: int) -> tuple[list[float], list[float]]:
        xs = [sum(gains[:step]) for step in range(steps + 1)]
        return xs, [2 - x / 3 for x in xs]

    found = match_curves(along(len(gains)), along(min(ahead, len(gains))))
    assert math.isnan(found.difference) or found.difference == pytest.approx(0, abs=1e-9)
