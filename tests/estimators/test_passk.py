"""passk_analytic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator


def group(successes: int, size: int) -> Tensor:
    return (torch.arange(size) < successes).double()[None]


def test_worked_values(success_and_failure: Callable[..., tuple[float, float]]) -> None:
    # F = 6 of 8, k = 4: 1-R = C(6,4)/C(8,4) = 15/70, s = √(15·55)/70 = 0.4103258033,
    # Q = C(5,3)/C(7,3) = 10/35. A_s = (1-R)/s = √(15/55), A_f = (1-R-Q)/s = -(5/70)/s.
    assert success_and_failure("passk_analytic") == pytest.approx(
        (0.5222329679, -0.1740776560), abs=1e-9
    )


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


@given(st.integers(0, 16), st.integers(1, 16))
def test_masses_and_degenerate_groups(successes: int, k: int) -> None:
    rewards = group(successes, 16)
    values = build_estimator("passk_analytic", k=k)(GroupBatch(rewards=rewards))
    failures = 16 - successes
    if successes == 0 or failures < k:
        assert torch.equal(values, torch.zeros_like(values))
        return
    missed = math.comb(failures, k) / math.comb(16, k)
    expected = successes / 16 * math.sqrt(missed / (1 - missed))
    assert (values * rewards).mean().item() == pytest.approx(expected)
    assert values.sum().abs().item() < 1e-12


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=8, max_size=8), min_size=1))
def test_k_of_one_is_grpo(rows: list[list[float]]) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    values = build_estimator("passk_analytic", k=1)(batch)
    assert torch.allclose(values, build_estimator("grpo")(batch), atol=1e-12)


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


def test_large_groups_stay_accurate() -> None:
    # 1-R = C(1000,512)/C(1024,512) is about 1e-8; A_s = √((1-R)/R).
    rewards = group(24, 1024).float()
    values = build_estimator("passk_analytic", k=512)(GroupBatch(rewards=rewards))
    missed = math.comb(1000, 512) / math.comb(1024, 512)
    expected = math.sqrt(missed / (1 - missed))
    assert values[0, 0].item() == pytest.approx(expected, rel=1e-5)


def test_k_above_the_group_size_is_refused() -> None:
    estimator = build_estimator("passk_analytic", k=9)
    assert estimator.minimum_group == 9
    with pytest.raises(BatchError, match="needs at least 9 rollouts per prompt, got 8"):
        estimator(GroupBatch(rewards=group(3, 8)))


@pytest.mark.parametrize("reward", [0.5, -1.0, 2.0])
def test_graded_rewards_are_refused(reward: float) -> None:
    rewards = group(3, 8)
    rewards[0, 0] = reward
    with pytest.raises(BatchError, match=f"rewards of 0 and 1 only, got {reward:g}"):
        build_estimator("passk_analytic")(GroupBatch(rewards=rewards))


def test_at_group_size_one_k_must_be_one() -> None:
    batch = GroupBatch(rewards=torch.tensor([[1.0], [0.0]]))
    assert build_estimator("passk_analytic", k=1)(batch).tolist() == [[0], [0]]
