"""asym_re, quantile and mc_grpo."""

from __future__ import annotations

import math

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
