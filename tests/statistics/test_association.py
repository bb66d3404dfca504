"""Intervals of correlations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.statistics import correlation_interval, correlation_p_value


@given(st.floats(-0.99, 0.99), st.integers(4, 50))
def test_the_p_at_an_end_of_the_interval_is_5_percent(r, n):
    low, high = correlation_interval(r, n)
    assert low < r < high
    if abs(low) < 0.999999 and abs(high) < 0.999999:
        assert correlation_p_value(r, n, low) == pytest.approx(0.05)
        assert correlation_p_value(r, n, high) == pytest.approx(0.05)
    assert correlation_p_value(r, n, r) == 1
