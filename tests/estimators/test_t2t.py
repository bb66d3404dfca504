"""t2t."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator

GROUPS = st.lists(
    st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.integers(0, 40)), min_size=6, max_size=6),
    min_size=1,
    max_size=4,
)


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


@given(GROUPS, st.floats(0, 0.99))
def test_mean_advantages_by_outcome(rows: list[list[tuple[float, int]]], alpha: float) -> None:
    rewards = torch.tensor([[r for r, _ in row] for row in rows], dtype=torch.float64)
    lengths = torch.tensor([[n for _, n in row] for row in rows], dtype=torch.float64)
    values = build_estimator("t2t", alpha=alpha)(GroupBatch(rewards=rewards, lengths=lengths))
    assert values.sum(dim=1).abs().max() < 1e-10
    for row, length, value in zip(rewards, lengths / lengths.amax(1, True), values, strict=True):
        p, solved = row.mean().item(), row == 1
        if not 0 < p < 1:
            continue
        length = length.nan_to_num(0.0)
        shaped = torch.where(solved, 1 - alpha * p * length, alpha * (1 - p) * length)
        sigma = shaped.std(correction=0).item()
        # K = 1 - α p L̄_S - α q L̄_F; q K / σ_R over successes, -p K / σ_R over failures.
        k = 1 - alpha * p * length[solved].mean() - alpha * (1 - p) * length[~solved].mean()
        assert value[solved].mean().item() == pytest.approx((1 - p) * k.item() / sigma)
        assert value[~solved].mean().item() == pytest.approx(-p * k.item() / sigma)


@given(GROUPS)
def test_without_alpha_it_is_grpo(rows: list[list[tuple[float, int]]]) -> None:
    batch = batch_of([[r for r, _ in row] for row in rows], [[n for _, n in row] for row in rows])
    assert torch.equal(build_estimator("t2t", alpha=0)(batch), build_estimator("grpo")(batch))


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
