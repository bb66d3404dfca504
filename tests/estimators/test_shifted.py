"""asym_re, quantile and mc_grpo."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from advsweep.estimators import GroupBatch, build_estimator

GRADED = st.lists(
    st.lists(st.sampled_from([-1.0, 0.0, 0.1, 0.5, 0.9, 1.0, 7.5]), min_size=7, max_size=7),
    min_size=1,
    max_size=4,
)


QAE = {"convention": "standard", "scale": "std"}


@pytest.mark.parametrize(
    ("name", "options", "success", "failure"),
    [
        ("asym_re", {}, 0.74, -0.26),  # 1 - 1/4 - 0.01, 0 - 1/4 - 0.01
        ("asym_re", {"delta": -0.5}, 1.25, 0.25),
        ("asym_re", {"baseline": "none"}, 0.99, -0.01),
        ("asym_re", {"baseline": "min", "delta": 0.25}, 0.75, -0.25),
        # p = 1/4: as printed Q is 0 up to τ, that is from τ = 1/4 on; the usual
        # τ-quantile of six failures in eight is 0 up to τ = 3/4.
        ("quantile", {}, 1, 0),
        ("quantile", {"tau": 0.25}, 1, 0),
        ("quantile", {"tau": 0.24}, 0, -1),
        ("quantile", {"tau": 0.75, "convention": "standard"}, 1, 0),
        ("quantile", {"tau": 0.76, "convention": "standard"}, 0, -1),
        # QAE: 1/σ, σ = √3/4 over G, √(3/14) over G-1.
        ("quantile", {"tau": 0.4, **QAE, "std": "population"}, 2.3094010768, 0),
        ("quantile", {"tau": 0.4, **QAE, "std": "sample"}, 2.1602468995, 0),
        ("mc_grpo", {}, 1, 0),
        ("mc_grpo", {"median": "midpoint"}, 1, 0),
    ],
)
def test_worked_values(
    success_and_failure: Callable[..., tuple[float, float]],
    name: str,
    options: dict[str, Any],
    success: float,
    failure: float,
) -> None:
    assert success_and_failure(name, **options) == pytest.approx((success, failure), abs=1e-9)


# asym_re


@pytest.mark.parametrize(
    ("baseline", "same"), [("mean", "dr_grpo"), ("none", "reinforce"), ("min", "min_baseline")]
)
@given(rows=GRADED, delta=st.floats(-2, 2))
def test_asym_re_shifts_another_estimator(
    baseline: str, same: str, rows: list[list[float]], delta: float
) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    values = build_estimator("asym_re", baseline=baseline, delta=delta)(batch)
    assert torch.allclose(values + delta, build_estimator(same)(batch), atol=1e-12)
    if delta == 0:
        assert torch.equal(values, build_estimator(same)(batch))


def test_asym_re_pushes_homogeneous_groups_down(advantages: Callable[..., Tensor]) -> None:
    values = advantages({"name": "asym_re", "delta": 0.5}, [[1.0] * 3, [0.0] * 3, [0.1] * 3])
    assert values.tolist() == [[-0.5] * 3] * 3


# quantile


def test_interpolated_quantile(advantages: Callable[..., Tensor]) -> None:
    # 5 of 8 right: rank 0.4 · 7 = 2.8 from 0 lies between the last failure and a success.
    spec = {"name": "quantile", "tau": 0.4, "convention": "standard", "interpolate": True}
    row = [[1.0] * 5 + [0.0] * 3]
    assert advantages(spec, row)[0, [0, 7]].tolist() == pytest.approx([0.2, -0.8])
    assert advantages({**spec, "interpolate": False}, row)[0, [0, 7]].tolist() == [0, -1]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12), st.floats(0.01, 0.99))
def test_interpolated_quantile_is_the_usual_linear_one(row: list[float], tau: float) -> None:
    rewards = torch.tensor([row], dtype=torch.float64)
    expected = rewards - torch.quantile(rewards, tau, dim=1, keepdim=True)
    options = {"tau": tau, "convention": "standard", "interpolate": True}
    values = build_estimator("quantile", **options)(GroupBatch(rewards=rewards))
    assert torch.allclose(values, expected, atol=1e-6)
    masked = torch.cat((rewards, torch.full((1, 2), math.nan).double()), dim=1)
    batch = GroupBatch(rewards=masked, mask=masked.isfinite())
    assert torch.allclose(build_estimator("quantile", **options)(batch)[:, :-2], values)


@given(st.integers(1, 20), st.data(), st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.9]))
def test_quantile_of_binary_groups_switches_after_tau(
    size: int, data: st.DataObject, tau: float
) -> None:
    successes = data.draw(st.integers(0, size))
    rewards = (torch.arange(size) < successes).double()[None]
    p = Fraction(successes, size)
    # In exact arithmetic, where 0.3 is 3/10.
    for convention, switch in (("printed", tau), ("standard", 1 - tau)):
        estimator = build_estimator("quantile", tau=tau, convention=convention)
        baseline = 0.0 if p <= Fraction(str(round(switch, 6))) else 1.0
        baseline = rewards[0, 0].item() if successes in (0, size) else baseline
        assert torch.equal(estimator(GroupBatch(rewards=rewards)), rewards - baseline)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12), st.floats(0.01, 0.99))
def test_quantile_is_the_smallest_reward_that_enough_others_do_not_exceed(
    row: list[float], tau: float
) -> None:
    rewards = torch.tensor([row], dtype=torch.float64)
    batch = GroupBatch(rewards=rewards)
    for convention, level in (("printed", 1 - tau), ("standard", tau)):
        values = build_estimator("quantile", tau=tau, convention=convention)(batch)
        enough = [x for x in row if sum(y <= x for y in row) / len(row) >= level - 1e-9]
        assert torch.equal(values, rewards - min(enough))


@given(rows=GRADED)
def test_quantile_moves_with_its_rewards(rows: list[list[float]]) -> None:
    rewards = torch.tensor(rows, dtype=torch.float64)
    estimator = build_estimator("quantile", tau=0.3)
    values = estimator(GroupBatch(rewards=rewards))
    # An order statistic is shifted and scaled as rewards are; by powers of two, exactly.
    assert torch.equal(estimator(GroupBatch(rewards=4 * rewards)), 4 * values)
    assert (values == 0).any(dim=1).all(), "the quantile is one of the rewards"


def test_quantile_at_a_rate_that_is_tau_only_without_rounding() -> None:
    # 1 - 0.7 is 0.30000000000000004, of which ten are more than three.
    rewards = (torch.arange(10) < 7).double()[None]
    values = build_estimator("quantile", tau=0.7)(GroupBatch(rewards=rewards))
    assert torch.equal(values, rewards)


def test_quantile_of_what_the_mask_leaves() -> None:
    rewards = torch.tensor([[5.0, 1, 2, 9, 9], [9, 9, 9, 9, 3], [9, 9, 9, 9, 9]])
    mask = torch.tensor([[True, True, True, False, False], [False] * 4 + [True], [False] * 5])
    values = build_estimator("quantile", tau=0.4)(GroupBatch(rewards=rewards, mask=mask))
    # 1-τ = 0.6 of three: the second, 2.
    assert values.tolist() == [[3, -1, 0, 0, 0], [0] * 5, [0] * 5]


# mc_grpo


@given(rows=GRADED, size=st.integers(1, 7))
def test_mc_grpo_is_the_half_quantile(rows: list[list[float]], size: int) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64)[:, :size])
    values = build_estimator("mc_grpo")(batch)
    assert torch.equal(values, build_estimator("quantile", tau=0.5)(batch))
    assert torch.equal(values, batch.rewards - batch.rewards.median(dim=1, keepdim=True).values)


@given(rows=GRADED, size=st.integers(1, 7))
def test_midpoint_is_the_usual_median(rows: list[list[float]], size: int) -> None:
    rewards = torch.tensor(rows, dtype=torch.float64)[:, :size]
    values = build_estimator("mc_grpo", median="midpoint")(GroupBatch(rewards=rewards))
    expected = rewards - rewards.quantile(0.5, dim=1, keepdim=True)
    assert torch.allclose(values, expected, atol=1e-12)


def test_median_of_what_the_mask_leaves() -> None:
    rewards = torch.tensor([[5.0, 1, 2, 4, 9], [9, 9, 9, 9, 3]])
    mask = torch.tensor([[True, True, True, True, False], [False] * 4 + [True]])
    batch = GroupBatch(rewards=rewards, mask=mask)
    assert build_estimator("mc_grpo")(batch).tolist() == [[3, -1, 0, 2, 0], [0] * 5]
    values = build_estimator("mc_grpo", median="midpoint")(batch)
    assert values.tolist() == [[2, -2, -1, 1, 0], [0] * 5]
