"""Comparisons of two methods."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from advsweep.statistics import (
    compare_paired,
    compare_seeds,
    compare_unpaired,
    improvement_share,
    permutation_p_value,
)

NAN = float("nan")


def values(low: float = -1e3, high: float = 1e3) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda x: round(x, 3))


class TestPaired:
    def test_worked_values(self):
        # Differences 1, 2, 3: mean 2, s = 1, t = 2 / (1/√3) = 3.4641 of 2 degrees of freedom,
        # which has p = .074180; t(.975, 2) = 4.30265. d_z = 2, and with m = 2 degrees Hedges'
        # factor is Γ(1) / (√1 Γ(1/2)) = 1/√π.
        found = compare_paired([2, 4, 6], [1, 2, 3])
        half = 4.302652729911275 / math.sqrt(3)
        assert (found.difference, found.sd) == pytest.approx((2, 1))
        assert (found.low, found.high) == pytest.approx((2 - half, 2 + half))
        assert found.p_value == pytest.approx(0.0741799)
        assert found.effect_size == pytest.approx(2 / math.sqrt(math.pi))
        assert (found.n, found.paired) == (3, True)
        assert not found.is_settled

    @given(st.lists(st.tuples(values(), values()), min_size=2, max_size=12))
    def test_against_scipy(self, pairs):
        a, b = np.array(pairs).T
        found = compare_paired(a, b, 0.9)
        if found.sd > 0:
            result = scipy.stats.ttest_rel(a, b)
            interval = result.confidence_interval(0.9)
            assert found.p_value == pytest.approx(result.pvalue, rel=1e-6)
            assert found.low == pytest.approx(interval.low, rel=1e-6, abs=1e-9)
            assert found.high == pytest.approx(interval.high, rel=1e-6, abs=1e-9)

    @given(st.lists(st.tuples(values(), values()), min_size=0, max_size=9))
    def test_turned_round_it_is_the_opposite(self, pairs):
        a, b = np.array(pairs).reshape(-1, 2).T
        one, other = compare_paired(a, b), compare_paired(b, a)
        for mine, yours in (
            (one.difference, -other.difference),
            (one.low, -other.high),
            (one.effect_size, -other.effect_size),
            (one.p_value, other.p_value),
            (one.p_permutation, other.p_permutation),
        ):
            assert mine == pytest.approx(yours, nan_ok=True)

    def test_effect_size_is_unbiased(self):
        # Five pairs of a true d_z of .8; without the correction the mean would be 1.00.
        differences = np.random.default_rng(0).normal(0.8, 1, (4000, 5))
        sizes = [compare_paired(row, np.zeros(5)).effect_size for row in differences]
        assert np.mean(sizes) == pytest.approx(0.8, abs=0.04)

    @pytest.mark.slow
    @pytest.mark.parametrize(("n", "times"), [(5, 4000), (10, 4000), (30, 1500)])
    def test_covers_the_true_difference_as_often_as_it_says(self, n, times):
        rng = np.random.default_rng(n)
        seeds = rng.normal(0, 3, (times, n))  # what a seed does to both methods
        a, b = seeds + rng.normal(0.4, 1, (times, n)), seeds + rng.normal(0, 1, (times, n))
        found = [compare_paired(*pair) for pair in zip(a, b, strict=True)]
        assert np.mean([f.low <= 0.4 <= f.high for f in found]) == pytest.approx(0.95, abs=0.02)

    def test_one_pair_has_a_difference_and_nothing_to_judge_it_by(self):
        found = compare_paired([0.6], [0.4])
        assert found.difference == pytest.approx(0.2)
        assert np.isnan([found.low, found.high, found.p_value, found.sd, found.effect_size]).all()
        assert not found.is_settled

    def test_identical_values_do_not_differ(self):
        found = compare_paired([0.3, 0.5, 0.7], [0.3, 0.5, 0.7])
        assert (found.difference, found.low, found.high, found.sd) == (0, 0, 0, 0)
        assert found.p_value == 1
        assert math.isnan(found.effect_size)
        assert not found.is_settled

    def test_differences_alike_have_no_spread_though_they_are_rounded(self):
        # .3 - .1 and .4 - .2 differ in their last digit.
        found = compare_paired([0.3, 0.4, 1.1], [0.1, 0.2, 0.9])
        assert found.difference == pytest.approx(0.2)
        assert (found.sd, found.p_value) == (0, 0)
        assert found.low == found.high == found.difference
        assert found.is_settled

    @pytest.mark.parametrize("missing", [NAN, math.inf, -math.inf])
    def test_pairs_with_a_value_that_is_not_finite_are_left_out(self, missing):
        found = compare_paired([1, missing, 3, 4], [1, 2, missing, 2])
        assert found.n == 2
        assert found.difference == pytest.approx(1)


class TestUnpaired:
    @pytest.mark.filterwarnings("ignore:Precision loss")  # SciPy's, of values nearly alike
    @given(
        st.lists(values(), min_size=2, max_size=9),
        st.lists(values(), min_size=2, max_size=9),
    )
    def test_against_scipy(self, a, b):
        found = compare_unpaired(a, b)
        if found.sd > 1e-6:
            result = scipy.stats.ttest_ind(a, b, equal_var=False)
            interval = result.confidence_interval(0.95)
            assert found.p_value == pytest.approx(result.pvalue, rel=1e-6)
            assert found.low == pytest.approx(interval.low, rel=1e-6, abs=1e-9)
            assert found.high == pytest.approx(interval.high, rel=1e-6, abs=1e-9)
        assert (found.n, found.paired) == (min(len(a), len(b)), False)

    def test_worked_effect_size(self):
        # Variances 1 and 3 of 3 and 5 values: pooled (2 · 1 + 4 · 3) / 6 = 7/3. Means 2 and
        # 4.2; with m = 6 degrees Hedges' factor is Γ(3) / (√3 Γ(2.5)) = 2 / (√3 · 1.32934).
        found = compare_unpaired([1, 2, 3], [2, 4, 4, 4.5, 6.5])
        of_b = np.var([2, 4, 4, 4.5, 6.5], ddof=1)
        pooled = math.sqrt((2 * 1 + 4 * of_b) / 6)
        assert found.effect_size == pytest.approx(-2.2 / pooled * 2 / (math.sqrt(3) * 1.3293404))
        assert found.sd == pytest.approx(math.sqrt(1 + of_b))

    def test_values_that_are_not_finite_are_left_out(self):
        found = compare_unpaired([1, 2, NAN, 3], [1, 2])
        assert found.n == 2
        assert found.difference == pytest.approx(0.5)

    def test_a_single_value_has_no_spread(self):
        found = compare_unpaired([1], [1, 2, 3])
        assert found.difference == pytest.approx(-1)
        assert np.isnan([found.low, found.p_value, found.effect_size, found.p_permutation]).all()
        assert math.isnan(compare_unpaired([], [1, 2]).difference)


class TestSeeds:
    def test_shared_seeds_are_paired_in_any_order(self):
        a, b = {0: 1.0, 1: 2.0, 2: 4.0}, {2: 3.0, 1: 2.5, 0: 0.0, 7: 9.0}
        found = compare_seeds(a, b)
        assert found.paired
        assert found.n == 3
        assert found.difference == pytest.approx((1 - 0.5 + 1) / 3)

    def test_seeds_that_are_not_shared_are_compared_unpaired(self):
        a, b = {0: 1.0, 1: 2.0, 2: 4.0}, {2: 3.0, 3: 2.5, 4: 0.5}
        found = compare_seeds(a, b)
        assert not found.paired
        assert found == compare_unpaired([1, 2, 4], [3, 2.5, 0.5])

    def test_a_seed_without_a_value_is_none(self):
        found = compare_seeds({0: 1.0, 1: NAN, 2: 3.0}, {0: 0.5, 1: 1.0, 2: 2.0})
        assert (found.paired, found.n) == (True, 2)
        found = compare_seeds({0: 1.0, 1: NAN}, {0: 0.5, 1: 1.0})
        assert (found.paired, found.n) == (False, 1)


class TestPermutation:
    @given(st.lists(st.integers(-4, 4), min_size=6, max_size=9))
    def test_all_patterns_are_tried(self, differences):
        # In twentieths, as accuracies are, sums are equal but for rounding.
        patterns = itertools.product([-1, 1], repeat=len(differences))
        sums = [abs(sum(s * d for s, d in zip(p, differences, strict=True))) for p in patterns]
        exact = np.mean([total >= abs(sum(differences)) for total in sums])
        assert permutation_p_value([d / 20 for d in differences]) == exact

    def test_drawn_patterns_come_near_to_all_of_them(self):
        differences = np.random.default_rng(3).normal(0.4, 1, 21)
        halves = [np.zeros(1), np.zeros(1)]
        for i, difference in enumerate(differences):
            half = halves[i % 2]
            halves[i % 2] = np.concatenate([half + difference, half - difference])
        sums = np.abs(halves[0][:, None] + halves[1]).ravel()
        exact = np.mean(sums >= abs(differences.sum()) - 1e-9)
        # The standard error of a share of 9,999 is below .005.
        assert permutation_p_value(differences) == pytest.approx(exact, abs=0.02)
        assert permutation_p_value(differences) == permutation_p_value(differences)
        assert permutation_p_value(differences, 1) != permutation_p_value(differences, 2)

    def test_calls_as_many_false_as_it_says(self):
        # Skewed differences of mean 0 are not what it is for; symmetric ones of any shape are.
        differences = np.random.default_rng(1).laplace(0, 1, (2000, 7)) ** 3
        found = [permutation_p_value(row) for row in differences]
        # Seven have 64 levels of p; at most .046875 is below .05.
        assert np.mean([p <= 0.05 for p in found]) == pytest.approx(3 / 64, abs=0.015)


class TestImprovementShare:
    def test_worked_values(self):
        # 3 beats 1 and 2; 2 beats 1 and ties with 2; 1 ties with 1 and loses to 2: 2 + 1.5 + .5
        # of 6 pairs.
        assert improvement_share([3, 2, 1], [1, 2]) == pytest.approx(4 / 6)
        assert math.isnan(improvement_share([NAN], [1, 2]))

    @given(
        st.lists(st.integers(0, 5), min_size=2, max_size=8),
        st.lists(st.integers(0, 5), min_size=2, max_size=8),
    )
    def test_against_mann_whitney(self, a, b):
        u = scipy.stats.mannwhitneyu(a, b).statistic
        assert improvement_share(a, b) == pytest.approx(u / len(a) / len(b))
