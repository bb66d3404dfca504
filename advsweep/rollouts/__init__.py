"""Rollout policies: which groups a step draws and trains on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advsweep.registry import Registry

if TYPE_CHECKING:
    from advsweep.rollouts.base import RolloutPolicy


ROLLOUTS: Registry[RolloutPolicy] = Registry(
    "rollout policy",
    {
        "dynamic_sampling": "advsweep.rollouts.policies",
        "filter_drop": "advsweep.rollouts.policies",
        "plain": "advsweep.rollouts.policies",
        "reference": "advsweep.rollouts.policies",
        "retry": "advsweep.rollouts.policies",
    },
    group="advsweep.rollouts",
    base="advsweep.rollouts.base:RolloutPolicy",
)
