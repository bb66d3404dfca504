"""Baselines of least variance and of a greedy rollout: opo, optimal_token_baseline, remax."""

from __future__ import annotations

import math

import pytest
import torch

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator

REWARDS = torch.tensor([[1.0, 0.0]], dtype=torch.float64)


def test_opo_weighs_rewards_by_length() -> None:
    lengths = torch.tensor([[1.0, 3.0]])
    # b = (1 · 1 + 3 · 0)/4
    values = build_estimator("opo")(GroupBatch(rewards=REWARDS, lengths=lengths))
    assert values.tolist() == [[0.75, -0.25]]
    equal = GroupBatch(rewards=REWARDS, lengths=torch.full((1, 2), 7.0))
    assert torch.equal(build_estimator("opo")(equal), build_estimator("dr_grpo")(equal))
    empty = GroupBatch(rewards=REWARDS, lengths=torch.zeros(1, 2))
    assert build_estimator("opo")(empty).isfinite().all()


def test_remax_subtracts_the_greedy_reward() -> None:
    batch = GroupBatch(rewards=REWARDS.repeat(2, 1), greedy_rewards=torch.tensor([1.0, 0.5]))
    assert build_estimator("remax")(batch).tolist() == [[0, -1], [0.5, -0.5]]
    unknown = GroupBatch(rewards=REWARDS, greedy_rewards=torch.tensor([math.nan]))
    with pytest.raises(BatchError, match=r"greedy_rewards: expected finite numbers, got \[nan\]"):
        build_estimator("remax")(unknown)


def test_optimal_token_baseline() -> None:
    batch = GroupBatch(
        rewards=REWARDS,
        lengths=torch.tensor([[2.0, 1.0]]),
        token_grad_norms=torch.tensor([[[0.5, 0.25], [1.0, 9.0]]]),
    )
    # b = (0.5 · 1 + 1 · 0)/1.5 at the first token; one rollout alone has a second one.
    values = build_estimator("optimal_token_baseline")(batch)
    assert values.flatten().tolist() == pytest.approx([2 / 3, 1, -1 / 3, 0], abs=1e-8)
    values = build_estimator("optimal_token_baseline", zero_tail=False)(batch)
    assert values.flatten().tolist() == pytest.approx([2 / 3, 0, -1 / 3, 0], abs=1e-7)


def test_norms_that_rounding_made_negative_are_no_weights() -> None:
    # 1 - 2π + Σ π² of a sure token is 0, and may be -6e-8 in single precision. With the weights
    # 6e-8 and -5e-8 - 1e-8 = -6e-8, whose sum is 0, the baseline would be 0/0 or a million.
    norms = torch.tensor([[[6e-8, 0.0], [-5e-8, -1e-8]]], dtype=torch.float64)
    batch = GroupBatch(rewards=REWARDS, lengths=torch.tensor([[2.0, 2.0]]), token_grad_norms=norms)
    for options in ({}, {"zero_tail": False}, {"zero_tail": False, "eps": 0.0}):
        values = build_estimator("optimal_token_baseline", **options)(batch)
        assert values.abs().max() <= 1
    # All weight is the first rollout's: b is its reward.
    values = build_estimator("optimal_token_baseline", eps=0.0)(batch)
    assert values.tolist() == [[[0, 0], [-1, -1]]]
