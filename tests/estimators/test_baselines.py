"""reinforce, dr_grpo, min_baseline, relu, gpg, rloo and grpo."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from advsweep.estimators import GroupBatch, build_estimator

Pair = Callable[..., tuple[float, float]]
GRADED = st.lists(
    st.lists(st.sampled_from([-1.0, 0.0, 0.1, 1 / 3, 0.5, 0.9, 1.0, 7.5]), min_size=6, max_size=6),
    min_size=1,
    max_size=4,
)


@given(GRADED, st.sampled_from([0.0, 1e-4, 0.5]))
def test_grpo_sums_to_zero_and_its_squares_to_the_closed_form(
    rows: list[list[float]], eps: float
) -> None:
    rewards = torch.tensor(rows, dtype=torch.float64)
    values = build_estimator("grpo", eps=eps)(GroupBatch(rewards=rewards))
    assert values.sum(dim=1).abs().max() < 1e-12
    # Σ A² = G σ² / (σ + ε)² (AVSPO, Eq. 14); 0 on homogeneous groups.
    sigma = rewards.std(dim=1, correction=0)
    mixed = rewards.amax(dim=1) > rewards.amin(dim=1)
    expected = torch.where(mixed, 6 * sigma**2 / (sigma + eps) ** 2, 0.0)
    assert torch.allclose(values.square().sum(dim=1), expected)
    assert values.abs().max() <= math.sqrt(6 - 1) + 1e-12


def test_rloo_gives_a_lone_scorable_rollout_nothing(advantages: Callable[..., Tensor]) -> None:
    mask = torch.tensor([[True, False, False], [True, True, False]])
    values = advantages("rloo", [[1.0, 0, 0], [1, 0, 0]], mask=mask)
    assert values.tolist() == [[0, 0, 0], [1, -1, 0]]


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
