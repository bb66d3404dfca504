"""Best and second of each column.

Rows are rivals in a column that has a better way, if at least three seeds stand behind their
number; base models are not, as they were not trained by any. Numbers that are printed alike
are marked alike, and not at all if all of them are. A mark says whose mean is best, not that
the difference is significant.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from advsweep.report.columns import Better, Column
from advsweep.report.numbers import show
from advsweep.report.report import Report

SEEDS_FOR_A_MARK = 3


class Mark(Enum):
    """What a number is among its rivals."""

    BEST = "best"
    SECOND = "second"


def marks(report: Report) -> dict[tuple[int, str], Mark]:
    """The marked cells, by number of the row and name of the column."""
    found: dict[tuple[int, str], Mark] = {}
    for column in report.columns:
        rivals = _rivals(report, column)
        ranked = sorted(set(rivals.values()), reverse=column.better is Better.HIGHER)
        if len(ranked) < 2:
            continue
        for mark, value in zip(Mark, ranked, strict=False):
            for row, rival in rivals.items():
                if rival == value:
                    found[row, column.name] = mark
    return found


def _rivals(report: Report, column: Column) -> Mapping[int, float]:
    if column.better is Better.NEITHER:
        return {}
    return {
        i: float(show(row.cells[column.name].mean))
        for i, row in enumerate(report.rows)
        if not row.is_base and row.cells[column.name].n >= SEEDS_FOR_A_MARK
    }
