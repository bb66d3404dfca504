"""What estimators and rollout policies make of made-up groups, found by running them.

`has_advantages` and `groups_kept` tell whether a run could train on anything;
`learning_rate_scale` makes estimators of different scale comparable.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from advsweep.diagnostics.masses import kinds_of_group
from advsweep.errors import BatchError, TrainingError
from advsweep.estimators.batch import GroupBatch
from advsweep.estimators.varied import varied_batch

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.estimators import Estimator
    from advsweep.estimators.batch import PerRollout
    from advsweep.rollouts.base import RolloutPolicy

Size = Literal["max_advantage", "mass"]

_MANY_STEPS = 1_000_000

# Up to this group size every number of successes is tried; for larger groups the numbers near
# both ends and some in between.
_EVERY_COUNT = 128
# Groups of at most this size are tried in every order of successes and failures.
_LARGEST_ARRANGED = 8


def representative_groups(
    size: int, low: float = 0.0, high: float = 1.0, *, binary: bool = True, alike: bool = False
) -> PerRollout:
    """Return groups of rewards that are representative of a task with such rewards.

    The groups mix the two extreme rewards, from no to all high ones and in different orders. If
    rewards are not binary there are also groups of values in between.

    Args:
        size: G.
        low, high: the least and the greatest reward.
        binary: whether `low` and `high` are the only rewards.
        alike: return groups of equal rewards only.
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
    estimator: Estimator, groups: PerRollout, *, total_steps: int, alone: bool = False
) -> bool:
    """Return whether an estimator gives any rollout an advantage other than 0.

    A copy of the estimator without memory runs in the first, a middle and the last step of a
    training. Inputs other than the rewards differ from rollout to rollout.

    Args:
        estimator: not changed.
        total_steps: the length of the training.
        alone: compute each group as a batch of its own instead of all groups as one batch.

    Raises:
        BatchError: the estimator refuses such groups.
    """
    # Memory of earlier steps could hide that the first step has no advantages.
    fresh = copy.deepcopy(estimator)
    fresh.reset()
    batches = torch.split(groups, 1) if alone else (groups,)
    for step in dict.fromkeys((1, (total_steps + 1) // 2, total_steps)):
        for rewards in batches:
            computed = fresh.compute(varied_batch(rewards, step, total_steps))
            if (computed.nonzero & computed.keep).any():
                return True
    return False


def groups_kept(policy: RolloutPolicy, groups: PerRollout, prompts: int) -> tuple[PerRollout, str]:
    """Return the groups that a rollout policy keeps if a step draws only copies of that group.

    Args:
        prompts: the target number of groups of a step.

    Returns:
        The kept groups, and the error of the policy on the last group that it refused; empty
        if it refused none.
    """
    if policy.keeps_all or policy.selects:
        return groups, ""
    kept = []
    reason = ""
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
    """A source that draws the same group for every prompt; others get the opposite rewards.

    Different rewards count as different verdicts.
    """

    step = 1

    def __init__(self, rewards: Float[Tensor, " rollouts"]) -> None:
        self._rewards = rewards
        self._drawn = 0
        self.group_size = len(rewards)

    @property
    def lengths(self) -> Float[Tensor, "drawn rollouts"]:
        return torch.ones_like(self.verdicts)

    @property
    def verdicts(self) -> Float[Tensor, "drawn rollouts"]:
        return self._rewards.repeat(self._drawn, 1)

    def draw(self, prompts: int) -> Float[Tensor, "prompts rollouts"]:
        self._drawn += prompts
        return self._rewards.repeat(prompts, 1)

    def draw_again(self, groups: Int[Tensor, " groups"]) -> PerRollout:
        return self.draw(len(groups))

    def draw_references(self, groups: Int[Tensor, " groups"]) -> PerRollout:
        return (1 - self._rewards).repeat(len(groups), 1)

    def draw_greedy(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, " groups"]:
        return (1 - self._rewards[0]).repeat(len(groups))

    def draw_values(self, episodes: int, rollouts: int) -> None:
        """Measure nothing: which groups are kept does not depend on values."""


def learning_rate_scale(
    estimator: Estimator, reference: Estimator, group_size: int, size: Size
) -> float:
    """Return the factor of the learning rate that matches an estimator to the reference.

    FADE (arXiv:2607.01490), sec. 11.3: lr = lr_ref · max|A_ref| / max|A|. The paper says neither
    which maximum is meant nor which form of GRPO is the reference; here it is the maximum over
    groups with k = 0..G successes, and `dr_grpo` unless the user names another reference.

    Args:
        estimator, reference: not changed.
        group_size: G.
        size: the quantity that becomes equal, see `advantage_size`.

    Raises:
        BatchError: one of the two cannot be matched, see `advantage_size`.
    """
    return advantage_size(reference, group_size, size) / advantage_size(estimator, group_size, size)


def advantage_size(estimator: Estimator, group_size: int, size: Size) -> float:
    """Return the size of an estimator's advantages over groups with k = 0..G successes.

    `max_advantage` is the largest |Aᵢ|. `mass` is the mean over k of (1/G) Σ|Aᵢ|; k is uniform
    on 0..G where solve rates are spread evenly over [0, 1].

    All groups form one batch in which every k has the same weight, and a copy without memory
    computes it. So an estimator that reads the batch or earlier steps (`fade`, `avspo`,
    `a_grae`) is measured in its first step, with evenly spread solve rates. The other inputs are
    neutral: entropies and self-certainty of 1 nat, lengths of 1, no KL, greedy rollouts of reward
    0, a second part of the reward that is always 1, solve rates of k/G, the first of a million
    steps. References get the opposite reward of each rollout, so that the margins of `aapo` are
    largest.

    Departures: the paper has a maximum alone, `mass` is ours.

    Args:
        estimator: not changed.
        group_size: G, up to 1024; at most 16 if the order within a group matters, because the
            mean then runs over all orders of successes and failures.

    Raises:
        BatchError: the estimator does not weigh rewards, refuses these groups, gives only 0 to
            them, or G is too large.
    """
    if estimator.verifier_free:
        raise BatchError(
            f"estimator '{estimator.name}' does not weigh rewards, so how large its advantages "
            "are is not known beforehand"
        )
    rewards = kinds_of_group(estimator, group_size)
    successes = rewards.sum(dim=1).long()
    weights = 1 / successes.bincount()[successes].to(rewards)
    fresh = copy.deepcopy(estimator)
    fresh.reset()
    batch = _neutral_batch(rewards, weights)
    advantages = fresh.compute(batch).sizes(batch.lengths)
    if size == "max_advantage":
        typical = advantages.max()
    else:
        typical = (advantages.mean(dim=1) * weights).sum() / (group_size + 1)
    if typical == 0:
        raise BatchError(
            f"estimator '{estimator.name}' gives advantages of 0 alone to groups of {group_size}"
        )
    return typical.item()


def _neutral_batch(rewards: PerRollout, weights: Float[Tensor, " groups"]) -> GroupBatch:
    """Return a batch with every input that an estimator may read."""
    ones = torch.ones_like(rewards)
    return GroupBatch(
        rewards=rewards,
        frequencies=weights,
        lengths=ones,
        ref_rewards=1 - rewards,
        token_entropy=ones,
        token_entropy_exact=ones,
        token_entropies=ones[..., None],
        token_grad_norms=ones[..., None],
        token_kl=torch.zeros_like(ones)[..., None],
        turn_of_token=torch.zeros_like(ones, dtype=torch.int64)[..., None],
        turn_rewards=torch.zeros_like(ones)[..., None],
        turn_states=torch.zeros_like(ones, dtype=torch.int64)[..., None],
        turn_values=ones[..., None] / 2,
        reward_parts=torch.stack((rewards, ones), dim=-1),
        greedy_rewards=torch.zeros_like(weights),
        self_certainty=ones,
        solve_rates=rewards.mean(dim=1),
        answered=ones.bool(),
        prompt_ids=tuple(map(str, range(len(rewards)))),
        step=1,
        total_steps=_MANY_STEPS,
    )
