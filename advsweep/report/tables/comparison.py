"""Rows compared: each with a baseline, and all of a column for its best and second best.

Differences are paired by seed where rows share seeds. Those of the primary outcomes have an
adjusted p and a verdict; all others are described.

A primary outcome with a better direction compares the rows with at least three seeds. The best
mean is marked if it is significantly better than all other rows, and the second best if it is
significantly better than the rows below it: the 95 % intervals of the differences exclude 0, and
that to the baseline is significant after the correction. If the best mean is not, nothing in the
column is marked. Base models take no part: no run trained them.

The spread of a difference is that of the rows' design, or their own; `designs.py` has the rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from advsweep.errors import NotFoundError, ReportError, nearest
from advsweep.report.data.columns import Column, find_outcome
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.data.runs import (
    METHOD,
    METHOD_NODES,
    name_group,
    parse_where,
    show_key,
)
from advsweep.report.tables.designs import Spreads
from advsweep.report.tables.types import Arm, Difference, Report, Row
from advsweep.statistics import (
    Comparison,
    RankInterval,
    benjamini_hochberg,
    improvement_share,
    rank_intervals,
    seeds_needed,
)
from advsweep.tasks.controls import CONTROL
from advsweep.writing import Mark

# Longer tables are compared only with a baseline that the user names.
MOST_ROWS = 30

# The largest adjusted p of a significant difference.
LEVEL = 0.05

# Numbers of seeds above this are not given: a spread from a few seeds cannot tell them.
MOST_SEEDS = 100

SEEDS_FOR_A_MARK = 3

_SMALLEST = 0.2  # in standard deviations: smaller takes more than MOST_SEEDS


@dataclass(frozen=True)
class BaselineRows:
    """The rows that others are compared with: those with these values of their keys.

    Attributes:
        values: the values of the keys.
        untrained: whether they are bases, floors or models without a run.
        tuned: the key whose value each row has chosen for itself; empty for none.
    """

    values: Mapping[str, Any]
    untrained: bool = False
    tuned: str = ""

    @property
    def text(self) -> str:
        """The baseline in words, such as `grpo` or `group_size=8`."""
        return name_group(self.values)

    def of(self, row: Row, rows: Sequence[Row]) -> int | None:
        """Returns the index of a row's baseline: the row that has its other keys.

        Raises:
            ReportError: several rows do.
        """
        if self._fits(row):
            return None
        found = [i for i, other in enumerate(rows) if self._fits(other) and self._alike(row, other)]
        if len(found) > 1:
            some = " and ".join(name_group(rows[i].group) for i in found[:2])
            raise ReportError(
                f"--baseline {self.text}: {name_group(row.group)} could be compared with {some}; "
                "give more of the baseline's keys"
            )
        return found[0] if found else None

    def _fits(self, row: Row) -> bool:
        return row.is_base == self.untrained and all(
            row.group.get(key, self) == value for key, value in self.values.items()
        )

    def _alike(self, row: Row, other: Row) -> bool:
        # Parameters of a component mean nothing for another component.
        own = (f"{CONTROL}.", *(f"{key}." for key in self.values))
        if METHOD in self.values:
            own = (*own, *METHOD_NODES)
        keys = other.group.keys() - self.values.keys()
        if not self.untrained:
            keys |= row.group.keys() - self.values.keys()
        return all(
            row.group.get(key) == other.group.get(key)
            for key in keys
            if key != self.tuned and not key.startswith(own)
        )


def default_baseline(rows: Sequence[Row]) -> BaselineRows | None:
    """Returns the first trained row's estimator, or its whole group if all share the estimator."""
    trained = [row for row in rows if not row.is_base]
    if len(trained) < 2 or len(trained) > MOST_ROWS:
        return None
    first = trained[0].group
    if all(METHOD in row.group for row in trained):
        return BaselineRows({METHOD: first[METHOD]})
    own = {key: value for key, value in first.items() if key.partition(".")[0] == "estimator"}
    baseline = BaselineRows(own or first)
    return BaselineRows(first) if all(map(baseline._fits, trained)) else baseline


def parse_baseline(text: str, rows: Sequence[Row], key: str) -> BaselineRows:
    """Parses a baseline: a value of `key`, or `KEY=VALUE ...`.

    Raises:
        NotFoundError: no row has these values.
        ReportError: the text is no baseline.
    """
    trained = [row for row in rows if not row.is_base]
    if "=" not in text:
        # A base or a floor is named by a value of the key as well.
        values = {show_key(row.group.get(key, "")): row for row in (*rows, *trained)}
        if text not in values:
            raise NotFoundError(f"--baseline: no row has {key}={text}; {nearest(text, values)}")
        row = values[text]
        return BaselineRows({key: row.group[key]}, untrained=row.is_base)
    filters = parse_where(text, "--baseline")
    for filter in filters:
        if filter.operator != "=" or len(filter.values) > 1:
            raise ReportError(f"--baseline: expected KEY=VALUE, got {filter.text!r}")
    baseline = BaselineRows({filter.key: filter.values[0] for filter in filters})
    if not any(baseline._fits(row) for row in trained):
        names = [name_group(row.group) for row in trained]
        raise NotFoundError(f"--baseline: no row has {text}; {nearest(text, names)}")
    return baseline


def compare_rows(
    rows: Sequence[Row],
    arms: Sequence[Arm],
    outcomes: Sequence[Column],
    others: Sequence[Column],
    baseline: BaselineRows,
    target: float | None = None,
) -> list[Difference]:
    """Compare every row with its baseline, in each column where both have at least two seeds.

    The p values of the primary outcomes are adjusted together, and no others.

    Args:
        arms: those whose spread counts, whether or not they are among the rows.
        outcomes: the primary outcomes.
        others: the columns that are described.
        target: the difference that seeds are counted for; by default the observed one.
    """
    pairs = [(i, baseline.of(row, rows)) for i, row in enumerate(rows) if not row.is_base]
    spreads = Spreads(arms)
    found: list[Difference] = []
    for place, column in enumerate([*outcomes, *others]):
        for row, other in pairs:
            if other is None:
                continue
            comparison = spreads.compare(rows[row], rows[other], column.name)
            # Single seeds have no interval.
            if math.isnan(comparison.low):
                continue
            aim = comparison.difference if target is None else target
            improvement = None
            if column.direction is not MetricDirection.NEITHER:
                sign = 1 if column.direction is MetricDirection.HIGHER else -1
                own, theirs = (rows[i].cells[column.name].values for i in (row, other))
                improvement = improvement_share([sign * v for v in own], [sign * v for v in theirs])
            difference = Difference(
                row=row,
                baseline=other,
                column=column,
                comparison=comparison,
                is_primary=place < len(outcomes),
                p_adjusted=math.nan,
                improvement=improvement,
                seeds=count_seeds(comparison, aim),
                target=aim,
            )
            found.append(difference)
    # Without variation there is nothing to test. Only primary outcomes are corrected: whatever
    # columns a table shows must not change the p of another table.
    primary = [d.comparison for d in found if d.is_primary]
    adjusted = benjamini_hochberg([c.p_value if c.sd > 0 else math.nan for c in primary])
    # The differences of the primary outcomes come first.
    tested = [replace(d, p_adjusted=float(p)) for d, p in zip(found, adjusted, strict=False)]
    return [*tested, *found[len(tested) :]]


def with_baseline(report: Report, baseline: BaselineRows) -> Report:
    """Return a report with the differences of its primary outcomes to another baseline.

    Raises:
        ReportError: a row could be compared with several.
    """
    own = replace(baseline, tuned=report.tuned)
    differences = compare_rows(report.rows, report.arms, report.outcomes, (), own)
    return replace(report, baseline=baseline.text, differences=differences)


def count_seeds(comparison: Comparison, target: float) -> int | None:
    """Count the seeds that show a difference with a power of 80 %; `MOST_SEEDS` + 1 for more.

    Returns None where nothing varies or the difference is 0.
    """
    sd = comparison.sd
    if not (sd > 0 and math.isfinite(target) and target):
        return None
    if abs(target) < _SMALLEST * sd:
        return MOST_SEEDS + 1
    return min(seeds_needed(sd, target), MOST_SEEDS + 1)


def show_seeds(seeds: int) -> str:
    """Write a number of seeds needed, `> 100` for those above `MOST_SEEDS`."""
    return f"> {MOST_SEEDS}" if seeds > MOST_SEEDS else str(seeds)


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
            if not row.is_base
            and row.cells[column.name].n >= SEEDS_FOR_A_MARK
            and math.isfinite(row.cells[column.name].mean)
        }
        higher = column.direction is MetricDirection.HIGHER
        ranked = sorted(means, key=means.__getitem__, reverse=higher)
        if len(ranked) < 2:
            continue
        for place, (mark, row) in enumerate(zip(Mark, ranked, strict=False), start=1):
            below = ranked[place:]
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


def rank_rows(rows: Sequence[Row], column: Column) -> tuple[list[Row], dict[int, RankInterval]]:
    """Sorts rows by the interval of their rank in a column, and returns the intervals by index.

    Base models and rows with a single seed take no part; they come first and last.

    Raises:
        ReportError: neither direction of the column is better.
    """
    if column.direction is MetricDirection.NEITHER:
        raise ReportError(
            f"--sort rank:{column.name}: expected a column whose higher or lower values are "
            "better, such as pass@1 or collapse/acr"
        )
    higher = column.direction is MetricDirection.HIGHER
    trained = [row for row in rows if not row.is_base]
    intervals = rank_intervals([row.by_seed(column.name) for row in trained], higher=higher)

    def place(pair: tuple[Row, RankInterval | None]) -> tuple[float, ...]:
        found = pair[1]
        return (math.inf,) if found is None else (found.low, found.high, found.place)

    base = [row for row in rows if row.is_base]
    ordered = sorted(zip(trained, intervals, strict=True), key=place)
    ranks = {len(base) + i: interval for i, (_, interval) in enumerate(ordered) if interval}
    return [*base, *(row for row, _ in ordered)], ranks
