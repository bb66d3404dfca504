"""Best and second of each column, where the data can tell.

Rows are rivals in a column that has a better way, if at least three seeds stand behind their
number; base models are not, as they were not trained by any. The rival with the best mean is
marked if the 95 % interval of its difference to every other rival leaves out zero, and the
next one if the same is true of it and those behind it. Differences are paired by seed where
rows share seeds. Where the first cannot be told from another, nothing in the column is marked.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from advsweep.report.data.columns import Column, MetricDirection
from advsweep.report.tables.document import Mark
from advsweep.report.tables.types import Report
from advsweep.statistics import compare_seeds

SEEDS_FOR_A_MARK = 3

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class BestMarks:
    """Which cells of a report are marked.

    Attributes:
        cells: by number of the row and name of the column.
        undecided: columns with rivals of which no best can be told, and what sets these apart.
    """

    cells: Mapping[tuple[int, str], Mark]
    undecided: Sequence[tuple[str, str]]


def find_marks(report: Report) -> BestMarks:
    """The marked cells, and the columns in which nothing could be told apart."""
    cells: dict[tuple[int, str], Mark] = {}
    undecided: list[tuple[str, str]] = []
    for column in report.columns:
        for place, rows in _fields(report).items():
            rivals = _rivals(report, column, rows)
            if len(rivals) < 2:
                continue
            found = _marked(report, column, rivals)
            cells |= {(row, column.name): mark for row, mark in found.items()}
            if not found:
                undecided.append((column.name, place))
    return BestMarks(cells, undecided)


def _fields(report: Report) -> dict[str, list[int]]:
    """The rows that are rivals, by the values of the keys that set them apart."""
    fields: dict[str, list[int]] = {}
    for i, row in enumerate(report.rows):
        place = ", ".join(str(row.group.get(key, "")) for key in (*report.pivot, *report.apart))
        fields.setdefault(place, []).append(i)
    return fields


def _rivals(report: Report, column: Column, rows: Sequence[int]) -> list[int]:
    """The rows to be compared, the best first."""
    if column.direction is MetricDirection.NEITHER:
        return []
    rivals = [
        i
        for i in rows
        if not report.rows[i].is_base
        and report.rows[i].cells[column.name].n >= SEEDS_FOR_A_MARK
        and math.isfinite(report.rows[i].cells[column.name].mean)
    ]
    return sorted(
        rivals,
        key=lambda i: report.rows[i].cells[column.name].mean,
        reverse=column.direction is MetricDirection.HIGHER,
    )


def _marked(report: Report, column: Column, rivals: Sequence[int]) -> dict[int, Mark]:
    found: dict[int, Mark] = {}
    for mark, row in zip(Mark, rivals, strict=False):
        behind = rivals[len(found) + 1 :]
        if not all(_is_told(report, column, row, other) for other in behind):
            break
        found[row] = mark
    return found


def _is_told(report: Report, column: Column, one: int, other: int) -> bool:
    a, b = (report.rows[i].by_seed(column.name) for i in (one, other))
    return compare_seeds(a, b).is_settled


def rank(values: Mapping[K, float], better: MetricDirection) -> dict[K, Mark]:
    """Best and second of printed numbers, which have no seeds to ask; ties share a mark."""
    if len(values) < 2:
        return {}
    ranked = sorted(set(values.values()), reverse=better is MetricDirection.HIGHER)
    return {
        key: mark
        for mark, best in zip(Mark, ranked, strict=False)
        for key, value in values.items()
        if value == best
    }
