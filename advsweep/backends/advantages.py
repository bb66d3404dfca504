"""From a step's groups to advantages: the same for every backend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from advsweep.estimators.base import Advantages

if TYPE_CHECKING:
    from advsweep.estimators.base import Estimator, GroupBatch
    from advsweep.rollouts.base import Collected


def compute_advantages(estimator: Estimator, drawn: GroupBatch, collected: Collected) -> Advantages:
    """The advantages of the groups that a step trains on.

    A step without such groups has none, and the estimator's memory does not advance.

    Args:
        drawn: all groups that were drawn.
        collected: what the rollout policy made of them.

    Raises:
        BatchError: the estimator refuses the groups.
    """
    batch = replace(drawn.select(collected.groups), ref_rewards=collected.ref_rewards)
    if len(batch.rewards):
        return estimator.compute(batch)
    return Advantages(values=batch.rewards, keep=torch.ones_like(batch.rewards, dtype=torch.bool))
