"""The common spread of methods that ran the same seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.statistics import compare_paired, pool_spread

TABLES = st.tuples(st.integers(3, 6), st.integers(2, 6), st.integers(0, 2**32 - 1)).map(
    lambda of: np.random.default_rng(of[2]).normal(size=of[:2])
)


def test_worked_values():
    # Means of methods 2, 4 and 3, of seeds 3, 2 and 4, of all 3. The residuals are y - method -
    # seed + 3: [-1, 0, 1], [1, -1, 0] and [0, 1, -1]. Their squares sum to 6 with (3 - 1)(3 - 1) =
    # 4 degrees of freedom, so that s² = 1.5 and the sd of a difference √3.
    table = [[1, 1, 4], [5, 2, 5], [3, 3, 3]]
    found = pool_spread(table)
    assert found is not None
    assert (found.pooled.sd, found.pooled.df) == (pytest.approx(math.sqrt(3)), 4)
    assert found.wider.tolist() == [False, False, False]
    # t = 2 / (√3 / √3) with 4 degrees of freedom has p = .116117; t(.975, 4) = 2.776445.
    compared = compare_paired(table[1], table[0], pooled=found.pooled)
    assert (compared.low, compared.high) == pytest.approx((2 - 2.7764451, 2 + 2.7764451))
    assert compared.p_value == pytest.approx(0.1161165)
    assert (compared.df, compared.n, compared.pooled) == (4, 3, True)


@given(TABLES)
def test_it_is_the_residual_of_the_two_way_layout_of_what_is_kept(table):
    found = pool_spread(table)
    if found is None or found.pooled.df < (len(table) - 1) * (table.shape[1] - 1):
        return
    methods, seeds = table.shape
    of_method, of_seed = np.divmod(np.arange(table.size), seeds)
    design = np.concatenate([np.eye(methods)[of_method], np.eye(seeds)[of_seed]], axis=1)
    fitted = design @ np.linalg.lstsq(design, table.reshape(-1), rcond=None)[0]
    squares = ((table.reshape(-1) - fitted) ** 2).sum()
    assert found.pooled.sd**2 / 2 == pytest.approx(squares / found.pooled.df)


def test_the_same_runs_count_once():
    table = np.random.default_rng(0).normal(size=(4, 5))
    once, twice = pool_spread(table), pool_spread(np.concatenate([table, table[:2]]))
    assert once is not None
    assert twice is not None
    assert once.pooled == twice.pooled


ALIKE = np.array([[1, -1, 0, 0], [0, 1, -1, 0], [0, 0, 1, -1], [-1, 0, 0, 1], [0, 0, 0, 0.5]])
"""Residuals of about the same size, on four seeds."""


def test_a_method_of_a_larger_spread_is_set_apart():
    found, without = pool_spread([*ALIKE, [9, 0, -9, 0]]), pool_spread(ALIKE)
    assert found is not None
    assert without is not None
    assert found.wider.tolist() == [False] * 5 + [True]
    assert found.pooled == without.pooled


def test_a_method_of_a_smaller_spread_does_not_count_and_is_not_set_apart():
    found = pool_spread([*ALIKE[:4], ALIKE[:4].mean(axis=0)])
    without = pool_spread(ALIKE[:4])
    assert found is not None
    assert without is not None
    assert not found.wider.any()
    assert found.pooled == without.pooled


@pytest.mark.parametrize(
    "table",
    [
        [[1, 2, 4], [2, 5, 4]],  # two methods
        [[1], [2], [4]],  # one seed
        [[1, 2], [1, 2], [3, 5]],  # two that differ
        [[1, 2, 3], [2, 3, 4], [5, 6, 7]],  # nothing but methods and seeds
    ],
)
def test_without_a_common_spread(table):
    assert pool_spread(table) is None


def _calls(arms, seeds, spreads, times=1500):
    """How often differences of 0 to the first method are called one, by the pooled spread."""
    rng = np.random.default_rng([arms, seeds])
    calls = np.zeros(arms)
    for _ in range(times):
        table = rng.normal(size=(arms + 1, seeds)) * np.array(spreads)[:, None]
        found = pool_spread(table)
        for i in range(1, arms + 1):
            own = found is None or found.wider[0] or found.wider[i]
            pooled = None if own else found.pooled
            calls[i - 1] += compare_paired(table[i], table[0], pooled=pooled).p_value < 0.05
    return calls / times


@pytest.mark.parametrize("seeds", [3, 4, 6])
@pytest.mark.parametrize("spreads", [[1, 1, 1, 10], [10, 1, 1, 1]])
def test_the_test_holds_its_level_with_one_method_of_ten_times_the_spread(seeds, spreads):
    # An ANOVA of all methods calls a fifth of them; .07 is what three seeds leave of it.
    assert _calls(3, seeds, spreads).max() < 0.09
