"""From a step's groups to advantages: the same for every backend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from advsweep.estimators.base import Advantages

if TYPE_CHECKING:
    from advsweep.estimators.base import Estimator, GroupBatch
    from advsweep.rollouts.base import Collected


def reads_answers(estimator: Estimator) -> bool:
    """True where a backend has to tell in which rollouts an answer can be read."""
    return "answered" in estimator.needs


def compute_advantages(estimator: Estimator, drawn: GroupBatch, collected: Collected) -> Advantages:
    """The advantages of the groups that a step trains on.

    A step without such groups has none, and the estimator's memory does not advance.

    Args:
        drawn: all groups that were drawn.
        collected: what the rollout policy made of them.

    Raises:
        BatchError: the estimator refuses the groups.
    """
    groups, references = collected.groups, collected.ref_rewards
    if not torch.equal(groups, torch.arange(len(drawn.rewards), device=groups.device)):
        drawn = drawn.select(groups)
    batch = drawn if references is None else replace(drawn, ref_rewards=references)
    if len(batch.rewards):
        return estimator.compute(batch)
    return Advantages(values=batch.rewards, keep=torch.ones_like(batch.rewards, dtype=torch.bool))
