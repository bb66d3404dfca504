"""grpo_lead."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from advsweep.estimators import GroupBatch, build_estimator


def group(rewards: list[float], lengths: list[float]) -> GroupBatch:
    return GroupBatch(
        rewards=torch.tensor([rewards], dtype=torch.float64), lengths=torch.tensor([lengths])
    )


def values_of(rewards: list[float], lengths: list[float], **options: float) -> list[float]:
    found: Tensor = build_estimator("grpo_lead", **options)(group(rewards, lengths))
    return found[0].tolist()


def weight(rate: float) -> float:
    return 0.4 + 1.1 / (1 + math.exp(10 * (rate - 0.75)))


def test_worked_values_in_double_precision() -> None:
    # Of right answers of 5000, 6000 and 9000 tokens s_L is √(13e6/3) = 2081.6659994661 (in float32
    # √2 makes it 2081.6660351), z = -5/6, -1/3 and 7/6 of 2000/s_L.
    values = values_of([1, 1, 1, 0], [5000, 6000, 9000, 5500])
    expected = [0.5125816716932, 0.4891432158928, 0.4221129515027, -2.2371308113641]
    assert values == pytest.approx(expected, abs=1e-12)


def test_worked_values_of_a_group_of_short_responses() -> None:
    # Rewards of 1 and -1: mean -1/2, sample σ √(6/7), so 1.5/σ w(1/4) and -0.5/σ w(3/4).
    values = values_of([1, 1, 0, 0, 0, 0, 0, 0], [5.0, 7.0] + [6.0] * 6)
    assert [values[0], values[7]] == pytest.approx([2.4183471262, -0.5130580845], abs=1e-9)
    assert values[0] == values[1]


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0, 1.499392),
        (1 / 8, 1.497881),
        (1 / 4, 1.492638),
        (1 / 2, 1.416556),
        (3 / 4, 0.95),
        (7 / 8, 0.644970),
        (1, 0.483444),
    ],
)
def test_worked_values_of_the_weight(rate: float, expected: float) -> None:
    assert weight(rate) == pytest.approx(expected, abs=5e-7)
    successes = round(8 * rate)
    rewards = [1.0] * successes + [0.0] * (8 - successes)
    weighted = values_of(rewards, [10.0] * 8)
    plain = values_of(rewards, [10.0] * 8, w_min=1, w_max=1)
    for reward, value, unweighted in zip(rewards, weighted, plain, strict=True):
        factor = expected if reward else weight(1 - rate)
        assert value == pytest.approx(unweighted * factor, abs=2e-6)


def test_lengths_count_only_above_the_threshold() -> None:
    # The mean of the three shortest is what counts, and it must exceed 4,000 tokens.
    short = values_of([1, 1, 0, 0], [3999, 9000, 4000, 4001])
    assert short[0] == short[1]
    long = values_of([1, 1, 0, 0], [4000, 9000, 4001, 4002])
    assert long[0] > long[1] > 0
    lower = values_of([1, 1, 0, 0], [10, 30, 20, 20], long_from=16)
    assert lower[0] > lower[1]


def test_homogeneous_groups() -> None:
    assert values_of([0, 0, 0], [5000, 6000, 7000]) == [0, 0, 0]
    assert values_of([1, 1, 1], [50, 60, 70]) == [0, 0, 0]
    # Of long right answers the shorter push up by w(1), the longer down by w(0).
    first, middle, last = values_of([1, 1, 1], [5000, 6000, 7000])
    assert first > abs(middle)
    assert last < 0
    assert -last / first == pytest.approx(weight(0) / weight(1), rel=0.1)


def test_a_single_right_answer_has_no_length_to_compare_with() -> None:
    for length in (4500.0, 90000.0):
        values = values_of([1, 0, 0], [length, 5000, 5000])
        assert values == pytest.approx(values_of([1, 0, 0], [10, 10, 10]))
