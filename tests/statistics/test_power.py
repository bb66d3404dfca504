"""How many seeds are needed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from advsweep.errors import AdvsweepError
from advsweep.statistics import detectable_difference, power_of_test, seeds_needed


@pytest.mark.parametrize(
    ("size", "power", "level", "expected"),
    # As G*Power and R's power.t.test(type = "paired") have them, rounded up.
    [(0.5, 0.8, 0.95, 34), (0.8, 0.8, 0.95, 15), (0.2, 0.8, 0.95, 199), (0.5, 0.95, 0.95, 54)],
)
def test_published_numbers(size, power, level, expected):
    assert seeds_needed(1, size, power, level) == expected
    assert seeds_needed(3, -3 * size, power, level) == expected


@given(st.floats(0.05, 20), st.floats(0.3, 0.99), st.floats(0.8, 0.99))
def test_one_seed_less_would_not_do(size, power, level):
    n = seeds_needed(2, 2 * size, power, level)
    assert n >= 2
    assert power_of_test(2, 2 * size, n, level) >= power
    if n > 2:
        assert power_of_test(2, 2 * size, n - 1, level) < power


@pytest.mark.parametrize(("n", "size"), [(3, 2.0), (5, 1.5), (20, 0.5)])
def test_power_is_the_share_of_tests_that_see_it(n, size):
    differences = np.random.default_rng(n).normal(size, 1, (20_000, n))
    seen = scipy.stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05
    # Three standard errors of 20,000 draws are .011.
    assert power_of_test(1, size, n) == pytest.approx(seen.mean(), abs=0.011)


def test_without_a_difference_the_power_is_that_of_a_false_call():
    assert power_of_test(1, 0, 7) == pytest.approx(0.05)
    assert power_of_test(1, 0, 7, 0.9) == pytest.approx(0.1)


def test_power_grows_to_one_however_large_the_difference():
    powers = [power_of_test(1, size, n) for n in (2, 5, 30) for size in np.linspace(0, 40, 200)]
    assert not np.isnan(powers).any()
    assert all((np.diff(np.split(np.array(powers), 3)) > -1e-9).ravel())


@given(st.floats(0.01, 100), st.integers(2, 500), st.floats(0.3, 0.99))
def test_detectable_differences_have_that_power(sd, n, power):
    difference = detectable_difference(sd, n, power)
    assert power_of_test(sd, difference, n) == pytest.approx(power, abs=1e-6)


def test_extremes():
    assert seeds_needed(1e-6, 1) == 2
    # (z(.975) + z(.8))² = 7.84888 over the squared size.
    assert seeds_needed(1, 1e-4) == pytest.approx(7.84888e8, rel=1e-5)
    assert math.isnan(detectable_difference(1, 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 0), "difference: expected a number other than 0"),
        ((1, math.nan), "difference: expected"),
        ((0, 1), "standard deviation: expected a number above 0"),
        ((math.nan, 1), "standard deviation"),
        ((1, 1, 1.2), "power: expected"),
        ((1, 1, 0.04), "more than 1 - level"),
        ((1, 1, 0.8, 95), "level: expected"),
    ],
)
def test_what_has_no_answer_is_refused(arguments, message):
    with pytest.raises(AdvsweepError, match=message):
        seeds_needed(*arguments)


def test_one_seed_has_no_power():
    with pytest.raises(AdvsweepError, match="at least 2 seeds"):
        power_of_test(1, 1, 1)
