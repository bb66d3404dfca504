"""t2t."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator


def batch_of(rewards: list[list[float]], lengths: list[list[float]], **inputs: Any) -> GroupBatch:
    return GroupBatch(
        rewards=torch.tensor(rewards, dtype=torch.float64), lengths=torch.tensor(lengths), **inputs
    )


def test_worked_values() -> None:
    # p = 1/2, L = 1/2, 1, 1/4, 1, α = 0.4: R = 0.9, 0.8, 0.05, 0.2, of mean 0.4875 and
    # variance (0.17015625 + 0.09765625 + 0.19140625 + 0.08265625) / 4 = 0.13546875.
    batch = batch_of([[1, 1, 0, 0]], [[10.0, 20, 5, 20]])
    sigma = math.sqrt(0.13546875)
    expected = [0.4125 / sigma, 0.3125 / sigma, -0.4375 / sigma, -0.2875 / sigma]
    values = build_estimator("t2t", alpha=0.4)(batch)
    assert values[0].tolist() == pytest.approx(expected)
    # Against 40 tokens all lengths count half: R = 0.95, 0.9, 0.025, 0.1, of mean 0.49375.
    values = build_estimator("t2t", alpha=0.4, max_len=40)(batch)
    shaped = torch.tensor([0.95, 0.9, 0.025, 0.1], dtype=torch.float64)
    sigma = shaped.std(correction=0).item()
    assert values[0].tolist() == pytest.approx([(r - 0.49375) / sigma for r in shaped.tolist()])


def test_equal_rewards_and_lengths_give_exactly_nothing() -> None:
    lengths = [[7.0] * 9, [0.0] * 9, [3.0] * 9]
    values = build_estimator("t2t", max_len=10)(batch_of([[1] * 9, [0] * 9, [0] * 9], lengths))
    assert torch.equal(values, torch.zeros(3, 9, dtype=torch.float64))


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([[1.0, -1.0]], {}, "expected tokens from 0 to max_len = inf, got -1 to 1"),
        ([[1.0, 9.0]], {"max_len": 8}, "expected tokens from 0 to max_len = 8, got 1 to 9"),
        ([[1.0, float("nan")]], {}, "max_len = inf, got nan to nan"),
        ([[1.0, float("inf")]], {}, "max_len = inf, got 1 to inf"),
    ],
)
def test_lengths_out_of_range_are_refused(
    lengths: list[list[float]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BatchError, match=message):
        build_estimator("t2t", **options)(batch_of([[1, 0]], lengths))
