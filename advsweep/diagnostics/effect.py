"""Whether estimators and rollout policies leave anything to train on, found by running them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advsweep.errors import TrainingError
from advsweep.estimators.batch import GroupBatch

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.estimators import Estimator
    from advsweep.rollouts.base import RolloutPolicy

# Every number of successes is tried up to groups of this size; of larger ones those near both
# ends, and some between.
_EVERY_COUNT = 128
# Groups of at most this size are tried in every order where the order matters.
_LARGEST_ARRANGED = 8


def representative_groups(
    size: int, low: float = 0.0, high: float = 1.0, *, binary: bool = True, alike: bool = False
) -> Float[Tensor, "groups rollouts"]:
    """Groups of rewards such as a task with these rewards gives.

    Groups of the two extremes, from none to all of the higher one and in different orders; of
    rewards that are not binary also groups of values between them.

    Args:
        size: G.
        low, high: the least and the greatest reward.
        binary: whether there are no rewards between them.
        alike: groups of equal rewards alone.
    """
    values = torch.tensor([low, high] if binary else [low, (low + high) / 2, high])
    if alike or size == 1:
        return values[:, None].repeat(1, size)
    if size <= _LARGEST_ARRANGED:
        successes = torch.arange(2**size)[:, None] >> torch.arange(size) & 1
    else:
        step = max(1, size // _EVERY_COUNT)
        near = range(min(size, _EVERY_COUNT // 2))
        counts = torch.tensor(sorted({*near, *range(0, size, step), *(size - k for k in near)}))
        ordered = (torch.arange(size) < counts[:, None]).long()
        shuffled = ordered[:, torch.randperm(size, generator=torch.Generator().manual_seed(0))]
        successes = torch.cat((ordered, shuffled))
    groups = low + (high - low) * successes.float()
    if binary:
        return groups
    spread = torch.linspace(low, high, size)
    return torch.cat(
        (groups, values[:, None].repeat(1, size), torch.stack((spread, spread.flip(0))))
    )


def has_advantages(
    estimator: Estimator,
    groups: Float[Tensor, "groups rollouts"],
    *,
    total_steps: int,
    alone: bool = False,
) -> bool:
    """Whether an estimator gives any rollout of some groups an advantage other than 0.

    It is run on them in the first, a middle and the last step of a training, on a copy without
    memory. Other inputs than the rewards differ from rollout to rollout.

    Args:
        estimator: left as it is.
        total_steps: the length of the training.
        alone: each group is a batch by itself; else all are one.

    Raises:
        BatchError: the estimator refuses such groups.
    """
    fresh = copy.deepcopy(estimator)
    fresh.reset()
    batches = torch.split(groups, 1) if alone else (groups,)
    for step in dict.fromkeys((1, (total_steps + 1) // 2, total_steps)):
        for rewards in batches:
            computed = fresh.compute(_varied_batch(rewards, step, total_steps))
            if (computed.values * computed.keep).any():
                return True
    return False


def groups_kept(
    policy: RolloutPolicy, groups: Float[Tensor, "groups rollouts"], prompts: int
) -> tuple[Float[Tensor, "kept rollouts"], str]:
    """The groups that a rollout policy trains on where a step draws nothing else.

    Args:
        prompts: how many groups a step asks for.

    Returns:
        The groups, and why the policy gave up on the last of the others; empty if it did not.
    """
    if policy.keeps_all:
        return groups, ""
    kept, reason = [], ""
    for group in groups:
        try:
            collected = policy.collect(_OneGroup(group), prompts)
        except TrainingError as error:
            reason = str(error)
        else:
            if len(collected.groups):
                kept.append(group)
    return torch.stack(kept) if kept else groups[:0], reason


class _OneGroup:
    """A source whose prompts all get the same group; references do the opposite."""

    step = 1

    def __init__(self, rewards: Float[Tensor, " rollouts"]) -> None:
        self._rewards = rewards

    def draw(self, prompts: int) -> Float[Tensor, "prompts rollouts"]:
        return self._rewards.repeat(prompts, 1)

    def draw_references(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        return (1 - self._rewards).repeat(len(groups), 1)


def _varied_batch(
    rewards: Float[Tensor, "groups rollouts"], step: int, total_steps: int
) -> GroupBatch:
    generator = torch.Generator().manual_seed(step)

    def varied() -> Tensor:
        return 0.1 + torch.rand(rewards.shape, generator=generator)

    return GroupBatch(
        rewards=rewards,
        lengths=(10 * varied()).ceil(),
        ref_rewards=1 - rewards,
        token_entropy=varied(),
        token_entropy_exact=varied(),
        self_certainty=varied(),
        solve_rates=rewards.mean(dim=1).clamp(0, 1),
        step=step,
        total_steps=total_steps,
    )
