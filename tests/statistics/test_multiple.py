"""p-values of many comparisons."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from advsweep.statistics import benjamini_hochberg

NAN = float("nan")


def test_worked_values():
    # In order .01, .02, .03, .5 of 4: .04, .04, .04, .5; the smallest is not above the next.
    assert benjamini_hochberg([0.5, 0.01, 0.03, 0.02]) == pytest.approx([0.5, 0.04, 0.04, 0.04])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_against_scipy(p_values):
    expected = scipy.stats.false_discovery_control(p_values)
    assert benjamini_hochberg(p_values) == pytest.approx(expected)


@given(st.lists(st.floats(0, 1) | st.just(NAN), max_size=20))
def test_tests_that_were_not_made_do_not_count(p_values):
    adjusted = benjamini_hochberg(p_values)
    made = ~np.isnan(p_values) if p_values else np.zeros(0, bool)
    assert (np.isnan(adjusted) == ~made).all()
    assert (adjusted[made] == benjamini_hochberg(np.array(p_values)[made])).all()
    assert (adjusted[made] >= np.array(p_values)[made]).all()
    assert (adjusted[made] <= 1).all()


def test_false_discoveries_under_the_null_and_among_real_differences():
    rng = np.random.default_rng(0)
    shares = {0: [], 5: []}
    for real, found in shares.items():
        for _ in range(4000):
            shifts = np.where(np.arange(20) < real, 3.0, 0.0)
            p_values = 2 * scipy.stats.norm.sf(np.abs(rng.normal(shifts)))
            called = benjamini_hochberg(p_values) <= 0.05
            found.append(called[real:].sum() / max(called.sum(), 1))
    # With independent tests it is .05 times the share of tests without a difference.
    assert np.mean(shares[0]) == pytest.approx(0.05, abs=0.01)
    assert np.mean(shares[5]) == pytest.approx(0.05 * 15 / 20, abs=0.01)
