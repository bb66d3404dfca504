"""Metrics of a step's rollouts and advantages, and analyses of weights and hidden states."""

from advsweep.diagnostics.collapse import Collapse, collapse, collapse_after
from advsweep.diagnostics.masses import (
    EntropyTerms,
    Masses,
    entropy_terms,
    expected_masses,
    group_masses,
    masses,
    population_masses,
    turn_masses,
)
from advsweep.diagnostics.rollouts import rollout_metrics, stacked_rollout_metrics

__all__ = [
    "Collapse",
    "EntropyTerms",
    "Masses",
    "collapse",
    "collapse_after",
    "entropy_terms",
    "expected_masses",
    "group_masses",
    "masses",
    "population_masses",
    "rollout_metrics",
    "stacked_rollout_metrics",
    "turn_masses",
]
