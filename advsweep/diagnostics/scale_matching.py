"""Scale matching: learning rates that make estimators of different scale comparable.

FADE (arXiv:2607.01490), sec. 11.3: lr = lr_ref · max|A_ref| / max|A|. The paper says neither
which maximum is meant nor which form of GRPO is the reference; here it is the maximum over
groups with k = 0..G successes, and `dr_grpo` unless the user names another reference.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Literal

import torch

from advsweep.diagnostics.masses import kinds_of_group
from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from advsweep.estimators import Estimator

Size = Literal["max_advantage", "mass"]

_MANY_STEPS = 1_000_000


def learning_rate_scale(
    estimator: Estimator, reference: Estimator, group_size: int, size: Size
) -> float:
    """Return the factor of the learning rate that matches an estimator to the reference.

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
    neutral: entropies and self-certainty of 1 nat, lengths of 1, solve rates of k/G, the first
    of a million steps. References get the opposite reward of each rollout, so that the margins
    of `aapo` are largest.

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
        found = advantages.max()
    else:
        found = (advantages.mean(dim=1) * weights).sum() / (group_size + 1)
    if found == 0:
        raise BatchError(
            f"estimator '{estimator.name}' gives advantages of 0 alone to groups of {group_size}"
        )
    return found.item()


def _neutral_batch(
    rewards: Float[Tensor, "groups rollouts"], weights: Float[Tensor, " groups"]
) -> GroupBatch:
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
        self_certainty=ones,
        solve_rates=rewards.mean(dim=1),
        answered=ones.bool(),
        prompt_ids=tuple(map(str, range(len(rewards)))),
        step=1,
        total_steps=_MANY_STEPS,
    )
