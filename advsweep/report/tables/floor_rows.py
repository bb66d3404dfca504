"""Rows of the floors of a task: what answerers without skill achieve on the same problems."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from advsweep.report.data.columns import Column
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.data.floors import EvaluatedFloors, find_common_floors
from advsweep.report.data.grouping import Group
from advsweep.report.tables.rows import make_cell
from advsweep.report.tables.types import Row, RowKind
from advsweep.statistics import mean_over_problems

if TYPE_CHECKING:
    from advsweep.tasks.base import Floor


def floor_rows(
    evaluated: EvaluationsByTask, columns: Sequence[Column], label: str
) -> Iterable[tuple[Row, str]]:
    """Make a row for each floor of the tasks in columns of pass@k, and a sentence about it.

    Its numbers are exact, as they are those of the evaluated problems: they have no interval over
    problems, and no seeds unless each seed has problems of its own on which they differ.

    Args:
        label: the key that holds the floor's name.
    """
    known: dict[str, Mapping[int | None, EvaluatedFloors]] = {}
    for column in filter(_has_floors, columns):
        task = evaluated.of(column.task)
        known[column.name] = {} if task is None else find_common_floors(task)
    named = {
        name: floor
        for found in known.values()
        for _, floors in found.values()
        for name, floor in floors.items()
    }
    for name, floor in named.items():
        yield _row(name, {label: name}, columns, known), _describe(floor)


def _row(
    name: str,
    group: Group,
    columns: Sequence[Column],
    known: Mapping[str, Mapping[int | None, EvaluatedFloors]],
) -> Row:
    values = {
        column.name: {
            seed: _value(name, column, found) for seed, found in known.get(column.name, {}).items()
        }
        for column in columns
    }
    seeds = sorted({seed for own in values.values() for seed in own if seed is not None})
    if all(len(set(own.values())) <= 1 for own in values.values()):
        seeds = []
    cells = {
        column: make_cell(
            [own.get(seed, own.get(None, math.nan)) for seed in seeds]
            if seeds
            else [value for value in list(own.values())[:1] if not math.isnan(value)]
        )
        for column, own in values.items()
    }
    return Row(group=group, n=len(seeds) or 1, seeds=tuple(seeds), cells=cells, kind=RowKind.FLOOR)


def _has_floors(column: Column) -> bool:
    # Problems chosen by a base's solve rate are others for each seed, as training problems may be.
    chosen = column.base is not None or column.over is not None or column.is_train
    return column.k is not None and column.is_single and not chosen


def _value(name: str, column: Column, evaluated: EvaluatedFloors) -> float:
    """Returns a floor's mean over the problems of an evaluation; NaN if it has none."""
    record, floors = evaluated
    needed = {name} if column.above is None else {name, column.above}
    if column.k is None or not needed <= set(floors):
        return math.nan
    values = floors[name].pass_at(column.k, record.problem_ids)
    if column.above is not None:
        values = values - floors[column.above].pass_at(column.k, record.problem_ids)
    if column.level is not None:
        values = np.where(record.levels == column.level, values, np.nan)
    return float(mean_over_problems(values))


def _describe(floor: Floor) -> str:
    exact = "computed exactly"
    if floor.standard_error:
        exact = f"computed to a standard error of {floor.standard_error:.2g} for each problem"
    return (
        f"{floor.name}: chance baseline: {floor.help}; pass@k = 1 - (1 - p)ᵏ of each "
        f"problem, {exact}"
    )
