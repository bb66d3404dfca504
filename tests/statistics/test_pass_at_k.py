"""pass@k."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.errors import AdvsweepError
from advsweep.statistics import mean_over_problems, pass_at_k


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
