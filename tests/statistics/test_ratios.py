"""Ratios over seeds, and shares of runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from advsweep.statistics import (
    compare_paired,
    difference_of_shares,
    fisher_p_value,
    ratio_of_means,
    ratio_of_spreads,
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


def test_f_test_by_hand():
    a, b = {0: 1.0, 1: 3.0, 2: 5.0}, {5: 1.0, 6: 2.0, 7: 3.0}
    found = ratio_of_spreads(a, b)
    assert (found.value, found.n, found.paired) == (2, 3, False)
    # F(2, 2) has the distribution function x / (1 + x): at 4 it is .8, so that p = .4.
    assert found.p_value == pytest.approx(0.4)
    # Its quantiles at .025 and .975 are 1/39 and 39.
    assert (found.low, found.high) == pytest.approx((2 / math.sqrt(39), 2 * math.sqrt(39)))


@given(SAMPLES)
def test_pitman_and_morgan_invert_a_correlation_test(pairs):
    a, b = np.array(pairs).T
    if min(np.ptp(a), np.ptp(b)) < 1e-2 or abs(np.corrcoef(a, b)[0, 1]) > 0.999:
        return
    found = ratio_of_spreads(_seeds(a), _seeds(b))
    assert found.paired
    assert found.value == pytest.approx(a.std(ddof=1) / b.std(ddof=1))
    assert found.p_value == pytest.approx(stats.pearsonr(a + b, a - b).pvalue, abs=1e-6)
    for ratio in (found.low, found.high):
        if 1e-2 < ratio < 1e2:
            p = stats.pearsonr(a + ratio * b, a - ratio * b).pvalue
            assert p == pytest.approx(0.05, abs=1e-3)


@pytest.mark.parametrize("values", [(1.0,), (1.0, 1.0, 1.0), ()])
def test_what_does_not_vary_has_no_ratio(values):
    assert math.isnan(ratio_of_spreads(_seeds(values), {0: 1.0, 1: 2.0, 2: 4.0}).value)


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8), st.integers(0, 8))
def test_fishers_test_agrees_with_scipy(hits, misses, other_hits, other_misses):
    p = fisher_p_value(hits, hits + misses, other_hits, other_hits + other_misses)
    assert p == pytest.approx(
        stats.fisher_exact([[hits, misses], [other_hits, other_misses]]).pvalue
    )


def test_newcombes_interval_of_a_difference():
    """His example, 56/70 and 48/80: .2000, from .0524 to .3339 (1998, table II, method 10)."""
    assert difference_of_shares(56, 70, 48, 80) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)
    assert math.isnan(difference_of_shares(0, 0, 1, 2).value)
    none = difference_of_shares(0, 5, 5, 5)
    assert none.value == -1
    assert -1 <= none.low <= none.high < 0
