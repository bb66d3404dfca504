"""Cutoffs: where in their training runs are compared.

`--at` compares runs within their training instead of at its end, at equal cost or at an equal
value of a metric:

    steps=200, rollouts=50000, seconds=60    after this cost
    rollouts                                 after the cost of the cheapest run
    pass@1=0.5                               where this first reaches 0.5, between evaluations

The curve of an evaluated column is a straight line between two evaluations, which says too little
where these are far apart: training moves most at its start. A run that comes to a value between
two evaluations more than `MAX_GAP` of its steps apart is left out.

Comparisons at equal steps are unequal where runs spend unevenly: a method that draws more
rollouts has seen more at the same step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from advsweep.errors import ConfigError, ReportError, counted
from advsweep.report.data.windows import Curve, step_at
from advsweep.statistics import value_at

COSTS = ("steps", "rollouts", "tokens", "seconds")

MAX_GAP = 0.05
"""The largest gap between two evaluations that is interpolated, as a part of the run's steps."""

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


@dataclass(frozen=True)
class Arrivals:
    """Where runs come to a value.

    Attributes:
        steps: the step at which each run comes to it; NaN for one that never does.
        gaps: of the runs that come to it between two evaluations too far apart: the steps between
            these, and those of the run.
    """

    steps: Mapping[int, float]
    gaps: Mapping[int, tuple[int, int]]

    @property
    def reached(self) -> CutoffSteps:
        """The runs that come to it, with the step."""
        return reaching(self.steps)

    @property
    def usable(self) -> CutoffSteps:
        """The runs that are compared, with the step."""
        return {run_id: step for run_id, step in self.reached.items() if run_id not in self.gaps}


def arrivals(
    cutoff: Cutoff, curves: Mapping[int, Curve], lengths: Mapping[int, int] | None = None
) -> Arrivals:
    """Return where each run comes to a cutoff.

    Args:
        curves: of what the cutoff is a value. That of a training metric is smoothed.
        lengths: the steps of each run, if the curves are of evaluations.
    """
    assert cutoff.value is not None
    # A cost only grows, so that it comes from below.
    steps = {run_id: step_at(curve, cutoff.value) for run_id, curve in curves.items()}
    gaps: dict[int, tuple[int, int]] = {}
    for run_id, step in reaching(steps).items():
        at = curves[run_id][0][~np.isnan(curves[run_id][1])]
        after = int(np.searchsorted(at, step))
        gap = 0 if at[after] == step else int(at[after] - at[after - 1])
        if lengths is not None and gap > MAX_GAP * lengths[run_id]:
            gaps[run_id] = gap, lengths[run_id]
    return Arrivals(steps, gaps)


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


def refuse_nowhere(cutoff: Cutoff, curves: Mapping[int, Curve], found: Arrivals) -> None:
    """Refuse a value at which no run of a table can be compared.

    Raises:
        ReportError: no run comes to it, or all do so in a gap between evaluations.
    """
    if found.usable:
        return
    if found.gaps:
        raise ReportError(f"--at {cutoff.text}: {describe_gaps(found)}")
    seen = [value for _, values in curves.values() for value in values if value == value]
    known = f"they are from {min(seen):.3f} to {max(seen):.3f}" if seen else "none has any"
    raise ReportError(f"--at {cutoff.text}: no run of the table comes to it; {known}")


def describe_gaps(found: Arrivals) -> str:
    """Say how many runs come to a value in a gap between evaluations, and what to do."""
    gap, steps = max(found.gaps.values())
    return (
        f"{len(found.gaps)} of {counted(len(found.steps), 'run')} come to it between two "
        f"evaluations more than {MAX_GAP:.0%} of their steps apart ({gap} of {steps}), too far to "
        f"interpolate, and are left out of its numbers; evaluation.every="
        f"{max(1, math.floor(MAX_GAP * steps))}, or evaluation.at, makes more evaluations"
    )


def reaching(steps: Mapping[int, float]) -> dict[int, float]:
    """Returns the runs that come to a cutoff, with the step."""
    return {run_id: step for run_id, step in steps.items() if not math.isnan(step)}
