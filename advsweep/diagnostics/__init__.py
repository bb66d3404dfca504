"""Metrics of a step's rollouts and advantages, and what estimators do to groups."""

from advsweep.diagnostics.masses import (
    Masses,
    expected_masses,
    group_masses,
    masses,
    population_masses,
)
from advsweep.diagnostics.rollouts import (
    StepRollouts,
    rollout_metrics,
    stacked_rollout_metrics,
)

__all__ = [
    "Masses",
    "StepRollouts",
    "expected_masses",
    "group_masses",
    "masses",
    "population_masses",
    "rollout_metrics",
    "stacked_rollout_metrics",
]
