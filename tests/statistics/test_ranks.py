"""Intervals of ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from advsweep.statistics.comparison import RankInterval, holm, rank_intervals


def test_holm_multiplies_by_the_tests_that_are_left() -> None:
    # Sorted: .01 x 4, .02 x 3 = .06, .03 x 2 = .06, .04 x 1 rises to .06.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])


def test_methods_that_every_seed_orders_have_one_place_each() -> None:
    base = [0.10, 0.13, 0.11, 0.12, 0.14, 0.10]
    noise = [0.001, -0.001, 0.002, 0.0, -0.002, 0.001]
    methods = [
        {seed: b + shift + (n if shift else 0) for seed, (b, n) in enumerate(zip(base, noise))}  # noqa: B905
        for shift in (0.0, 0.2, 0.1)
    ]
    found = rank_intervals(methods, higher=True)
    assert found == [RankInterval(3, 3, 3), RankInterval(1, 1, 1), RankInterval(2, 2, 2)]
    assert rank_intervals(methods, higher=False)[0] == RankInterval(1, 1, 1)


def test_a_method_with_a_single_seed_takes_no_part() -> None:
    methods = [{0: 1.0, 1: 1.1}, {0: 5.0, 1: math.nan}, {0: 0.1, 1: 0.3}]
    first, none, last = rank_intervals(methods, higher=True)
    assert none is None
    assert first is not None
    assert last is not None
    assert (first.place, last.place) == (1, 2)
    assert first.high <= 2


def test_intervals_cover_the_true_rank() -> None:
    """Of 400 rankings of four methods whose order is known, at most 5 % of intervals miss."""
    rng = np.random.default_rng(11)
    means = np.array([0.0, 0.5, 0.5, 3.0])
    missed = 0
    for _ in range(400):
        values = means[:, None] + rng.normal(size=(4, 6)) + rng.normal(size=6)
        found = rank_intervals([dict(enumerate(row)) for row in values], higher=True)
        # The two equal methods share the places 2 and 3: an interval must hold one of both.
        for interval, places in zip(found, [(4,), (2, 3), (2, 3), (1,)], strict=True):
            assert interval is not None
            missed += not any(interval.low <= place <= interval.high for place in places)
    assert missed <= 0.05 * 4 * 400
