"""Baselines, reweighted and signed estimators: reductions and properties."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator

# Conventions of frameworks


# tests/peers holds the preset `trl` against TRL itself.


@pytest.mark.parametrize("preset", ["paper", "trl", "verl", "released"])
def test_a_group_of_one_gets_nothing(advantages: Callable[..., Tensor], preset: str) -> None:
    # TRL agrees; verl and A-GRAE's code give the reward itself, as if its mean were 0.
    assert advantages({"name": "grpo", "preset": preset}, [[1.0], [0.9]]).tolist() == [[0], [0]]


def test_formula_turns_rounding_into_noise_and_exact_does_not() -> None:
    batch = GroupBatch(rewards=torch.full((1, 6), 0.9))
    noise = build_estimator("grpo", preset="verl")(batch)
    assert noise.abs().max() > 0
    exact = build_estimator("grpo", preset="verl", zero_variance="exact")(batch)
    assert torch.equal(exact, torch.zeros(1, 6))


def test_formula_reads_zero_by_zero_as_zero(advantages: Callable[..., Tensor]) -> None:
    spec = {"name": "grpo", "zero_variance": "formula"}
    assert advantages(spec, [[1.0] * 8, [0.0] * 8]).tolist() == [[0.0] * 8] * 2


def test_identity_is_of_the_resolved_conventions() -> None:
    trl = build_estimator("grpo", preset="trl")
    spelt_out = build_estimator("grpo", std="sample", eps=1e-4, zero_variance="formula")
    assert trl.identity() == spelt_out.identity()
    assert trl.identity() != build_estimator("grpo").identity()


def test_tolerance_widens_what_counts_as_homogeneous(advantages: Callable[..., Tensor]) -> None:
    rewards = [[0.5, 0.505], [0.5, 0.6]]
    assert advantages("grpo", rewards)[0].tolist() == pytest.approx([-1, 1])
    values = advantages({"name": "grpo", "tolerance": 0.01}, rewards)
    assert values[0].tolist() == [0, 0]
    assert values[1].tolist() == pytest.approx([-1, 1])


@pytest.mark.parametrize("name", ["power_alpha", "easy_power"])
def test_normalising_a_large_exponent_does_not_overflow(name: str) -> None:
    # C is about e (α+1)/4, so a group of p = 1/4 (or 3/4) gets C 3/4 · 0.75^999 or so: 0.
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.float64)
    values = build_estimator(name, alpha=1000, normalize=True)(GroupBatch(rewards=rewards))
    assert torch.allclose(values, torch.zeros_like(values))


def test_maxrl_refuses_different_rewards_with_mean_zero() -> None:
    estimator = build_estimator("maxrl")
    with pytest.raises(BatchError, match="divides by a prompt's mean reward"):
        estimator(GroupBatch(rewards=torch.tensor([[1.0, -1.0]])))


@pytest.mark.parametrize("row", [[1.0, -1.0], [1.5, 0.5]])
def test_power_norm_refuses_different_rewards_at_a_rate_of_zero_or_one(row: list[float]) -> None:
    batch = GroupBatch(rewards=torch.tensor([row]))
    with pytest.raises(BatchError, match=r"divides by a power of p\(1-p\)"):
        build_estimator("power_norm")(batch)
    values = build_estimator("power_norm", gamma=-0.5)(batch)
    assert torch.equal(values, torch.zeros(1, 2)), "a weight of 0 instead of an infinite one"


@pytest.mark.parametrize(("name", "kept"), [("psr", 1.0), ("nsr", 0.0)])
def test_rollouts_of_weight_zero_can_be_dropped(name: str, kept: float) -> None:
    rewards = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    mask = torch.tensor([[True, True, False, False]] * 3)
    assert build_estimator(name).compute(GroupBatch(rewards=rewards)).keep.all()
    estimator = build_estimator(name, drop_zero_rows=True)
    advantages = estimator.compute(GroupBatch(rewards=rewards))
    assert torch.equal(advantages.keep, rewards == kept)
    assert torch.equal(advantages.keep, advantages.values != 0)
    masked = estimator.compute(GroupBatch(rewards=rewards, mask=mask))
    assert torch.equal(masked.keep, (rewards == kept) & mask)
