"""The rollout policies by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advsweep.registry import Registry

if TYPE_CHECKING:
    from advsweep.rollouts.base import RolloutPolicy

ROLLOUTS: Registry[RolloutPolicy] = Registry(
    "rollout policy",
    {
        "dynamic_sampling": "advsweep.rollouts.selection",
        "filter_drop": "advsweep.rollouts.selection",
        "plain": "advsweep.rollouts.plain",
        "reference": "advsweep.rollouts.reference",
    },
    group="advsweep.rollouts",
)
