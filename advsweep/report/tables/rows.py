"""The rows of a report that runs trained, and the cells of all rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from advsweep.report.data.columns import Column
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.data.grouping import Group
from advsweep.report.data.measure import Values, over_problems
from advsweep.report.tables.types import Cell, Row
from advsweep.statistics import student_t_interval
from advsweep.statistics.intervals import ROUNDING
from advsweep.store import EvaluationRecord, RunRecord

MOST_SINGLE = 30
"""The most rows of a single evaluation that get intervals over problems: resampling takes time."""


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
        if column.is_resampled
        if (task := evaluated.of(column.task, train=column.is_train)) is not None
        and members[0].id in task.final
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
