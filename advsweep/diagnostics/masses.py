"""Gradient masses: how hard an estimator pushes successes up and failures down.

FADE (arXiv:2607.01490), Eq. 3: m_S = (1/G) Σ_successes Aᵢ and m_F = -(1/G) Σ_failures Aᵢ,
so that m_S - m_F is the mean advantage. All masses here are per rollout.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch
from advsweep.estimators.groups import Groups

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from advsweep.estimators import Estimator


class Masses(NamedTuple):
    """m_S and m_F."""

    success: float
    failure: float


def masses(
    advantages: Float[Tensor, "prompts rollouts"],
    successes: Bool[Tensor, "prompts rollouts"],
    mask: Bool[Tensor, "prompts rollouts"] | None = None,
) -> Masses:
    """The masses of a batch, averaged over its rollouts (scorable ones if there is a mask)."""
    groups = Groups(GroupBatch(rewards=advantages, mask=mask))
    return Masses(
        success=groups.rollout_mean(torch.where(successes, advantages, 0.0)),
        failure=groups.rollout_mean(torch.where(successes, 0.0, -advantages)),
    )


def expected_masses(
    estimator: Estimator, solve_rate: float, group_size: int, **inputs: float
) -> Masses:
    """The exact mean of the masses over k ~ Binomial(G, p) successes, homogeneous groups too.

    All G+1 kinds of group are given to a copy of the estimator as one batch in which each
    counts as often as it occurs, so that statistics of the batch (FADE's mean reward,
    AVSPO's collapse rate) are those of infinitely many prompts of this solve rate. A
    stateful estimator goes on from its present memory and keeps it.

    Args:
        estimator: left as it is.
        solve_rate: p, the chance of a success, in [0, 1].
        group_size: G.
        inputs: what the estimator needs beside rewards, such as `token_entropy=0.3`; one
            number holds for all rollouts.

    Raises:
        BatchError: p is outside [0, 1], or the estimator refuses such groups.
    """
    if not 0 <= solve_rate <= 1:
        raise BatchError(f"solve_rate: expected a number in [0, 1], got {solve_rate:g}")
    successes = range(group_size + 1)
    rewards = torch.tensor(
        [[float(i < k) for i in range(group_size)] for k in successes], dtype=torch.float64
    )
    p, q = solve_rate, 1 - solve_rate
    frequencies = rewards.new_tensor(
        [math.comb(group_size, k) * p**k * q ** (group_size - k) for k in successes]
    )
    batch = GroupBatch(rewards=rewards, frequencies=frequencies, **_spread(inputs, rewards))
    advantages = copy.deepcopy(estimator)(batch)
    per_group = frequencies[:, None] / group_size
    return Masses(
        success=(advantages * rewards * per_group).sum().item(),
        failure=0.0 - (advantages * (1 - rewards) * per_group).sum().item(),
    )


def _spread(inputs: dict[str, float], rewards: Tensor) -> dict[str, Any]:
    counters = ("step", "total_steps")
    return {
        name: value if name in counters else torch.full_like(rewards, value)
        for name, value in inputs.items()
    }
