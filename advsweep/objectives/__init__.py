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
        "cispo": "advsweep.objectives.weighted",
        "clip_cov": "advsweep.objectives.selective",
        "clipped": "advsweep.objectives.clipped",
        "cross_entropy": "advsweep.objectives.weighted",
        "dppo": "advsweep.objectives.weighted",
        "dro": "advsweep.objectives.weighted",
        "gmpo": "advsweep.objectives.clipped",
        "kl_cov": "advsweep.objectives.selective",
        "m2po": "advsweep.objectives.selective",
        "sapo": "advsweep.objectives.clipped",
        "topr": "advsweep.objectives.weighted",
        "vespo": "advsweep.objectives.weighted",
    },
    group="advsweep.objectives",
    base="advsweep.objectives.base:Objective",
    function="loss",
    adapter="advsweep.objectives.functions:objective_class",
    takes_code=True,
)
