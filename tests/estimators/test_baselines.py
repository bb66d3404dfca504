"""reinforce, dr_grpo, min_baseline, relu, gpg, rloo and grpo."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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


@pytest.mark.parametrize(
    ("name", "options", "success", "failure"),
    [
        ("reinforce", {}, 1, 0),
        ("dr_grpo", {}, 0.75, -0.25),  # 1 - 1/4, 0 - 1/4
        ("min_baseline", {}, 1, 0),
        ("relu", {}, 0.75, 0),
        ("gpg", {}, 0.75, -0.25),
        ("gpg", {"f_norm": "sigma"}, 1.7320508076, -0.5773502692),
        ("rloo", {}, 0.8571428571, -0.2857142857),  # 1 - 1/7, 0 - 2/7
        ("grpo", {}, 1.7320508076, -0.5773502692),  # √(q/p) = √3, -√(p/q) = -1/√3
        # Sample σ = √(8/7 · 3/16) = √(3/14) = 0.4629100499: 0.75/σ, -0.25/σ.
        ("grpo", {"std": "sample"}, 1.6201851746, -0.5400617249),
        # with σ + ε = 1.4330127019 below the line
        ("grpo", {"eps": 1.0}, 0.5233728906, -0.1744576302),
        ("grpo", {"preset": "verl"}, 0.75 / (math.sqrt(3 / 14) + 1e-6), None),
        ("grpo", {"preset": "trl"}, 0.75 / (math.sqrt(3 / 14) + 1e-4), None),
        ("grpo", {"preset": "released"}, 0.75 / (math.sqrt(3 / 14) + 1e-6), None),
    ],
)
def test_worked_values(
    success_and_failure: Pair,
    name: str,
    options: dict[str, Any],
    success: float,
    failure: float | None,
) -> None:
    expected = (success, -success / 3 if failure is None else failure)
    assert success_and_failure(name, **options) == pytest.approx(expected, abs=1e-9)


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


@given(GRADED, st.floats(0.01, 100), st.floats(-10, 10))
def test_scale_and_shift_of_rewards(rows: list[list[float]], scale: float, shift: float) -> None:
    rewards = torch.tensor(rows, dtype=torch.float64)
    first, second = GroupBatch(rewards=rewards), GroupBatch(rewards=scale * rewards + shift)
    grpo, dr_grpo, rloo = (build_estimator(n) for n in ("grpo", "dr_grpo", "rloo"))
    assert torch.allclose(grpo(first), grpo(second), atol=1e-9)
    assert torch.allclose(scale * dr_grpo(first), dr_grpo(second), atol=1e-9)
    assert torch.allclose(scale * rloo(first), rloo(second), atol=1e-9)


@given(GRADED)
def test_rloo_leaves_each_rollout_out_of_its_own_baseline(rows: list[list[float]]) -> None:
    rewards = torch.tensor(rows, dtype=torch.float64)
    values = build_estimator("rloo")(GroupBatch(rewards=rewards))
    others = (rewards.sum(dim=1, keepdim=True) - rewards) / 5
    assert torch.allclose(values, rewards - others, atol=1e-12)
    # It is dr_grpo times G/(G-1).
    dr_grpo = build_estimator("dr_grpo")(GroupBatch(rewards=rewards))
    assert torch.allclose(values, 6 / 5 * dr_grpo, atol=1e-12)


@given(GRADED)
def test_min_baseline_gives_the_worst_nothing_and_the_rest_their_lead(
    rows: list[list[float]],
) -> None:
    rewards = torch.tensor(rows, dtype=torch.float64)
    values = build_estimator("min_baseline")(GroupBatch(rewards=rewards))
    assert torch.equal(values.amin(dim=1), torch.zeros(len(rows), dtype=torch.float64))
    # Differences between rollouts are those of the rewards, as in reinforce.
    differences = rewards - rewards[:, :1]
    assert torch.allclose(values - values[:, :1], differences, atol=1e-12)


@given(GRADED)
def test_relu_and_the_negative_part_make_dr_grpo(rows: list[list[float]]) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    positive = build_estimator("relu")(batch)
    negative = build_estimator("grpo_n", base="dr_grpo")(batch)
    assert (positive >= 0).all()
    assert torch.equal(positive + negative, build_estimator("dr_grpo")(batch))


@pytest.mark.parametrize(("f_norm", "same"), [("1", "dr_grpo"), (1, "dr_grpo"), ("sigma", "grpo")])
@given(rows=GRADED)
def test_gpg_is_dr_grpo_or_grpo(f_norm: Any, same: str, rows: list[list[float]]) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    values = build_estimator("gpg", f_norm=f_norm)(batch)
    assert torch.equal(values, build_estimator(same)(batch))


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


def test_explicit_fields_beat_the_preset() -> None:
    estimator = build_estimator("grpo", preset="trl", eps=1e-6, std="population")
    assert estimator.plain() == {
        "name": "grpo",
        "preset": "trl",
        "std": "population",
        "eps": 1e-6,
        "zero_variance": "formula",
        "tolerance": 0.0,
    }


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
