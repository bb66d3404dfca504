"""Rows compared with a baseline: difference, tests, effect, and the seeds it would take."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from advsweep.errors import NotFoundError, ReportError, nearest
from advsweep.report.data.columns import Column, MetricDirection
from advsweep.report.data.filters import parse_where
from advsweep.report.data.formatting import show_key
from advsweep.report.data.grouping import Group
from advsweep.report.tables.types import Difference, Mark, Report, Row
from advsweep.statistics import (
    Comparison,
    Interval,
    benjamini_hochberg,
    compare_seeds,
    probability_of_improvement,
    seeds_needed,
)

MOST_ROWS = 30
"""A longer table is compared with a baseline only where one is named."""

MOST_SEEDS = 10_000
_SMALLEST = 0.03  # in standard deviations: smaller takes more than MOST_SEEDS


@dataclass(frozen=True)
class Baseline:
    """Which rows others are compared with: those that have these values of their keys."""

    values: Mapping[str, Any]

    @property
    def text(self) -> str:
        """In words, such as `grpo` or `group_size=8`."""
        return name_group(self.values)

    def of(self, row: Row, rows: Sequence[Row]) -> int | None:
        """The place of a row's baseline: the one that is otherwise as the row is.

        Raises:
            ReportError: there are several.
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
        return not row.is_base and all(
            row.group.get(key, self) == value for key, value in self.values.items()
        )

    def _alike(self, row: Row, other: Row) -> bool:
        # A component's parameters mean nothing to another one.
        own = tuple(f"{key}." for key in self.values)
        keys = (row.group.keys() | other.group.keys()) - self.values.keys()
        return all(
            row.group.get(key) == other.group.get(key) for key in keys if not key.startswith(own)
        )


def name_group(group: Mapping[str, Any]) -> str:
    """A row in words, such as `grpo, group_size=8`."""
    keys = {key: show_key(value) for key, value in group.items()}
    return ", ".join(v if key == "estimator" else f"{key}={v}" for key, v in keys.items())


def default_baseline(rows: Sequence[Row], method: str | None = None) -> Baseline | None:
    """The first of the trained rows: its estimator, or all of it where all have the same.

    Args:
        method: a key that stands for the estimator.
    """
    trained = [row for row in rows if not row.is_base]
    if len(trained) < 2 or len(trained) > MOST_ROWS:
        return None
    first: Group = trained[0].group
    own = {
        key: value
        for key, value in first.items()
        if key in ("estimator", method) or key.startswith("estimator.")
    }
    baseline = Baseline(own or first)
    if all(baseline._fits(row) for row in trained):
        baseline = Baseline(first)
    return baseline


def parse_baseline(text: str, rows: Sequence[Row], key: str) -> Baseline:
    """A baseline as users name it: a value of some key, or `KEY=VALUE ...`.

    Raises:
        NotFoundError: no row is named so.
        ReportError: it is not one.
    """
    trained = [row for row in rows if not row.is_base]
    if "=" not in text:
        values = {show_key(row.group.get(key, "")): row for row in trained}
        if text not in values:
            raise NotFoundError(f"--baseline: no row has {key}={text}; {nearest(text, values)}")
        return Baseline({key: values[text].group[key]})
    filters = parse_where(text, "--baseline")
    for filter in filters:
        if filter.operator != "=" or len(filter.values) > 1:
            raise ReportError(f"--baseline: expected KEY=VALUE, got {filter.text!r}")
    baseline = Baseline({filter.key: filter.values[0] for filter in filters})
    if not any(baseline._fits(row) for row in trained):
        names = [name_group(row.group) for row in trained]
        raise NotFoundError(f"--baseline: no row has {text}; {nearest(text, names)}")
    return baseline


def compare_rows(
    rows: Sequence[Row],
    columns: Sequence[Column],
    baseline: Baseline,
    target: float | None = None,
) -> list[Difference]:
    """Every row with its baseline, in each of some columns where both have two seeds or more.

    Args:
        target: the difference that seeds are counted for; by default the one found.
    """
    pairs = [(i, baseline.of(row, rows)) for i, row in enumerate(rows) if not row.is_base]
    found: list[tuple[int, int, Column, Comparison]] = []
    for column in columns:
        for row, other in pairs:
            if other is not None:
                a, b = (rows[i].by_seed(column.name) for i in (row, other))
                comparison = compare_seeds(a, b)
                # Of single seeds there is nothing to say.
                if not math.isnan(comparison.low):
                    found.append((row, other, column, comparison))
    adjusted = benjamini_hochberg([_p_value(comparison) for *_, comparison in found])
    return [
        Difference(
            row=row,
            baseline=other,
            column=column.name,
            comparison=comparison,
            p_adjusted=float(p),
            improvement=_improvement(rows[row], rows[other], column),
            seeds=count_seeds(comparison, comparison.difference if target is None else target),
            target=comparison.difference if target is None else target,
        )
        for (row, other, column, comparison), p in zip(found, adjusted, strict=True)
    ]


def _p_value(comparison: Comparison) -> float:
    # Where nothing varies there was nothing to test.
    return comparison.p_value if comparison.sd > 0 else math.nan


def _improvement(row: Row, other: Row, column: Column) -> Interval | None:
    if column.direction is MetricDirection.NEITHER:
        return None
    a, b = row.cells[column.name].values, other.cells[column.name].values
    sign = 1 if column.direction is MetricDirection.HIGHER else -1
    return probability_of_improvement([sign * v for v in a], [sign * v for v in b])


def count_seeds(comparison: Comparison, target: float) -> int | None:
    """The seeds that show a difference with a power of 80 %, at most `MOST_SEEDS`.

    None where nothing varies or there is nothing to see.
    """
    sd = comparison.sd
    if not (sd > 0 and math.isfinite(target) and target):
        return None
    if abs(target) < _SMALLEST * sd:
        return MOST_SEEDS
    return min(seeds_needed(sd, target), MOST_SEEDS)


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
