"""Student t intervals, and intervals by resampling problems."""

from __future__ import annotations

import math

import numpy as np
import pytest

from advsweep.statistics import (
    bootstrap_over_problems,
    student_t_interval,
)


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


NAN = float("nan")


class TestOverProblems:
    def test_of_many_problems_it_is_students(self):
        values = np.random.default_rng(0).binomial(8, 0.3, 400) / 8
        found, t = bootstrap_over_problems(values), student_t_interval(values)
        assert (found.mean, found.n) == (t.mean, t.n)
        width = t.high - t.low
        assert (found.low, found.high) == pytest.approx((t.low, t.high), abs=0.03 * width)

    @pytest.mark.slow
    @pytest.mark.parametrize(("n", "within"), [(5, 0.04), (10, 0.02), (30, 0.02)])
    def test_covers_the_mean_of_normal_values(self, n, within):
        # Plain quantiles cover it in 83, 91 and 94 %. Five values have only 126 different
        # resamples, so that even the outermost ends are a little too near.
        rng = np.random.default_rng(n)
        found = [bootstrap_over_problems(rng.normal(size=n), resamples=1000) for _ in range(1000)]
        assert np.mean([f.low <= 0 <= f.high for f in found]) == pytest.approx(0.95, abs=within)

    def test_skew_moves_both_ends(self):
        # One problem in ten is solved always: the interval reaches farther up than down.
        found = bootstrap_over_problems([1.0] * 5 + [0.0] * 45)
        assert found.high - found.mean > 1.2 * (found.mean - found.low)

    def test_problems_without_a_value_are_left_out(self):
        with_nan = bootstrap_over_problems([0.1, NAN, 0.5, 0.9, NAN])
        assert with_nan == bootstrap_over_problems([0.1, 0.5, 0.9])
        assert with_nan.n == 3

    def test_one_problem_has_no_interval(self):
        found = bootstrap_over_problems([0.7])
        assert (found.mean, found.n) == (0.7, 1)
        assert np.isnan(found[1:3]).all()
        assert math.isnan(bootstrap_over_problems([NAN]).mean)


def test_many_resamples_are_drawn_in_portions(monkeypatch):
    import advsweep.statistics.intervals as module

    scores = np.random.default_rng(0).normal(size=5)
    whole = bootstrap_over_problems(scores)
    monkeypatch.setattr(module, "_AT_ONCE", 1000)
    assert bootstrap_over_problems(scores) == whole
