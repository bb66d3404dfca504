"""Runs whose numbers at the end are of an earlier step than those of the others.

A run that crashed, was cut off, or has NaN from some step on ends with its last number, which is
of a model that was trained for fewer steps. Tables that average it with the others name it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from advsweep.errors import ConfigError, first_of
from advsweep.report.data.columns import Column, logged_metric
from advsweep.report.data.evaluation_sources import Evaluation
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.data.groups import Group
from advsweep.report.data.labels import name_group
from advsweep.report.data.sources import Analysis, Metric
from advsweep.store import RunRecord, Status, Store
from advsweep.store.imported import is_imported

# What becomes of such runs: they stay, or count as failed; a number is their value instead.
KEEP = "keep"
FAILED = "failed"

_NAMED = 6  # of what is listed at most
_STEPS = "steps"


@dataclass(frozen=True)
class EarlyEnds:
    """The runs that end early in one column.

    Attributes:
        column: the column.
        steps: the last step with a number, by run.
        others: the last step of the runs that they are averaged or compared with, by run.
    """

    column: Column
    steps: Mapping[int, int]
    others: Mapping[int, int]


def parse_ended_early(text: str, option: str = "--ended-early") -> str | float:
    """Return what becomes of runs that ended early: `KEEP`, `FAILED` or their value.

    Raises:
        ConfigError: the text is none of these.
    """
    if text in (KEEP, FAILED):
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(
            f"{option}: expected {KEEP}, {FAILED}, or a number that such runs count with, such as "
            f"0, got {text!r}"
        )
    return value


def find_early_ends(
    store: Store,
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
    columns: Iterable[Column],
    evaluated: EvaluationsByTask,
) -> list[EarlyEnds]:
    """Return the runs whose number in a column is of an earlier step than the others'.

    Rows that differ in the number of steps, which then names them, are no others.
    """
    ends = []
    everything = [run for _, runs in groups for run in runs]
    imported = {run.id for run in everything if is_imported(run.config)}
    for column in columns:
        last = _last_steps(store, everything, imported, column, evaluated)
        if not last:
            continue
        others: dict[int, int] = {}
        latest_of_all = max(last.values())
        for group, runs in groups:
            latest = latest_of_all
            if _STEPS in group:
                latest = max((last[run.id] for run in runs if run.id in last), default=0)
            others |= dict.fromkeys((run.id for run in runs), latest)
        early = {run_id: step for run_id, step in last.items() if step < others[run_id]}
        if early:
            ends.append(EarlyEnds(column, early, others))
    return ends


def _last_steps(
    store: Store,
    runs: Sequence[RunRecord],
    imported: Collection[int],
    column: Column,
    evaluated: EvaluationsByTask,
) -> dict[int, int]:
    """Return the last step of each run that a column has a number of; empty for other columns."""
    if column.at is not None or not _is_at_end(column):
        return {}
    source = column.source
    metric = logged_metric(column, evaluated)
    if isinstance(source, Evaluation) and metric is None:
        return _last_evaluations(evaluated, source, imported)
    if isinstance(source, Metric) and not isinstance(source, Analysis):
        metric = source.metric
    return {} if metric is None else _last_points(store, runs, imported, metric)


def _is_at_end(column: Column) -> bool:
    """Tell whether a column is of the end of the training."""
    return column.window is None or column.window.kind in ("end", "last")


def _last_evaluations(
    evaluated: EvaluationsByTask, source: Evaluation, imported: Collection[int]
) -> dict[int, int]:
    """Return the step of each imported run's last evaluation.

    Our own runs are evaluated after their last step.
    """
    if source.problems.is_mean or not imported:
        return {}
    task = source.problems.task_of(evaluated)
    if task is None:
        return {}
    return {run_id: record.step for run_id, record in task.final.items() if run_id in imported}


def _last_points(
    store: Store, runs: Sequence[RunRecord], imported: Collection[int], metric: str
) -> dict[int, int]:
    """Return the last step of each run that has a value of a metric."""
    last = store.metrics.last_steps([run.id for run in runs], metric)
    # Of ours, those that are done came to their last step.
    lengths = {
        run.id: run.steps for run in runs if run.status is Status.DONE and run.id not in imported
    }
    ended = [run_id for run_id, step in last.items() if step < lengths.get(run_id, step)]
    diverged = _diverged(store, ended, metric)
    # A metric of ours may be undefined at single steps, of which the last is one.
    return {
        run_id: lengths[run_id] if run_id in lengths and run_id not in diverged else step
        for run_id, step in last.items()
    }


def _diverged(store: Store, run_ids: Sequence[int], metric: str) -> set[int]:
    """Return the runs that have a metric at every step up to one, and never again."""
    diverged = set()
    for run_id, (_, values) in store.metrics.series(list(run_ids), metric).items():
        missing = np.isnan(values)
        if missing[-2:].all() and missing[int(np.argmax(missing)) :].all():
            diverged.add(run_id)
    return diverged


def describe_early_ends(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]], ends: Sequence[EarlyEnds]
) -> list[str]:
    """Return a sentence on the runs that end early, for each set of columns that they share."""
    headers: dict[str, list[str]] = {}
    for end in ends:
        rows = []
        for group, runs in groups:
            steps = [
                f"run {run.id} at step {end.steps[run.id]} of {end.others[run.id]}"
                for run in runs
                if run.id in end.steps
            ]
            if steps:
                rows.append(f"{name_group(group)} ({first_of(steps, _NAMED)})")
        headers.setdefault(first_of(rows, _NAMED, "; "), []).append(end.column.header)
    return [
        f"ended early: {', '.join(named)} of {rows}; `--ended-early {FAILED}` leaves such runs out "
        "as failed ones, `--ended-early 0` counts them with 0"
        for rows, named in headers.items()
    ]


@dataclass(frozen=True)
class SettledEnds:
    """What became of the runs that ended early.

    Attributes:
        groups: the rows with their runs; failed runs are gone.
        numbers: of each run, by its id.
        ends: the runs that stay, with the step at which they end.
        texts: sentences on the runs that count as failed.
    """

    groups: Sequence[tuple[Group, Sequence[RunRecord]]]
    numbers: pd.DataFrame
    ends: Sequence[EarlyEnds]
    texts: Sequence[str] = ()


def settle_early_ends(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
    numbers: pd.DataFrame,
    ends: Sequence[EarlyEnds],
    outcomes: Collection[str],
    ended_early: str | float,
) -> SettledEnds:
    """Settle what becomes of runs that end early: they stay, are gone, or have another value.

    Args:
        numbers: of each run, by its id.
        outcomes: the columns that decide which runs end early, if any run has a number of them;
            else all do.
        ended_early: `KEEP`, `FAILED`, or the value of such runs in the outcomes.
    """
    if not ends or ended_early == KEEP:
        return SettledEnds(groups, numbers, ends)
    deciding = {name for name in outcomes if numbers[name].notna().any()}
    ids = {
        run_id
        for end in ends
        if end.column.name in deciding or not deciding
        for run_id in end.steps
    }
    texts = [_describe_failed(groups, ids, ended_early)]
    if ended_early == FAILED:
        return SettledEnds(_without_runs(groups, ids), numbers, [], texts)
    changed = numbers.copy()
    failed = [run_id for run_id in numbers.index if run_id in ids]
    changed.loc[failed, :] = math.nan
    for end in ends:
        if end.column.name in outcomes:
            changed.loc[failed, end.column.name] = float(ended_early)
    return SettledEnds(groups, changed, [], texts)


def _describe_failed(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
    ids: Collection[int],
    ended_early: str | float,
) -> str:
    """Say how many runs of each row count as failed, and what that means."""
    counts = []
    for group, runs in groups:
        count = sum(run.id in ids for run in runs)
        if count:
            counts.append(f"{name_group(group)} {count} of {len(runs)} runs")
    meaning = "left out of all numbers, so that means are those of the runs that came to the end"
    if ended_early != FAILED:
        meaning = f"they count with {ended_early:g} in the outcomes, and in no other column"
    return f"failed, as they ended early: {', '.join(counts) or 'no run'}; {meaning}"


def _without_runs(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]], ids: Collection[int]
) -> list[tuple[Group, list[RunRecord]]]:
    """Return the rows without some runs; rows without any other are gone."""
    kept = [(group, [run for run in runs if run.id not in ids]) for group, runs in groups]
    return [(group, runs) for group, runs in kept if runs]
