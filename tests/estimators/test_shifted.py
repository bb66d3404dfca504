"""asym_re, quantile and mc_grpo."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.estimators import GroupBatch, build_estimator

GRADED = st.lists(
    st.lists(st.sampled_from([-1.0, 0.0, 0.1, 0.5, 0.9, 1.0, 7.5]), min_size=7, max_size=7),
    min_size=1,
    max_size=4,
)


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


# quantile


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


def test_median_of_what_the_mask_leaves() -> None:
    rewards = torch.tensor([[5.0, 1, 2, 4, 9], [9, 9, 9, 9, 3]])
    mask = torch.tensor([[True, True, True, True, False], [False] * 4 + [True]])
    batch = GroupBatch(rewards=rewards, mask=mask)
    assert build_estimator("mc_grpo")(batch).tolist() == [[3, -1, 0, 2, 0], [0] * 5]
    values = build_estimator("mc_grpo", median="midpoint")(batch)
    assert values.tolist() == [[2, -2, -1, 1, 0], [0] * 5]
