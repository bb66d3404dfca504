"""Ranks: the places that the data leave open to the rows of a report in a column."""

from __future__ import annotations

import math
from collections.abc import Sequence

from advsweep.errors import ReportError
from advsweep.report.data.columns import Column
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.tables.types import Row
from advsweep.statistics import RankInterval, rank_intervals


def rank_rows(rows: Sequence[Row], column: Column) -> tuple[list[Row], dict[int, RankInterval]]:
    """Sort rows by the interval of their rank in a column, and return the intervals by index.

    Untrained rows and rows with a single seed take no part; they come first and last.

    Raises:
        ReportError: neither direction of the column is better.
    """
    if column.direction is MetricDirection.NEITHER:
        raise ReportError(
            f"--sort rank:{column.name}: expected a column whose higher or lower values are "
            "better, such as pass@1 or collapse/acr"
        )
    higher = column.direction is MetricDirection.HIGHER
    untrained = [row for row in rows if row.is_untrained]
    trained = [row for row in rows if not row.is_untrained]
    intervals = rank_intervals([row.by_seed(column.name) for row in trained], higher=higher)
    ranked = sorted(zip(trained, intervals, strict=True), key=_order)
    ranks = {
        place: interval
        for place, (_, interval) in enumerate(ranked, start=len(untrained))
        if interval is not None
    }
    return [*untrained, *(row for row, _ in ranked)], ranks


def _order(ranked: tuple[Row, RankInterval | None]) -> tuple[float, ...]:
    """Return the sort key of a row with its interval; rows without one are last."""
    _, interval = ranked
    if interval is None:
        return (math.inf,)
    return interval.low, interval.high, interval.place
