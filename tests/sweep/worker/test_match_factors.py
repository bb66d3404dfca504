"""The search of a calibration for its factor: few trials, and never out of the bracket."""

from __future__ import annotations

import math

import pytest

from advsweep.sweep.worker.calibration import MOST_TRIALS, best_trial, next_factor

Trials = list[tuple[float, float]]


def searched(value_at, target, most=MOST_TRIALS):
    trials: Trials = []
    while (factor := next_factor(trials, (1.0, target), most=most)) is not None:
        trials.append((factor, value_at(factor)))
    return trials


def test_a_proportional_quantity_takes_two_trials():
    # q = 3 f and target 6: f = 1 gives 3, and 6/3 = 2 is exact.
    assert searched(lambda f: 3 * f, 6.0) == [(1.0, 3.0), (pytest.approx(2.0), 6.0)]


def test_a_power_is_found_by_its_slope():
    # log q = 0.5 log f: from q(1) = 1, slope 1 proposes 4 for target 4, where q is 2; the secant
    # has slope log 2 / log 4 = 1/2 and proposes 4 · (4/2)² = 16, which is exact.
    factors = [factor for factor, _ in searched(lambda f: f**0.5, 4.0)]
    assert factors == pytest.approx([1, 4, 16])


def test_a_rate_that_breaks_the_training_bounds_the_search():
    near = pytest.approx(3.0, rel=0.02)
    trials = searched(lambda f: math.inf if f > 3 else f, 3.0, most=8)
    assert best_trial(trials, (1.0, 3.0)) == (near, near)
    broken = searched(lambda f: math.inf if f >= 0.1 else f, 0.05)
    assert broken[:2] == [(1.0, math.inf), (0.01, 0.01)]
    best = best_trial(broken, (1.0, 0.05))
    assert best is not None
    assert best[0] == pytest.approx(0.05, rel=0.02)


def test_a_quantity_that_never_moves_has_no_best():
    trials = searched(lambda f: 0.0, 1.0, most=3)
    assert [factor for factor, _ in trials] == [1, 100, 10_000]
    assert best_trial(trials, (1.0, 1.0)) is None
