"""Student t intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from advsweep.statistics import student_t_interval


def test_worked_values() -> None:
    # Mean 2, s = 1, n = 3: t(0.975, 2) = 4.302652730, half width 4.302652730 / √3.
    interval = student_t_interval([1.0, 2.0, 3.0])
    half = 4.302652729911275 / math.sqrt(3)
    assert interval == pytest.approx((2.0, 2 - half, 2 + half, 3))
    # t(0.95, 4) = 2.131846786; 0..4 has s = √2.5.
    interval = student_t_interval(range(5), level=0.9)
    half = 2.1318467863266495 * math.sqrt(2.5 / 5)
    assert interval == pytest.approx((2.0, 2 - half, 2 + half, 5))


def test_no_value_has_no_mean() -> None:
    interval = student_t_interval([])
    assert interval.n == 0
    assert all(map(math.isnan, interval[:3]))


@pytest.mark.parametrize("n", [2, 5, 10, 30])
def test_covers_the_true_mean_as_often_as_it_says(n: int) -> None:
    samples = np.random.default_rng(n).normal(3.0, 2.0, size=(4000, n))
    intervals = [student_t_interval(sample) for sample in samples]
    covered = np.mean([i.low <= 3.0 <= i.high for i in intervals])
    assert covered == pytest.approx(0.95, abs=0.012)
