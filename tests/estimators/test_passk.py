"""passk_loo, passk_analytic and passk_mix."""

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


# passk_loo


def test_loo_gives_a_lone_success_everything(advantages: Callable[..., Tensor]) -> None:
    rewards = [[0.0, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]
    assert advantages("passk_loo", rewards).tolist() == [[0, 1, 0, 0], [0] * 4, [0] * 4, [0] * 4]


def test_loo_gives_two_successes_nothing(
    success_and_failure: Callable[..., tuple[float, float]],
) -> None:
    assert success_and_failure("passk_loo") == (0, 0)


def test_loo_of_graded_rewards_is_the_lead_of_the_best(advantages: Callable[..., Tensor]) -> None:
    # 0.9 - 0.5; ties lead by nothing; also below 0
    rewards = [[0.5, 0.9, 0.25], [0.9, 0.9, 0.5], [-3, -1, -2]]
    values = advantages("passk_loo", rewards)
    assert torch.allclose(values, torch.tensor([[0, 0.4, 0], [0, 0, 0], [0, 1, 0]]).double())


def test_loo_works_in_consecutive_blocks(advantages: Callable[..., Tensor]) -> None:
    # The blocks hold 1 and 0, then 1 and 1, then 0 and 0.5.
    values = advantages({"name": "passk_loo", "k": 2}, [[1.0, 0, 1, 1, 0, 0.5]])
    assert values.tolist() == [[1, 0, 0, 0, 0, 0.5]]


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


@given(st.lists(st.lists(st.floats(-5, 5), min_size=6, max_size=6), min_size=1, max_size=3))
def test_loo_of_one_is_reinforce(rows: list[list[float]]) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    values = build_estimator("passk_loo", k=1)(batch)
    assert torch.equal(values, build_estimator("reinforce")(batch))


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_loo_in_blocks_has_the_masses_of_its_blocks(p: float) -> None:
    # All 2⁸ groups of 8 in blocks of 4: p q³ per rollout for successes, nothing for failures.
    rewards = torch.tensor(list(itertools.product([0.0, 1.0], repeat=8)), dtype=torch.float64)
    chance = torch.where(rewards == 1, p, (1 - p) * torch.ones_like(rewards)).prod(dim=1)
    values = build_estimator("passk_loo", k=4)(GroupBatch(rewards=rewards))
    assert (chance @ (values * rewards).mean(dim=1)).item() == pytest.approx(p * (1 - p) ** 3)
    assert (values * (1 - rewards)).abs().max() == 0


def test_loo_leaves_masked_rollouts_out_of_their_blocks() -> None:
    rewards = torch.tensor([[1.0, 9.0, 0.5, -1.0, 9.0, 9.0]])
    mask = torch.tensor([[True, False, True, True, False, False]])
    batch = GroupBatch(rewards=rewards, mask=mask)
    # (1), (0.5, -1) and nothing; in one block 1 leads 0.5
    values = build_estimator("passk_loo", k=2)(batch)
    assert values.tolist() == [[1, 0, 1.5, 0, 0, 0]]
    assert build_estimator("passk_loo")(batch).tolist() == [[0.5, 0, 0, 0, 0, 0]]
    assert build_estimator("passk_loo", k=1)(batch).tolist() == [[1, 0, 0.5, -1, 0, 0]]


def test_loo_refuses_groups_that_blocks_do_not_fill() -> None:
    estimator = build_estimator("passk_loo", k=4)
    assert (estimator.minimum_group, estimator.group_multiple) == (4, 4)
    with pytest.raises(BatchError, match="rollouts per prompt and a multiple of 4, got 6"):
        estimator(GroupBatch(rewards=group(3, 6)))
    with pytest.raises(BatchError, match="needs at least 4 rollouts per prompt and a multiple"):
        estimator(GroupBatch(rewards=group(1, 2)))


# passk_analytic


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


# passk_mix


def test_worked_values_of_the_mix(success_and_failure: Callable[..., tuple[float, float]]) -> None:
    # 1/4 · passk_analytic(4) + 3/4 · grpo
    assert success_and_failure("passk_mix") == pytest.approx(
        (1.4295963476, -0.4765321159), abs=1e-9
    )


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


def test_mix_with_a_mask_and_refusals() -> None:
    rewards = torch.tensor([[1.0, 0, 0, 0, 1, 1]], dtype=torch.float64)
    mask = torch.tensor([[True] * 4 + [False] * 2])
    estimator = build_estimator("passk_mix", k=3)
    alone = estimator(GroupBatch(rewards=rewards[:, :4]))
    assert torch.allclose(estimator(GroupBatch(rewards=rewards, mask=mask))[:, :4], alone)
    with pytest.raises(BatchError, match="needs at least 3 rollouts per prompt, got 2"):
        estimator(GroupBatch(rewards=group(1, 2)))
    with pytest.raises(BatchError, match="rewards of 0 and 1 only"):
        estimator(GroupBatch(rewards=rewards / 2))
