"""The third step of a report: its rows, in their order, and its primary outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from advsweep.errors import NotFoundError, nearest
from advsweep.report.data.columns import Column, column_of, find_outcome, within_steps
from advsweep.report.data.cutoffs import Cutoff
from advsweep.report.data.labels import show_key, title_key
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.tables.baselines import choose_baseline
from advsweep.report.tables.designs import make_arms
from advsweep.report.tables.measurements import Measurements
from advsweep.report.tables.outcomes import Declared, choose_outcome
from advsweep.report.tables.ranking import rank_rows
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.selection import Selection
from advsweep.report.tables.trained_rows import trained_rows
from advsweep.report.tables.types import Arm, Note, Row, as_remarks
from advsweep.report.tables.untrained_rows import base_rows, floor_rows, model_rows
from advsweep.statistics import RankInterval
from advsweep.synonyms import COLUMNS


@dataclass(frozen=True)
class Rows:
    """The rows of a report, its columns, and its primary outcomes.

    Attributes:
        listed: all rows in the order of the table: what no run trained first.
        planned: the trained rows, in the order of the sweep's plan.
        arms: those of the table's sweep that lend it their spread, shown or not.
        columns: those that the table shows.
        filled: the names of the columns of which a row has a number.
        outcomes: the primary outcomes; the table may not show them.
        equal: the columns in which runs are equal, as they set the cutoff.
        ranks: the interval of each row's rank in a column, by its place; empty without a ranking.
        notes: on the rows.
    """

    listed: Sequence[Row]
    planned: Sequence[Row]
    arms: Sequence[Arm]
    columns: Sequence[Column]
    filled: frozenset[str]
    outcomes: Sequence[Column]
    equal: Sequence[Column]
    ranks: Mapping[int, RankInterval] = field(default_factory=dict)
    notes: Sequence[Note] = ()


def make_rows(selection: Selection, measurements: Measurements, request: ReportRequest) -> Rows:
    """Make the rows of a report from the numbers of its runs, and choose its primary outcomes.

    Raises:
        NotFoundError: the table is to be sorted by a column or key that it does not have.
        ReportError: the rows cannot be ranked in a column.
    """
    visible = {column.name: column for column in measurements.columns}
    planned = trained_rows(
        measurements.groups,
        measurements.numbers,
        visible,
        Counter(run.config_hash for run in selection.runs.pruned),
        selection.data.evaluated if request.at is None else None,
    )
    arms = make_arms(
        planned,
        shown=measurements.runs,
        lending=selection.lending.runs,
        numbers=measurements.all_numbers,
        evaluated=selection.evaluated,
    )
    untrained, texts = _untrained_rows(selection, measurements, request)
    trained = planned
    if request.sort is not None:
        baseline = choose_baseline(request.baseline, planned=planned, listed=[*untrained, *planned])
        trained = _sort(planned, measurements.columns, request.sort)
        if baseline is not None:
            # Above the others, so that a reader finds it; sorting keeps the order of each part.
            trained.sort(key=lambda row: not baseline.includes(row))
    listed = [*untrained, *trained]
    outcomes = _choose_outcomes(selection, planned)
    texts += _describe_missing(selection.declared, outcomes)
    equal = _equal_columns(request.at)
    outcomes = [column for column in outcomes if find_outcome(column, equal) is None]
    ranks: Mapping[int, RankInterval] = {}
    if request.rank is not None:
        listed, ranks = _rank(listed, visible, request.rank)
        texts.append(_describe_rank(request.rank, planned))
    filled = frozenset(name for name in visible if any(row.cells[name].n for row in listed))
    shown = measurements.columns
    if request.columns is None:
        shown = [column for column in shown if column.name in filled]
    longest = max(run.steps for run in measurements.runs)
    return Rows(
        listed=listed,
        planned=planned,
        arms=arms,
        columns=[within_steps(column, longest) for column in shown],
        filled=filled,
        outcomes=[within_steps(column, longest) for column in outcomes],
        equal=equal,
        ranks=ranks,
        notes=as_remarks(texts),
    )


def _untrained_rows(
    selection: Selection, measurements: Measurements, request: ReportRequest
) -> tuple[list[Row], list[str]]:
    """Return the rows of bases, floors and models without a run, and sentences on the floors.

    Floors and models are left out if they have no number in a column of the table.
    """
    evaluated = selection.data.evaluated
    columns = list(measurements.measured.values())
    groups = measurements.groups
    label = request.rows[0] if request.rows else title_key(group for group, _ in groups)
    rows: list[Row] = []
    texts: list[str] = []
    # Models that no run trained have no values within a training.
    if request.at is None:
        rows += base_rows(groups, evaluated, columns, label)
    for row, text in floor_rows(evaluated, columns, label):
        if _has_number(row, measurements.columns):
            rows.append(row)
            texts.append(text)
    if request.at is None:
        models = model_rows(evaluated, columns, label)
        rows += [row for row in models if _has_number(row, measurements.columns)]
    return rows, texts


def _has_number(row: Row, columns: Sequence[Column]) -> bool:
    return any(row.cells[column.name].n for column in columns)


def _choose_outcomes(selection: Selection, rows: Sequence[Row]) -> list[Column]:
    """Return the primary outcomes of which the rows have numbers."""
    chosen = [choose_outcome(choice, rows) for choice in selection.choices]
    return [column for column in chosen if column is not None]


def _describe_missing(declared: Declared, outcomes: Sequence[Column]) -> list[str]:
    """Return a sentence on the declared outcomes of which no run has a number."""
    missing = [column.name for column in declared.columns if column not in outcomes]
    if not missing:
        return []
    return [f"declared as outcomes, but no run has a number: {', '.join(missing)}"]


def _equal_columns(at: Cutoff | None) -> list[Column]:
    """Return the column in which runs are equal as it sets their cutoff; none without one.

    Its difference is 0 by construction, and would only make the family larger.
    """
    if at is None or at.is_cost or at.source is None:
        return []
    return [column_of(at.source)]


def _sort(rows: Sequence[Row], columns: Sequence[Column], name: str) -> list[Row]:
    """Sort by a column, the best first, or by a key, rising; rows without a value are last."""
    column = next((column for column in columns if column.name == name), None)
    keys = {key for row in rows for key in row.group}
    if column is None and name not in keys:
        if name.startswith("-"):
            raise NotFoundError(
                f"--sort: expected a column or a key, got '{name}'; write {name[1:]}: the best "
                "comes first, and of keys the smallest"
            )
        hint = nearest(name, [*keys, *(column.name for column in columns)], COLUMNS)
        raise NotFoundError(f"--sort: the table has no column or key '{name}'; {hint}")

    def value(row: Row) -> Any:
        return row.group.get(name) if column is None else row.cells[name].mean

    # NaN is no value.
    present = [row for row in rows if value(row) is not None and value(row) == value(row)]
    absent = [row for row in rows if row not in present]
    is_number = all(isinstance(value(row), (int, float)) for row in present)
    order = value if is_number else lambda row: show_key(value(row))
    falling = column is not None and column.direction is MetricDirection.HIGHER
    return [*sorted(present, key=order, reverse=falling), *absent]


def _rank(
    rows: Sequence[Row], columns: Mapping[str, Column], name: str
) -> tuple[list[Row], Mapping[int, RankInterval]]:
    """Sort the rows by the intervals of their ranks in a column."""
    if name not in columns:
        hint = nearest(name, columns, COLUMNS)
        raise NotFoundError(f"--sort rank: the table has no column '{name}'; {hint}")
    return rank_rows(rows, columns[name])


def _describe_rank(name: str, trained: Sequence[Row]) -> str:
    tests = "paired t-tests"
    if any(row.unknown_seeds for row in trained):
        tests = "t-tests (Welch's of rows with unknown seeds)"
    return (
        f"rank: the places by {name} that {tests} against all other rows leave open, "
        "95 % after Holm; rows with overlapping ranks may be equal"
    )
