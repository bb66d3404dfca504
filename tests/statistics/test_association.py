"""Intervals of correlations, and rank correlation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from advsweep.errors import FitError
from advsweep.statistics import correlation_interval, correlation_p_value, rank_correlation

VALUES = st.lists(st.integers(-5, 5), min_size=5, max_size=12)


@given(st.floats(-0.99, 0.99), st.integers(4, 50))
def test_the_p_at_an_end_of_the_interval_is_5_percent(r, n):
    low, high = correlation_interval(r, n)
    assert low < r < high
    if abs(low) < 0.999999 and abs(high) < 0.999999:
        assert correlation_p_value(r, n, low) == pytest.approx(0.05)
        assert correlation_p_value(r, n, high) == pytest.approx(0.05)
    assert correlation_p_value(r, n, r) == 1


def test_all_orders_by_hand():
    """ρ of 1 2 3 4 5 and 2 1 4 3 5 is 1 - 6·4/(5·24) = .8; 16 of 120 orders are as far from 0."""
    found = rank_correlation([1, 2, 3, 4, 5], [20, 10, 40, 30, 50])
    assert (found.value, found.n) == (pytest.approx(0.8), 5)
    assert found.p_value == pytest.approx(16 / 120)
    half = 1.959964 * math.sqrt((1 + 0.32) / 2)
    assert found.low == pytest.approx(math.tanh(math.atanh(0.8) - half))


@given(VALUES, st.randoms(use_true_random=False))
def test_agrees_with_scipy(x, random):
    y = [random.randint(-5, 5) for _ in x]
    if len(set(x)) == 1 or len(set(y)) == 1:
        with pytest.raises(FitError, match="same"):
            rank_correlation(x, y)
        return
    found = rank_correlation(x, y)
    assert found.value == pytest.approx(stats.spearmanr(x, y).statistic)
    assert 0 < found.p_value <= 1
    # Ranks alone count, and only their order.
    assert rank_correlation(np.exp(x), y).value == pytest.approx(found.value)
    assert rank_correlation(x, np.negative(y)).value == pytest.approx(-found.value)


def test_points_without_a_value_are_left_out():
    found = rank_correlation([1, 2, math.nan, 4, 5], [1, 2, 3, math.inf, 5])
    assert (found.value, found.n) == (pytest.approx(1), 3)
    with pytest.raises(FitError, match="at least 3"):
        rank_correlation([1, 2], [1, 2])
