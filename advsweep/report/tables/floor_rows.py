"""Rows of the floors of a task: what answerers without skill achieve on the same problems."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from advsweep.report.data.columns import Column
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.data.floors import find_common_floors
from advsweep.report.tables.rows import make_cell
from advsweep.report.tables.types import Cell, Row, RowKind
from advsweep.statistics import mean_over_problems

if TYPE_CHECKING:
    from advsweep.store import EvaluationRecord
    from advsweep.tasks.floors import Floor


def floor_rows(
    evaluated: EvaluationsByTask, columns: Sequence[Column], label: str
) -> tuple[list[Row], list[str]]:
    """Makes a row for each floor of the tasks in columns of pass@k.

    Its numbers are exact: they have no seeds, and no interval over problems either, as they are
    those of the evaluated problems.

    Args:
        label: the key that holds the floor's name.

    Returns:
        The rows, and a sentence about each.
    """
    known: dict[str, tuple[EvaluationRecord, Mapping[str, Floor]]] = {}
    for column in filter(_has_floors, columns):
        task = evaluated.of(column.task)
        found = None if task is None else find_common_floors(task)
        known |= {} if found is None else {column.name: found}
    named = {name: floor for _, floors in known.values() for name, floor in floors.items()}
    rows = [
        Row(
            group={label: name},
            n=1,
            seeds=(),
            cells={column.name: _cell(name, column, known.get(column.name)) for column in columns},
            kind=RowKind.FLOOR,
        )
        for name in named
    ]
    return rows, [_describe(floor) for floor in named.values()]


def _has_floors(column: Column) -> bool:
    # Problems chosen by a base's solve rate are others for each seed, as training problems may be.
    chosen = column.base is not None or column.over is not None or column.is_train
    return column.k is not None and column.is_single and not chosen


def _cell(
    name: str, column: Column, known: tuple[EvaluationRecord, Mapping[str, Floor]] | None
) -> Cell:
    if known is None or column.k is None or name not in known[1]:
        return make_cell([])
    record, floors = known
    values = floors[name].pass_at(column.k, record.problem_ids)
    if column.above is not None:
        if column.above not in floors:
            return make_cell([])
        values = values - floors[column.above].pass_at(column.k, record.problem_ids)
    if column.level is not None:
        values = np.where(record.levels == column.level, values, np.nan)
    mean = float(mean_over_problems(values))
    return make_cell([] if math.isnan(mean) else [mean])


def _describe(floor: Floor) -> str:
    exact = "computed exactly"
    if floor.standard_error:
        exact = f"computed to a standard error of {floor.standard_error:.2g} for each problem"
    return (
        f"{floor.name}: a floor, which is no model: {floor.help}; pass@k = 1 - (1 - p)ᵏ of each "
        f"problem, {exact}"
    )
