"""Rollout policies: which groups a step draws and trains on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advsweep.registry import Registry

if TYPE_CHECKING:
    from advsweep.rollouts.base import RolloutPolicy


ROLLOUTS: Registry[RolloutPolicy] = Registry(
    "rollout policy",
    {
        **dict.fromkeys(
            ("dynamic_sampling", "filter_drop", "greedy", "plain", "reference", "retry"),
            "advsweep.rollouts.policies",
        ),
        **dict.fromkeys(("gfpo", "pods"), "advsweep.rollouts.downsampling"),
        "vine": "advsweep.rollouts.values",
    },
    group="advsweep.rollouts",
    base="advsweep.rollouts.base:RolloutPolicy",
)
