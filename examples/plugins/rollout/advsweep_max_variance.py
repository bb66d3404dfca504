"""A rollout policy: draw more groups than needed and train on those that differ most."""

import math
from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import option
from advsweep.estimators import GroupBatch
from advsweep.estimators.batch import Groups
from advsweep.rollouts.base import Collected, RolloutPolicy


@dataclass(kw_only=True)
class MaxVariance(RolloutPolicy):
    """Draws `factor` times the step's groups and keeps those whose rewards vary most.

    Unlike `dynamic_sampling` it draws once, so that each step costs the same. Of equal groups
    the first are kept; a step with few mixed groups is filled with collapsed ones.
    """

    name: ClassVar[str] = "max_variance"

    factor: float = option(2.0, ge=1, help="groups drawn for each one that is trained on")

    def collect(self, source, prompts):
        rewards = source.draw(math.ceil(self.factor * prompts))
        groups = Groups(GroupBatch(rewards=rewards, mask=~rewards.isnan()))
        best = groups.std()[:, 0].argsort(descending=True, stable=True)[:prompts]
        return Collected(best.sort().values)
