"""Metrics of a step's rollouts and advantages, and what estimators do to groups."""

from advsweep.diagnostics.group_statistics import Collapse, collapse
from advsweep.diagnostics.masses import (
    Masses,
    expected_masses,
    group_masses,
    masses,
    population_masses,
)
from advsweep.diagnostics.rollouts import rollout_metrics, stacked_rollout_metrics

__all__ = [
    "Collapse",
    "Masses",
    "collapse",
    "expected_masses",
    "group_masses",
    "masses",
    "population_masses",
    "rollout_metrics",
    "stacked_rollout_metrics",
]
