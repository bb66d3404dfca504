"""The rollout policies by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advsweep.components import Registry

if TYPE_CHECKING:
    from advsweep.rollouts.base import RolloutPolicy

ROLLOUTS: Registry[RolloutPolicy] = Registry(
    "rollout policy",
    {"plain": "advsweep.rollouts.plain"},
    group="advsweep.rollouts",
)
