"""How many seeds are needed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from advsweep.errors import AdvsweepError
from advsweep.statistics import seeds_needed


@pytest.mark.parametrize(
    ("size", "power", "expected"),
    # As G*Power and R's power.t.test(type = "paired") have them, rounded up.
    [(0.5, 0.8, 34), (0.8, 0.8, 15), (0.2, 0.8, 199), (0.5, 0.95, 54)],
)
def test_published_numbers(size, power, expected):
    assert seeds_needed(1, size, power) == expected
    assert seeds_needed(3, -3 * size, power) == expected


def _power(size: float, n: int) -> float:
    """Return P(|T| > t) for noncentral t with noncentrality size · √n."""
    t = scipy.stats.t.ppf(0.975, n - 1)
    noncentral = scipy.stats.nct(n - 1, size * math.sqrt(n))
    return float(noncentral.sf(t) + np.nan_to_num(noncentral.cdf(-t)))


@given(st.floats(0.05, 20), st.floats(0.3, 0.99))
def test_one_seed_less_would_not_do(size, power):
    n = seeds_needed(2, 2 * size, power)
    assert n >= 2
    assert _power(size, n) >= power - 1e-9
    if n > 2:
        assert _power(size, n - 1) < power + 1e-9


def test_extremes():
    assert seeds_needed(1e-6, 1) == 2
    # (z(.975) + z(.8))² = 7.84888 over the squared size.
    assert seeds_needed(1, 1e-4) == pytest.approx(7.84888e8, rel=1e-5)


@pytest.mark.parametrize("arguments", [(1, 0), (1, math.nan), (0, 1), (math.nan, 1), (1, 1, 1.2)])
def test_what_has_no_answer_is_refused(arguments):
    with pytest.raises(AdvsweepError, match="expected a standard deviation above 0"):
        seeds_needed(*arguments)
