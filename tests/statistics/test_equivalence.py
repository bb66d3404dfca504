"""Two one-sided tests: the smallest margin of equivalence, and p at a given one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from advsweep.statistics import (
    compare_paired,
    compare_unpaired,
    equivalence_margin,
    equivalence_p_value,
)


def test_the_margin_reaches_as_far_as_the_90_percent_interval():
    # Differences of 1, 2 and 3: mean 2, standard error 1/√3 = .57735, and t(.95, 2 df) = 2.91999.
    comparison = compare_paired([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    assert equivalence_margin(comparison) == pytest.approx(2 + 2.91999 * 0.57735, abs=1e-4)
    narrow = compare_paired([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], level=0.90)
    assert equivalence_margin(comparison) == pytest.approx(narrow.high)
    swapped = compare_paired([0.0, 0.0, 0.0], [1.0, 2.0, 3.0])
    assert equivalence_margin(swapped) == pytest.approx(equivalence_margin(comparison))


def test_p_is_five_percent_at_the_smallest_margin():
    comparison = compare_paired([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    # t = (4 - 2) / .57735 = 3.4641, and with 2 df P(T > t) = 1/2 - t / (2 √(2 + t²)) = .0371.
    assert equivalence_p_value(comparison, 4.0) == pytest.approx(0.0371, abs=1e-4)
    assert equivalence_p_value(comparison, equivalence_margin(comparison)) == pytest.approx(0.05)
    assert equivalence_p_value(comparison, 2.0) == pytest.approx(0.5)
    assert equivalence_p_value(comparison, 1.0) > 0.5


def test_welchs_standard_error_counts_without_pairs():
    comparison = compare_unpaired([1.0, 2.0, 3.0], [0.0, 4.0, 8.0, 4.0])
    narrow = compare_unpaired([1.0, 2.0, 3.0], [0.0, 4.0, 8.0, 4.0], level=0.90)
    assert equivalence_margin(comparison) == pytest.approx(max(-narrow.low, narrow.high))


def test_what_does_not_vary_has_no_test():
    for comparison in (
        compare_paired([1.0, 2.0], [1.0, 2.0]),
        compare_paired([1.0], [2.0]),
        compare_unpaired([1.0], [2.0, 3.0]),
    ):
        assert math.isnan(equivalence_margin(comparison))
        assert math.isnan(equivalence_p_value(comparison, 1.0))


def test_arms_at_the_margin_are_called_equivalent_in_five_percent():
    rng = np.random.default_rng(20)
    draws = 4000
    called = sum(
        equivalence_p_value(compare_paired(rng.normal(1.0, 0.3, 8), np.zeros(8)), 1.0) <= 0.05
        for _ in range(draws)
    )
    # Two standard errors of a share of .05 are .007.
    assert called / draws == pytest.approx(0.05, abs=0.011)
