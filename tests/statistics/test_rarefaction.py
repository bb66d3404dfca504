"""The entropy of m right answers, exactly: against all choices of m, and by its properties."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.statistics import answer_entropy, rarefied_entropy

COUNTS = st.lists(st.integers(1, 6), min_size=1, max_size=6)


def _rarefied(counts: list[int], m: int) -> float:
    [value] = rarefied_entropy(np.array(counts), np.array([sum(counts)]), m)
    return float(value)


def _enumerated(counts: list[int], m: int) -> float:
    answers = [name for name, count in enumerate(counts) for _ in range(count)]
    entropies = [
        answer_entropy(list(Counter(chosen).values()))
        for chosen in itertools.combinations(answers, m)
    ]
    return math.fsum(entropies) / len(entropies)


@pytest.mark.parametrize("counts", [[3], [1, 1, 1, 1], [4, 2, 1], [5, 3, 2, 1], [7, 1, 1, 1, 1]])
def test_it_is_the_mean_over_all_choices(counts: list[int]) -> None:
    for m in range(1, sum(counts) + 1):
        assert _rarefied(counts, m) == pytest.approx(_enumerated(counts, m), abs=1e-12)


@given(st.lists(COUNTS | st.just([]), min_size=1, max_size=5), st.integers(1, 8))
def test_problems_do_not_depend_on_each_other(problems: list[list[int]], m: int) -> None:
    """Those with fewer than m answers, none included, have no value."""
    found = rarefied_entropy(
        np.array([count for counts in problems for count in counts], np.int64),
        np.array([sum(counts) for counts in problems]),
        m,
    )
    alone = [_rarefied(counts, m) if sum(counts) >= m else math.nan for counts in problems]
    np.testing.assert_allclose(found, alone, atol=1e-12)


def test_large_counts_keep_their_precision() -> None:
    """Of very many answers, half of each kind, 2 differ with a chance of 1/2 · n/(n - 1/2)."""
    n = 10**6
    expected = math.log(2) * n / (2 * n - 1)
    assert _rarefied([n, n], 2) == pytest.approx(expected, rel=1e-8)
