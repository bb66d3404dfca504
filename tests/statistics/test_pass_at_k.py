"""pass@k and entropies of answers."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.errors import AdvsweepError
from advsweep.statistics import answer_entropy, mean_over_problems, pass_at_k
from advsweep.statistics.pass_at_k import rarefied_entropy


def exact(n: int, c: int, k: int) -> float:
    return float(1 - Fraction(math.comb(n - c, k), math.comb(n, k)))


def test_worked_values() -> None:
    # One of eight: k/8. Two of four with k = 2: 1 - 1/6.
    assert pass_at_k(8, 1, [1, 2, 8]).tolist() == pytest.approx([1 / 8, 1 / 4, 1.0])
    assert pass_at_k(4, 2, 2).item() == pytest.approx(5 / 6)


@given(st.data())
def test_against_exact_fractions(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 300))
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k).item() == pytest.approx(exact(n, c, k), rel=1e-12, abs=0)


def test_undefined_where_there_are_fewer_samples_than_k() -> None:
    values = pass_at_k([4, 8], [2, 2], 8)
    assert np.isnan(values[0])
    assert values[1] == 1.0


def test_means_are_over_the_problems_that_have_a_value() -> None:
    # pass@4 is undefined for the first problem of both rows, and for all of the last row.
    table = np.stack([pass_at_k([3, 4, 4], c, 4) for c in ([0, 4, 0], [3, 4, 4])])
    assert mean_over_problems(table).tolist() == [0.5, 1.0]
    assert np.isnan(mean_over_problems(pass_at_k([3, 0], [0, 0], 4)))


@pytest.mark.parametrize(
    ("n", "c", "k", "message"),
    [
        (4, 5, 1, "0 <= c <= n"),
        (4, -1, 1, "0 <= c <= n"),
        (4, 2, 0, "k >= 1"),
        (4.0, 2, 1, "integers"),
        (4, 2, 1.5, "integers"),
    ],
)
def test_impossible_counts_are_refused(n: float, c: int, k: float, message: str) -> None:
    with pytest.raises(AdvsweepError, match=message):
        pass_at_k(n, c, k)


def test_worked_entropies() -> None:
    # 1/2, 1/4, 1/4: (ln 2)/2 + 2 (ln 4)/4 = 1.5 ln 2.
    assert answer_entropy([4, 2, 2]) == pytest.approx(1.5 * math.log(2))


@pytest.mark.parametrize("counts", [[], [0, 0], [3, -1]])
def test_no_answers_and_negative_counts_are_refused(counts: list[int]) -> None:
    with pytest.raises(AdvsweepError, match="expected counts of answers"):
        answer_entropy(counts)


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
