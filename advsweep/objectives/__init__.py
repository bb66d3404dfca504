"""Objectives: what turns advantages and log-probabilities into a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advsweep.registry import Registry

if TYPE_CHECKING:
    from advsweep.objectives.base import Objective


OBJECTIVES: Registry[Objective] = Registry(
    "objective",
    dict.fromkeys(("adaptive_clipped", "clipped", "cross_entropy"), "advsweep.objectives.losses"),
    group="advsweep.objectives",
    base="advsweep.objectives.base:Objective",
)
