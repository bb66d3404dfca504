"""Where in its training each run is looked at: at equal cost, or where a metric is equal.

    steps=200, rollouts=50000, seconds=60    after so much
    rollouts                                 after as much as the run that spent least has spent
    pass@1=0.5                               where this first comes to 0.5, between evaluations

Costs that runs spend unevenly make comparisons at equal steps unequal: a method that draws more
rollouts has seen more at the same step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from advsweep.errors import ConfigError, ReportError
from advsweep.report.data.columns import COSTS
from advsweep.statistics import value_at

CutoffSteps = Mapping[int, float]
"""The step of each run, which may lie between two."""


@dataclass(frozen=True)
class Cutoff:
    """What makes runs comparable.

    Attributes:
        what: a cost, or the name of a column.
        value: of it; None for the largest that all runs came to, which takes a cost.
    """

    what: str
    value: float | None = None

    @property
    def is_cost(self) -> bool:
        return self.what in COSTS


def parse_cutoff(text: str, option: str = "--at") -> Cutoff:
    """A cutoff as users write it.

    Args:
        option: what gave the text, for the message.

    Raises:
        ConfigError: it is not one.
    """
    match = re.fullmatch(r"([^=]+?)(?:=(.*))?", text.strip())
    expected = f"{', '.join(COSTS)}, one of these with =NUMBER, or COLUMN=NUMBER"
    if match is None:
        raise ConfigError(f"{option}: expected {expected}, got {text!r}")
    what, written = match.groups()
    if written is None:
        if what not in COSTS:
            raise ConfigError(f"{option}: expected {expected}, got {text!r}")
        return Cutoff(what)
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (what in COSTS and value <= 0):
        raise ConfigError(f"{option}: expected {expected}, got {text!r}")
    return Cutoff(what, value)


def at_cost(
    cutoff: Cutoff, curves: Mapping[int, tuple[np.ndarray, np.ndarray]]
) -> tuple[float, dict[int, float]]:
    """The budget, and the step at which each run has spent it; runs that never do are left out.

    Args:
        curves: of each run its steps, and what it had spent after each.

    Raises:
        ReportError: no run recorded the cost, or none comes to it.
    """
    if not curves:
        raise ReportError(f"--at {cutoff.what}: no run of the table recorded what it takes")
    spent = [float(values[-1]) for _, values in curves.values()]
    budget = min(spent) if cutoff.value is None else cutoff.value
    steps = {i: float(value_at(values, steps, budget)) for i, (steps, values) in curves.items()}
    reached = {run_id: step for run_id, step in steps.items() if not math.isnan(step)}
    if not reached:
        raise ReportError(
            f"--at {cutoff.what}={budget:g}: expected at most the {max(spent):g} that a run of "
            "the table has spent"
        )
    return budget, reached


def at_value(cutoff: Cutoff, curves: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> CutoffSteps:
    """The step at which the curve of each run first comes to a value, from whichever side.

    Between two points it is a straight line; runs whose curve never gets there are left out.

    Args:
        curves: of each run its steps, and the value at each.

    Raises:
        ReportError: no run gets there.
    """
    assert cutoff.value is not None
    steps: dict[int, float] = {}
    for run_id, (at, values) in curves.items():
        finite = values[~np.isnan(values)]
        # Of a curve that comes from above the mirror image comes from below.
        side = -1.0 if finite.size and finite[0] > cutoff.value else 1.0
        steps[run_id] = float(value_at(side * values, at, side * cutoff.value))
    reached = {run_id: step for run_id, step in steps.items() if not math.isnan(step)}
    if not reached:
        seen = [value for _, values in curves.values() for value in values if value == value]
        known = f"they are from {min(seen):.3f} to {max(seen):.3f}" if seen else "none has any"
        raise ReportError(
            f"--at {cutoff.what}={cutoff.value:g}: no run of the table comes to it; {known}"
        )
    return reached
