"""Comparisons within the training: where each run is compared, and which runs never come there."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from advsweep.errors import counted
from advsweep.report.data.columns import Column
from advsweep.report.data.cutoffs import (
    Arrivals,
    Cutoff,
    CutoffSteps,
    at_cost,
    describe_gaps,
    refuse_nowhere,
)
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.data.filters import show_key
from advsweep.report.data.grouping import Group
from advsweep.report.data.measure import TrainingCurves
from advsweep.store import RunRecord

_NAMED = 6  # rows in a sentence


def compare_at(
    curves: TrainingCurves, evaluated: EvaluationsByTask, at: Cutoff
) -> tuple[Arrivals, str]:
    """Return where each run is compared, and a sentence about it.

    Raises:
        NotFoundError: no run has the metric of the cutoff.
        ReportError: no run can be compared at the cutoff.
    """
    if at.is_cost:
        budget, steps = at_cost(at, curves.of_cost(at.what))
        found = Arrivals(steps, {})
        shown = f"{budget:.4g}" if budget < 1000 else f"{budget:.0f}"
        where = f"where it had spent {shown} {at.what}"
    else:
        found = curves.arrivals(at)
        refuse_nowhere(at, curves.of_cutoff(at), found)
        where = f"where {at.what} first comes to {at.value:g}"
    text = f"each run as it was {where}: steps {_range(found.usable)}"
    return found, text + _gaps(evaluated)


def own_cutoffs(columns: Iterable[Column]) -> dict[str, Cutoff]:
    """Returns the cutoffs of columns that have one of their own, by text."""
    return {column.at.text: column.at for column in columns if column.at is not None}


def describe_own(
    curves: TrainingCurves, evaluated: EvaluationsByTask, at: Cutoff
) -> tuple[Arrivals, str]:
    """Return where each run comes to a column's own cutoff, and a sentence about it."""
    found = curves.arrivals(at, at.text)
    if not found.reached:
        return found, f"@{at.text}: no run of the table comes to it"
    if not found.usable:
        return found, f"@{at.text}: no run of the table can be compared there"
    return found, f"@{at.text}: at steps {_range(found.usable)}{_gaps(evaluated)}"


def describe_missing(groups: Sequence[tuple[Group, Sequence[RunRecord]]], found: Arrivals) -> str:
    """Say how many runs are not compared at a cutoff, and why; empty if all are."""
    reached, in_gaps = found.reached, f"; {describe_gaps(found)}" if found.gaps else ""
    rows: list[str] = []
    missing = total = 0
    for group, members in groups:
        own = [run for run in members if run.id not in reached]
        missing, total = missing + len(own), total + len(members)
        if own:
            seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in own}))
            rows.append(f"{_name(group)}: {len(own)} of {len(members)} (seeds {seeds})")
    if not missing:
        return in_gaps
    shown = rows[:_NAMED] + (
        [counted(len(rows) - _NAMED, "more row")] if len(rows) > _NAMED else []
    )
    return (
        f"; {missing} of {total} runs do not come to it and are left out of its numbers, by row: "
        f"{'; '.join(shown)}{in_gaps}"
    )


def _name(group: Mapping[str, Any]) -> str:
    keys = {key: show_key(value) for key, value in group.items()}
    return ", ".join(v if key == "estimator" else f"{key}={v}" for key, v in keys.items())


def _range(cutoff_steps: CutoffSteps) -> str:
    low, high = min(cutoff_steps.values()), max(cutoff_steps.values())
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _gaps(evaluated: EvaluationsByTask) -> str:
    gaps = [
        later.step - earlier.step
        for task in evaluated.tasks.values()
        for records in task.along.values()
        for earlier, later in itertools.pairwise(records)
    ]
    if not gaps:
        return ""
    steps = counted(max(gaps), "step")
    return f", evaluations on the straight line between two, {steps} apart at most"
