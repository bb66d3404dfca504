"""Ratios of means over seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.statistics import (
    compare_paired,
    ratio_of_means,
)


def _seeds(values):
    return dict(enumerate(values))


SAMPLES = st.lists(
    st.tuples(st.floats(0.2, 1), st.floats(0.2, 1)), min_size=3, max_size=8, unique=True
)


@given(SAMPLES)
def test_fiellers_interval_inverts_the_paired_t_test(pairs):
    a, b = np.array(pairs).T
    if min(np.ptp(a), np.ptp(b)) < 1e-3:
        return
    found = ratio_of_means(_seeds(a), _seeds(b))
    assert found.value == pytest.approx(a.mean() / b.mean())
    if math.isnan(found.low):
        assert compare_paired(b, np.zeros(len(b))).p_value > 0.05
        return
    for end in (found.low, found.high):
        if abs(end) < 1e3:
            p = compare_paired(a - end * b, np.zeros(len(a))).p_value
            assert p == pytest.approx(0.05, abs=1e-4)


def test_ratios_of_unpaired_means():
    found = ratio_of_means({0: 2.0, 1: 2.2, 2: 1.8}, {5: 1.0, 6: 1.1, 7: 0.9})
    # (x - ρ y)² = t² (s²_x/3 + ρ² s²_y/3), with t(.975; 2) = 4.3027 and s of .2 and .1.
    for rho in (found.low, found.high):
        error = math.sqrt(0.04 / 3 + rho**2 * 0.01 / 3)
        assert abs(2 - rho) == pytest.approx(4.302653 * error)
    assert found.low < found.value < found.high
    assert math.isnan(ratio_of_means({0: 1.0}, {1: 2.0}).low)
