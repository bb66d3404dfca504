"""The rows of a report: replicates, base models, and models without a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from advsweep.report.data.columns import Column
from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations
from advsweep.report.data.grouping import Group, common_group
from advsweep.report.data.measure import Values, over_problems, scores
from advsweep.report.tables.types import Cell, Row
from advsweep.statistics import student_t_interval
from advsweep.statistics.samples import ROUNDING
from advsweep.store import EvaluationRecord, RunRecord

BASE = "base"
MOST_SINGLE = 30
"""The most rows of a single evaluation that get intervals over problems: resampling takes time."""

_SHORT = 8  # characters of a hash


def trained_row(
    group: Group, members: Sequence[RunRecord], values: Values, pruned: Mapping[str, int]
) -> Row:
    """Makes a row of replicates; the value of a seed averages over the row's configurations.

    A seed that lacks one of the configurations has no value: its mean would be of others.

    Args:
        pruned: how many runs of each configuration were stopped early, by config hash.
    """
    by_seed: dict[int, list[int]] = {}
    for run in members:
        by_seed.setdefault(run.seed, []).append(run.id)
    hashes = {run.config_hash for run in members}
    seeds = sorted(by_seed)

    def value(by_run: Mapping[int, float], seed: int) -> float:
        own = [by_run.get(run_id, math.nan) for run_id in by_seed[seed]]
        if len(hashes) == 1:
            return own[0]
        return math.fsum(own) / len(own) if len(own) == len(hashes) else math.nan

    return Row(
        group=group,
        n=len(seeds),
        seeds=tuple(seeds),
        cells={
            name: make_cell(value(by_run, seed) for seed in seeds)
            for name, by_run in values.items()
        },
        pruned=sum(pruned.get(config_hash, 0) for config_hash in hashes),
        runs=len(members),
    )


def without_intervals(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Removes the intervals of some columns, whose values are 0 and 1: t is not for those."""

    def bare(cell: Cell) -> Cell:
        return replace(cell, low=math.nan, high=math.nan)

    return [
        replace(row, cells={**row.cells, **{name: bare(row.cells[name]) for name in names}})
        for row in rows
    ]


def with_problems(
    rows: Sequence[Row],
    records: Sequence[Mapping[str, EvaluationRecord]],
    columns: Sequence[Column],
) -> list[Row]:
    """Adds intervals over problems to the numbers that come from a single evaluation.

    Args:
        records: for each row, its evaluation in each column that has a single one.
    """
    by_name = {column.name: column for column in columns}
    return [
        replace(
            row,
            cells={
                name: replace(cell, over_problems=over_problems(own[name], by_name[name]))
                if name in own and cell.n == 1
                else cell
                for name, cell in row.cells.items()
            },
        )
        for row, own in zip(rows, records, strict=True)
    ]


def single_evaluations(
    members: Sequence[RunRecord], evaluated: EvaluationsByTask, columns: Sequence[Column]
) -> dict[str, EvaluationRecord]:
    """Returns the evaluation in each column of a row's only run; nothing for several runs."""
    if len(members) > 1:
        return {}
    return {
        column.name: task.final[members[0].id]
        for column in columns
        if column.is_single and column.over is None and column.base is None
        if (task := evaluated.of(column.task)) is not None and members[0].id in task.final
    }


def make_cell(values: Iterable[float]) -> Cell:
    """Returns the mean of some values, without NaN, and its interval."""
    listed = tuple(values)
    known = [value for value in listed if not math.isnan(value)]
    if len(known) > 1 and max(known) - min(known) <= ROUNDING * abs(known[0]):
        # Rounding must not make an interval where nothing varies.
        return Cell(known[0], known[0], known[0], len(known), listed)
    # Infinite values have an infinite mean and no interval.
    with np.errstate(invalid="ignore"):
        return Cell(*student_t_interval(known), values=listed)


def base_rows(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
    evaluated: EvaluationsByTask,
    columns: Sequence[Column],
    label: str,
) -> list[Row]:
    """Makes a row for each base model of the runs.

    Args:
        label: the key that holds the name `base`.
    """
    subjects = {
        run_id: record.subject
        for task in evaluated.tasks.values()
        for run_id, record in task.base.items()
    }
    users: dict[str, list[Group]] = {}
    for group, members in groups:
        for run in members:
            if run.id in subjects:
                users.setdefault(subjects[run.id], []).append(group)
    return untrained_rows(
        _base_groups(users, label),
        evaluated,
        columns,
        lambda task: {record.subject: record for record in task.base.values()},
    )


def model_rows(evaluated: EvaluationsByTask, columns: Sequence[Column], label: str) -> list[Row]:
    """Makes a row for each model without a run that was evaluated like the table's runs."""
    named: dict[str, Group] = {
        record.settings["model"]: {label: f"model {record.settings['model']}"}
        for task in evaluated.tasks.values()
        for record in task.models
    }
    rows = untrained_rows(
        named,
        evaluated,
        columns,
        lambda task: {record.settings["model"]: record for record in task.models},
    )
    return [row for row in rows if any(cell.n for cell in row.cells.values())]


def untrained_rows(
    named: Mapping[str, Group],
    evaluated: EvaluationsByTask,
    columns: Sequence[Column],
    choose: Callable[[TaskEvaluations], Mapping[str, EvaluationRecord]],
) -> list[Row]:
    """Makes a row for each model that no run trained.

    Args:
        named: the group of each row, by a key of the model.
        choose: returns a task's evaluations by the same keys.
    """
    values = {
        column.name: scores(evaluated, column, choose) if column.is_single else {}
        for column in columns
    }
    rows = [
        Row(
            group=group,
            n=1,
            seeds=(),
            cells={
                name: make_cell([found[key]] if key in found else [])
                for name, found in values.items()
            },
        )
        for key, group in named.items()
    ]
    if len(rows) > MOST_SINGLE:
        return rows
    of_columns = {
        column.name: choose(task)
        for column in columns
        if column.is_single and column.over is None and column.base is None
        if (task := evaluated.of(column.task)) is not None
    }
    records = [
        {name: chosen[key] for name, chosen in of_columns.items() if key in chosen} for key in named
    ]
    return with_problems(rows, records, columns)


def _base_groups(users: Mapping[str, Sequence[Group]], label: str) -> dict[str, Group]:
    """Names each base model; several are named by the keys that differ between their runs."""
    if len(users) == 1:
        return {subject: {label: BASE} for subject in users}
    common = {subject: common_group(groups) for subject, groups in users.items()}
    named: dict[str, Group] = {}
    for subject, own in common.items():
        differing = {
            key: value
            for key, value in own.items()
            if key != label and any(other.get(key) != value for other in common.values())
        }
        named[subject] = {label: BASE, **differing}
    alike = list(named.values())
    return {
        subject: {**group, "base": subject.removeprefix("base:")[:_SHORT]}
        if alike.count(group) > 1
        else group
        for subject, group in named.items()
    }
