"""Exact gradients of small softmax policies: what the theorems about logits are checked on.

A policy is a softmax over V behaviours (one-token answers). Rewards belong to behaviours; a group
is G behaviours drawn with repetition. Everything is float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advsweep.estimators import Estimator, GroupBatch
from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import LossInputs

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def random_policies(count: int, behaviours: int, seed: int) -> Float[Tensor, "policies behaviours"]:
    """Draws logits from a normal distribution of deviation 1.5, and returns the softmax."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, behaviours, generator=generator, dtype=torch.float64)
    return torch.softmax(1.5 * logits, dim=-1)


def scores(policy: Float[Tensor, " behaviours"]) -> Float[Tensor, "drawn behaviours"]:
    """Returns ∇_z log π(u) = 1[u] - π for each behaviour u."""
    return torch.eye(len(policy), dtype=policy.dtype) - policy


def logit_gradient(
    policy: Float[Tensor, " behaviours"],
    drawn: Int[Tensor, " rollouts"],
    advantages: Float[Tensor, " rollouts"],
) -> Float[Tensor, " behaviours"]:
    """Returns Σᵢ Aᵢ ∇_z log π(uᵢ) of a group, by autograd through the clipped objective.

    The objective is on-policy, so that its ratio is 1 and its clip does nothing.
    """
    logits = policy.log().clone().requires_grad_()
    log_probs = torch.log_softmax(logits, dim=0)[drawn][:, None]
    inputs = LossInputs(
        log_probs=log_probs,
        old_log_probs=log_probs.detach(),
        completion_mask=torch.ones_like(log_probs, dtype=torch.bool),
        advantages=advantages,
        rollouts=len(drawn),
        tokens=len(drawn),
    )
    loss = OBJECTIVES.build("clipped").loss(inputs).loss
    (gradient,) = torch.autograd.grad(loss, logits)
    return -len(drawn) * gradient


def every_group(behaviours: int, size: int) -> Int[Tensor, "groups rollouts"]:
    """Returns all V^G groups of drawn behaviours."""
    return torch.cartesian_prod(*[torch.arange(behaviours)] * size).reshape(-1, size)


def group_advantages(
    estimator: Estimator,
    rewards: Float[Tensor, " behaviours"],
    groups: Int[Tensor, "groups rollouts"],
) -> Float[Tensor, "groups rollouts"]:
    """Returns the advantages of groups of drawn behaviours."""
    return estimator(GroupBatch(rewards=rewards[groups]))


def chance_of_groups(
    policy: Float[Tensor, " behaviours"], groups: Int[Tensor, "groups rollouts"]
) -> Float[Tensor, " groups"]:
    """Returns the chance of each group under a policy."""
    return policy[groups].prod(dim=1)


def expected_update(
    estimator: Estimator,
    policy: Float[Tensor, " behaviours"],
    rewards: Float[Tensor, " behaviours"],
    size: int,
) -> Float[Tensor, " behaviours"]:
    """Returns E[(1/G) Σᵢ Aᵢ ∇_z log π(uᵢ)], enumerated over all groups."""
    groups = every_group(len(policy), size)
    advantages = group_advantages(estimator, rewards, groups)
    weighted = chance_of_groups(policy, groups)[:, None] * advantages / size
    per_behaviour = torch.zeros_like(policy).index_add(0, groups.reshape(-1), weighted.reshape(-1))
    return per_behaviour @ scores(policy)


def mean_advantage(
    estimator: Estimator,
    policy: Float[Tensor, " behaviours"],
    rewards: Float[Tensor, " behaviours"],
    size: int,
) -> Float[Tensor, " behaviours"]:
    """Returns Â(u), the mean advantage of a rollout that drew u, over the others' draws."""
    groups = every_group(len(policy), size)
    advantages = group_advantages(estimator, rewards, groups)[:, 0]
    weighted = chance_of_groups(policy, groups) * advantages
    return torch.zeros_like(policy).index_add(0, groups[:, 0], weighted) / policy
