"""passk_loo, passk_analytic and passk_mix."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator


def group(successes: int, size: int) -> Tensor:
    return (torch.arange(size) < successes).double()[None]


# passk_loo


@given(st.lists(st.floats(-5, 5), min_size=8, max_size=8), st.sampled_from([1, 2, 4, 8, None]))
def test_loo_against_maxima_with_and_without(row: list[float], k: int | None) -> None:
    rewards = torch.tensor([row], dtype=torch.float64)
    values = build_estimator("passk_loo", k=k)(GroupBatch(rewards=rewards))
    size = k or 8
    for i, value in enumerate(values[0].tolist()):
        start = i - i % size
        block = row[start : start + size]
        others = row[start:i] + row[i + 1 : start + size]
        assert value == max(block) - max(others, default=0.0)


def test_loo_leaves_masked_rollouts_out_of_their_blocks() -> None:
    rewards = torch.tensor([[1.0, 9.0, 0.5, -1.0, 9.0, 9.0]])
    mask = torch.tensor([[True, False, True, True, False, False]])
    batch = GroupBatch(rewards=rewards, mask=mask)
    # (1), (0.5, -1) and nothing; in one block 1 leads 0.5
    values = build_estimator("passk_loo", k=2)(batch)
    assert values.tolist() == [[1, 0, 1.5, 0, 0, 0]]
    assert build_estimator("passk_loo")(batch).tolist() == [[0.5, 0, 0, 0, 0, 0]]
    assert build_estimator("passk_loo", k=1)(batch).tolist() == [[1, 0, 0.5, -1, 0, 0]]


def test_loo_by_the_deviation_of_the_group() -> None:
    # Rewards 1, 0, 0, 0: sample σ = 1/2. The best adds 1 - 0 = 1.
    values = build_estimator("passk_loo", scale="std", eps=0.0)(GroupBatch(rewards=group(1, 4)))
    assert values.tolist() == [[2, 0, 0, 0]]


def test_loo_by_the_deviation_is_0_where_nothing_can_be_compared() -> None:
    estimator = build_estimator("passk_loo", scale="std")
    # Groups of one and of equal rewards have σ = 0, and a reward over ε would be a million.
    assert estimator(GroupBatch(rewards=group(1, 1))).tolist() == [[0]]
    assert (
        build_estimator("passk_loo", scale="std", k=1)(GroupBatch(rewards=group(4, 4))).any() == 0
    )
    # Blocks (1), (.9, .8) and (.9, .9): the first has nothing to compare with, σ is small.
    rewards = torch.tensor([[1.0, 5.0, 0.9, 0.8, 0.9, 0.9]], dtype=torch.float64)
    mask = torch.tensor([[True, False, True, True, True, True]])
    values = build_estimator("passk_loo", scale="std", k=2, eps=0.0)(
        GroupBatch(rewards=rewards, mask=mask)
    )
    # σ² = (.1² + 0 + .1² + 0 + 0)/4 = .005 around the mean .9; .1/√.005 = √2.
    assert values[0].tolist() == pytest.approx([0, 0, math.sqrt(2), 0, 0, 0])


def test_loo_has_another_identity_with_the_deviation() -> None:
    assert build_estimator("passk_loo").identity()["revision"] == 1
    assert build_estimator("passk_loo", scale="std").identity()["revision"] == 2


def test_loo_refuses_groups_that_blocks_do_not_fill() -> None:
    estimator = build_estimator("passk_loo", k=4)
    assert (estimator.minimum_group, estimator.group_multiple) == (4, 4)
    with pytest.raises(BatchError, match="rollouts per prompt and a multiple of 4, got 6"):
        estimator(GroupBatch(rewards=group(3, 6)))
    with pytest.raises(BatchError, match="needs at least 4 rollouts per prompt and a multiple"):
        estimator(GroupBatch(rewards=group(1, 2)))


# passk_analytic


@pytest.mark.parametrize("size", [4, 5, 8])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_is_grpo_over_all_subsets(size: int, k: int) -> None:
    # A rollout's mean over the k-subsets that hold it of (best of the subset - R) / s, with
    # mean R and population deviation s over all subsets.
    for successes in range(size + 1):
        rewards = group(successes, size)
        best = {
            s: rewards[0, list(s)].amax().item() for s in itertools.combinations(range(size), k)
        }
        mean = sum(best.values()) / len(best)
        deviation = math.sqrt(sum((b - mean) ** 2 for b in best.values()) / len(best))
        expected = []
        for i in range(size):
            own = [b for subset, b in best.items() if i in subset]
            expected.append((sum(own) / len(own) - mean) / deviation if deviation > 0 else 0.0)
        values = build_estimator("passk_analytic", k=k)(GroupBatch(rewards=rewards))
        assert values[0].tolist() == pytest.approx(expected, abs=1e-12)


def test_masked_rollouts_shrink_the_group() -> None:
    rewards = torch.tensor([[1.0, 0, 0, 0, 1, 1]] * 3, dtype=torch.float64)
    mask = torch.tensor(
        [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]], dtype=torch.bool
    )
    values = build_estimator("passk_analytic", k=3)(GroupBatch(rewards=rewards, mask=mask))
    alone = build_estimator("passk_analytic", k=3)(GroupBatch(rewards=rewards[:1, :4]))
    assert torch.allclose(values[:1, :4], alone)
    assert torch.equal(values[1], torch.zeros(6, dtype=torch.float64)), "fewer than k"
    full = build_estimator("passk_analytic", k=3)(GroupBatch(rewards=rewards[2:]))
    assert torch.allclose(values[2:], full)


def test_k_above_the_group_size_is_refused() -> None:
    estimator = build_estimator("passk_analytic", k=9)
    assert estimator.minimum_group == 9
    with pytest.raises(BatchError, match="needs at least 9 rollouts per prompt, got 8"):
        estimator(GroupBatch(rewards=group(3, 8)))


# passk_mix


@given(st.integers(0, 12), st.integers(1, 12))
def test_mix_weighs_the_two_by_solve_rate(successes: int, k: int) -> None:
    batch = GroupBatch(rewards=group(successes, 12))
    p = successes / 12
    analytic = build_estimator("passk_analytic", k=k)(batch)
    grpo = build_estimator("grpo")(batch)
    values = build_estimator("passk_mix", k=k)(batch)
    assert torch.allclose(values, p * analytic + (1 - p) * grpo, atol=1e-12)
    # Group masses p (p A_s⁽ᵏ⁾ + q A_s⁽¹⁾) on both sides.
    mass = p * (p * analytic[0, 0] + (1 - p) * grpo[0, 0])
    assert (values * batch.rewards).mean().item() == pytest.approx(mass.item())
    assert values.sum().abs().item() < 1e-12
