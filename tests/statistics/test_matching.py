"""Values of curves at equal budgets and at matched accuracy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.statistics import value_at

ROLLOUTS = [0, 100, 300]
ACCURACY = [0.1, 0.5, 0.6]


def test_worked_values():
    # Half way from 100 to 300, and at the points themselves.
    assert value_at(ROLLOUTS, ACCURACY, 200) == pytest.approx(0.55)
    assert value_at(ROLLOUTS, ACCURACY, [0, 50, 100, 300]) == pytest.approx([0.1, 0.3, 0.5, 0.6])


def test_nothing_is_extrapolated():
    assert np.isnan(value_at(ROLLOUTS, ACCURACY, [-1, 301, np.nan])).all()
    assert np.isnan(value_at([], [], [1.0])).all()
    assert value_at([5], [0.3], [4, 5, 6]) == pytest.approx([np.nan, 0.3, np.nan], nan_ok=True)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(-5, 5)), min_size=2, max_size=12),
    st.floats(0, 1),
)
def test_of_a_rising_budget_it_is_interpolation(points, share):
    x = np.cumsum([step for step, _ in points])
    y = [value for _, value in points]
    at = x[0] + share * (x[-1] - x[0])
    assert value_at(x, y, at) == pytest.approx(np.interp(at, x, y))


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
