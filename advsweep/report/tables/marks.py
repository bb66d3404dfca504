"""Marks: the best and the second best of a column, where they are significant.

A primary outcome with a better direction compares the rows with at least three seeds. The best
mean is marked if it is significantly better than all other rows, and the second best if it is
significantly better than the rows below it: the 95 % intervals of the differences exclude 0, and
that to the baseline is significant after the correction. If the best mean is not, nothing in the
column is marked. Base models take no part: no run trained them.
"""

from __future__ import annotations

import math

from advsweep.report.data.columns import Column, find_outcome
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.tables.comparison import LEVEL
from advsweep.report.tables.designs import Spreads
from advsweep.report.tables.types import Report
from advsweep.writing import Mark

SEEDS_FOR_A_MARK = 3


def find_marks(report: Report) -> dict[tuple[int, str], Mark]:
    """Find the best and second best rows of the primary outcomes, where they are significant.

    Without a comparison with a baseline nothing is marked.

    Returns:
        The marks by row index and column name.
    """
    marks: dict[tuple[int, str], Mark] = {}
    spreads = Spreads(report.arms)
    for column in report.columns:
        is_outcome = find_outcome(column, report.outcomes) is not None
        if column.direction is MetricDirection.NEITHER or not is_outcome or not report.baseline:
            continue
        means = {
            i: row.cells[column.name].mean
            for i, row in enumerate(report.rows)
            if not row.is_untrained
            and row.cells[column.name].n >= SEEDS_FOR_A_MARK
            and math.isfinite(row.cells[column.name].mean)
        }
        higher = column.direction is MetricDirection.HIGHER
        ranked = sorted(means, key=means.__getitem__, reverse=higher)
        if len(ranked) < 2:
            continue
        for first_below, (mark, row) in enumerate(zip(Mark, ranked, strict=False), start=1):
            below = ranked[first_below:]
            # The last row is better than nothing.
            if not below or not all(
                _is_significant(report, spreads, column, row, other) for other in below
            ):
                break
            marks[row, column.name] = mark
    return marks


def _is_significant(report: Report, spreads: Spreads, column: Column, row: int, other: int) -> bool:
    compared = spreads.compare(report.rows[row], report.rows[other], column.name)
    # Equal differences have an interval without a width, and no test.
    if not compared.is_settled or compared.sd == 0:
        return False
    return not any(
        d.p_adjusted > LEVEL
        for d in report.primary
        if {d.row, d.baseline} == {row, other} and find_outcome(column, [d.column]) is not None
    )
