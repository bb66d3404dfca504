"""Objectives: what turns advantages and log-probabilities into a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advsweep.registry import Registry

if TYPE_CHECKING:
    from advsweep.objectives.base import Objective


OBJECTIVES: Registry[Objective] = Registry(
    "objective",
    {
        "adaptive_clipped": "advsweep.objectives.clipped",
        "clipped": "advsweep.objectives.clipped",
        "cross_entropy": "advsweep.objectives.weighted",
    },
    group="advsweep.objectives",
    base="advsweep.objectives.base:Objective",
)
