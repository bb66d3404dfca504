"""Predictions by a line of least squares."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t

from advsweep.errors import AdvsweepError
from advsweep.statistics import predict


def test_a_prediction_by_hand():
    # Slope 1/2 and mean 2 at x = 2: 2.5 at x = 3. Residuals (.5, -1, .5): s² = 1.5 / 1,
    # and s² (1 + 1/3 + 1/2) = 2.75. One degree of freedom has t = 12.7062.
    found = predict([1, 2, 3], [2, 1, 3], 3)
    half = 12.706204736 * math.sqrt(2.75)
    assert found == pytest.approx((2.5, 2.5 - half, 2.5 + half, 3))


def test_points_on_a_line_leave_no_doubt():
    found = predict([0, 1, 2, 4], [1, 3, 5, 9], 10)
    assert found == pytest.approx((21, 21, 21, 4))


def test_the_interval_holds_new_values_as_often_as_it_says():
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 8)
    inside = 0
    for _ in range(2000):
        found = predict(x, 1 - x + rng.normal(0, 0.1, 8), 1.2, level=0.9)
        inside += found.low <= -0.2 + rng.normal(0, 0.1) <= found.high
    # Three standard deviations of 2,000 draws are 0.02.
    assert inside / 2000 == pytest.approx(0.9, abs=0.02)


def test_the_level_sets_the_width():
    narrow, wide = (predict([1, 2, 3, 4], [2, 1, 3, 3], 2, level) for level in (0.5, 0.99))
    ratio = t.ppf(0.995, 2) / t.ppf(0.75, 2)
    assert (wide.high - wide.mean) / (narrow.high - narrow.mean) == pytest.approx(ratio)


@pytest.mark.parametrize(("x", "y"), [([], []), ([1], [2]), ([1, 1, 1], [1, 2, 3])])
def test_without_two_places_there_is_no_line(x, y):
    found = predict(x, y, 1)
    assert np.isnan(found[:3]).all()
    assert found.n == len(x)


def test_two_points_give_a_line_and_no_interval():
    found = predict([1, 2], [1, 2], 3)
    assert found.mean == pytest.approx(3)
    assert np.isnan(found[1:3]).all()


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(AdvsweepError, match=r"\(2,\) and \(1,\)"):
        predict([1, 2], [1], 3)
