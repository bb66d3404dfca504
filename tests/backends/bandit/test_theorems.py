"""What the papers prove of tabular softmax policies, as properties of this one."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.backends.bandit.softmax import Policy, score_gradient
from advsweep.diagnostics import expected_masses, population_masses
from advsweep.diagnostics.collapse import TOLERANCE, collapsed_groups
from advsweep.diagnostics.stacked_runs import StackedRollouts
from advsweep.estimators import ESTIMATORS, GroupBatch, build_estimator

ZERO_SUM: list[Any] = [
    "grpo",
    "dr_grpo",
    "rloo",
    "maxrl",
    "skew_r",
    {"name": "power_alpha", "alpha": 3},
    {"name": "passk_mix", "k": 2},
    "hard_focused",
]
OTHERS: list[Any] = ["reinforce", "psr", "nsr", "w_reinforce", {"name": "asym_grpo", "delta": 0.5}]

RATE = 0.1


@dataclass
class Table:
    """One prompt: log π in double precision, and the reward of each behaviour."""

    policy: Tensor
    rewards: Tensor

    @property
    def solve_rate(self) -> float:
        return float((self.policy.exp() * (self.rewards == 1)).sum())

    def every_group(self, size: int) -> tuple[Tensor, Tensor]:
        """All N^G groups of behaviours, with their probabilities."""
        behaviours = range(len(self.rewards))
        groups = torch.tensor(list(itertools.product(behaviours, repeat=size)))
        return groups, self.policy[groups].sum(dim=1).exp()

    def steps(self, groups: Tensor, advantages: Tensor) -> Tensor:
        """η/G times the gradient of Σ A log π, for each group."""
        policy = Policy(self.policy.expand(len(groups), -1))
        gradient = score_gradient(policy, groups, advantages)
        return RATE * gradient / groups.shape[1]

    def expected_step(self, estimator: Any, size: int) -> Tensor:
        """The mean step by full enumeration, each group being weighed by itself."""
        groups, chances = self.every_group(size)
        built = build_estimator(estimator)
        advantages = torch.cat(
            [built(GroupBatch(rewards=self.rewards[group][None])) for group in groups]
        )
        return (chances[:, None] * self.steps(groups, advantages)).sum(dim=0)


@pytest.fixture
def binary() -> Table:
    """Two correct behaviours of three in five, and a solve rate of 0.4."""
    policy = torch.tensor([0.3, 0.1, 0.2, 0.15, 0.25], dtype=torch.float64).log()
    return Table(policy, torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64))


@pytest.fixture
def graded() -> Table:
    policy = torch.tensor([0.5, 0.1, 0.4], dtype=torch.float64).log()
    return Table(policy, torch.tensor([0.5, 1.0, 0.0], dtype=torch.float64))


def labelled(spec: Any) -> str:
    return spec if isinstance(spec, str) else spec["name"]


# A-GRAE (arXiv:2602.05548), Theorem 1: behaviours that were not sampled


@pytest.mark.parametrize("spec", [*ZERO_SUM, *OTHERS], ids=labelled)
def test_unsampled_logits_move_by_the_sum_of_advantages(spec: Any, binary: Table) -> None:
    """By -η C π_v: not at all where advantages sum to zero. C is Σ A/G for mean losses."""
    groups, _ = binary.every_group(4)
    rewards = binary.rewards[groups]
    advantages = torch.cat([build_estimator(spec)(GroupBatch(rewards=r[None])) for r in rewards])
    steps = binary.steps(groups, advantages)
    constants = advantages.mean(dim=1, keepdim=True)
    unsampled = torch.nn.functional.one_hot(groups, 5).sum(dim=1) == 0
    assert unsampled.any(dim=1).all()
    expected = -RATE * constants * binary.policy.exp()
    assert torch.allclose(steps[unsampled], expected[unsampled], atol=1e-12)
    assert (steps[unsampled].abs().max() < 1e-12) == (spec in ZERO_SUM)
    assert steps.abs().max() > 1e-3


# A-GRAE, Theorem 2: the size of a group's update


@pytest.mark.parametrize("group_size", [2, 5, 8])
def test_the_sizes_of_a_groups_advantages(group_size: int) -> None:
    """GRPO: Σ|A| = 2G √(p(1-p)), the most at p = 1/2 and none in a homogeneous group."""
    estimator = ESTIMATORS.build("grpo")
    for successes in range(group_size + 1):
        rewards = (torch.arange(group_size) < successes).double()[None]
        total = estimator(GroupBatch(rewards=rewards)).abs().sum().item()
        p = successes / group_size
        assert total == pytest.approx(2 * group_size * math.sqrt(p * (1 - p)), abs=1e-4)


# Homogeneous groups


@pytest.mark.parametrize("group_size", [1, 2, 3, 5])
def test_the_chance_of_a_homogeneous_group(group_size: int, binary: Table) -> None:
    groups, chances = binary.every_group(group_size)
    rewards = binary.rewards[groups]
    runs = StackedRollouts.of(rewards)
    collapsed = collapsed_groups(runs.spread(runs.numbers(rewards)), TOLERANCE)
    p = binary.solve_rate
    assert p == pytest.approx(0.4)
    expected = p**group_size + (1 - p) ** group_size
    assert chances[collapsed.flatten()].sum().item() == pytest.approx(expected)


# Expected updates


@pytest.mark.parametrize("group_size", [2, 3, 5])
def test_the_expected_step_of_the_toy(group_size: int, graded: Table) -> None:
    """η (1 - 1/G) π_v (r_v - Σ_u π_u r_u): Theorem 1 of the two-stage view.

    Its printed form lacks 1 - 1/G, which comes from each sample being part of its own baseline.
    """
    policy, rewards = graded.policy.exp(), graded.rewards
    expected = RATE * (1 - 1 / group_size) * policy * (rewards - (policy * rewards).sum())
    found = graded.expected_step("dr_grpo", group_size)
    assert torch.allclose(found, expected, atol=1e-14)
    assert found[rewards.argmax()] > 0
    assert found[rewards.argmin()] < 0


@pytest.mark.parametrize("spec", [*ZERO_SUM, *OTHERS, "passk_loo"], ids=labelled)
def test_expected_steps_follow_from_expected_masses(spec: Any, binary: Table) -> None:
    """η [π_v (m_S/p) of correct, -π_v (m_F/q) of wrong behaviours] - η π_v (m_S - m_F)."""
    p, policy = binary.solve_rate, binary.policy.exp()
    masses = expected_masses(build_estimator(spec), p, 4)
    pushed = torch.where(binary.rewards == 1, masses.success / p, -masses.failure / (1 - p))
    expected = RATE * policy * (pushed - (masses.success - masses.failure))
    found = binary.expected_step(spec, 4)
    assert torch.allclose(found, expected, atol=1e-7)
    assert found.abs().max() > 1e-4


def test_sampled_steps_have_the_expected_mean(graded: Table) -> None:
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(20_000, 4, generator=generator, dtype=torch.float64)
    groups = Policy(graded.policy.expand(20_000, -1)).sample(uniform)
    advantages = build_estimator("dr_grpo")(GroupBatch(rewards=graded.rewards[groups]))
    steps = graded.steps(groups, advantages)
    errors = steps.std(dim=0) / math.sqrt(20_000)
    expected = graded.expected_step("dr_grpo", 4)
    assert ((steps.mean(dim=0) - expected).abs() < 4 * errors).all()
    assert (expected.abs() > 8 * errors).all()


def test_a_constant_added_to_advantages_changes_no_expected_step(graded: Table) -> None:
    groups, chances = graded.every_group(3)
    constant = torch.ones(groups.shape, dtype=torch.float64)
    steps = graded.steps(groups, constant)
    assert steps.abs().max() > 0.01
    assert (chances[:, None] * steps).sum(dim=0).abs().max() < 1e-14


# FADE (arXiv:2607.01490), sec. 9.2: one more round of retries


@pytest.mark.parametrize("p", [0.1, 0.4, 0.9])
def test_one_extra_round_of_retries_is_power_alpha_of_2(p: float) -> None:
    """A second round of mean-centred updates, run with probability 1 - p, has masses p q²."""
    once = population_masses(build_estimator("dr_grpo"), p)
    twice = population_masses(build_estimator({"name": "power_alpha", "alpha": 2}), p)
    assert [(1 - p) * mass for mass in once] == pytest.approx(list(twice), abs=1e-6)
    assert once.success == pytest.approx(p * (1 - p), abs=1e-6)


def test_retries_by_each_groups_own_failures_are_power_alpha_of_2(binary: Table) -> None:
    """Group by group, whatever was sampled; and so the expected steps are equal."""
    groups, _ = binary.every_group(4)
    batch = GroupBatch(rewards=binary.rewards[groups])
    failures = 1 - batch.rewards.mean(dim=1, keepdim=True)
    retried = failures * build_estimator("dr_grpo")(batch)
    alpha_2 = build_estimator({"name": "power_alpha", "alpha": 2})(batch)
    assert torch.allclose(binary.steps(groups, retried), binary.steps(groups, alpha_2), atol=1e-15)
    assert not torch.allclose(build_estimator("dr_grpo")(batch), alpha_2)
