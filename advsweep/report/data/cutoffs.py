"""Cutoffs: where in their training runs are compared.

`--at` compares runs within their training instead of at its end, at equal cost or at an equal
value of a metric:

    steps=200, rollouts=50000, seconds=60    after this cost
    rollouts                                 after the cost of the cheapest run
    pass@1=0.5                               where this first reaches 0.5, between evaluations

Comparisons at equal steps are unequal where runs spend unevenly: a method that draws more
rollouts has seen more at the same step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from advsweep.errors import ConfigError, ReportError
from advsweep.report.data.windows import Curve, step_at
from advsweep.statistics import value_at

COSTS = ("steps", "rollouts", "tokens", "seconds")

CutoffSteps = Mapping[int, float]
"""The step at which each run is compared; it may lie between two steps."""


@dataclass(frozen=True)
class Cutoff:
    """Where in their training runs are compared.

    Attributes:
        what: a cost, or the name of a column.
        value: the value to reach; None for the largest cost that all runs reach.
    """

    what: str
    value: float | None = None

    @property
    def is_cost(self) -> bool:
        return self.what in COSTS

    @property
    def text(self) -> str:
        return self.what if self.value is None else f"{self.what}={self.value:g}"


def parse_cutoff(text: str, option: str = "--at") -> Cutoff:
    """Parses a cutoff as users write it.

    Args:
        option: the option that the text comes from, for the message.

    Raises:
        ConfigError: the text is no cutoff.
    """
    # The name of a column may have an = of its own: pass@1[level=3]=0.5.
    what, equals, written = text.strip().rpartition("=")
    what = what if equals else written
    try:
        value = float(written) if equals else None
    except ValueError:
        value = math.nan
    wrong = what not in COSTS if value is None else not math.isfinite(value)
    if not what or wrong or (what in COSTS and value is not None and value <= 0):
        raise ConfigError(
            f"{option}: expected {', '.join(COSTS)}, one of these with =NUMBER, or "
            f"COLUMN=NUMBER, got {text!r}"
        )
    return Cutoff(what, value)


def steps_at(cutoff: Cutoff, curves: Mapping[int, Curve]) -> dict[int, float]:
    """Returns the step at which each run comes to a cutoff; NaN for one that never does.

    Args:
        curves: of what the cutoff is a value. That of a training metric is smoothed.
    """
    assert cutoff.value is not None
    # A cost only grows, so that it comes from below.
    return {run_id: step_at(curve, cutoff.value) for run_id, curve in curves.items()}


def at_cost(cutoff: Cutoff, curves: Mapping[int, Curve]) -> tuple[float, CutoffSteps]:
    """Returns the budget, and the step at which each run has spent it, if it ever does.

    Args:
        curves: the steps of each run, and its cost after each.

    Raises:
        ReportError: no run recorded the cost, or none reaches the budget.
    """
    if not curves:
        raise ReportError(f"--at {cutoff.what}: no run of the table recorded what it takes")
    costs = [float(values[-1]) for _, values in curves.values()]
    budget = min(costs) if cutoff.value is None else cutoff.value
    reached = reaching(
        {i: float(value_at(values, at, budget)) for i, (at, values) in curves.items()}
    )
    if not reached:
        raise ReportError(
            f"--at {cutoff.what}={budget:g}: expected at most the {max(costs):g} that a run of "
            "the table has spent"
        )
    return budget, reached


def at_value(cutoff: Cutoff, curves: Mapping[int, Curve]) -> CutoffSteps:
    """Returns the step at which each run's curve first reaches a value, from whichever side.

    Runs that never reach the value are left out.

    Raises:
        ReportError: no run reaches it.
    """
    reached = reaching(steps_at(cutoff, curves))
    if not reached:
        seen = [value for _, values in curves.values() for value in values if value == value]
        known = f"they are from {min(seen):.3f} to {max(seen):.3f}" if seen else "none has any"
        raise ReportError(f"--at {cutoff.text}: no run of the table comes to it; {known}")
    return reached


def reaching(steps: Mapping[int, float]) -> dict[int, float]:
    """Returns the runs that come to a cutoff, with the step."""
    return {run_id: step for run_id, step in steps.items() if not math.isnan(step)}
