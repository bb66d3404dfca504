"""Runs as tidy tables for other programs, produced in portions that fit in memory.

Four tables, joined by `run` and `evaluation`; docs/tracking.md describes their columns:

    runs          a row per run: what it is, its config by dotted keys, its summaries
    metrics       a row per metric point
    evaluations   a row per evaluation of a run: its protocol and its scores
    problems      a row per evaluation and problem: n samples, c of them correct

Rows are sorted by their keys, and nothing depends on the time or the place of the export, so
that exports of the same runs of a store are equal. Texts have no control characters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from advsweep.errors import AdvsweepError
from advsweep.printable import printable, printable_json, printable_line
from advsweep.report.data.grouping import flatten
from advsweep.store import EvaluationRecord, RunRecord, Store

Portion = Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]
"""Some rows of a table: the values of every column, by name; None stands for a missing value."""


class ColumnType(Enum):
    """Type of a column."""

    TEXT = "text"
    INTEGER = "integer"  # 64 bits
    NUMBER = "number"  # double precision; NaN is a value
    BOOLEAN = "boolean"
    TIME = "time"  # UTC, to the microsecond


@dataclass(frozen=True)
class TidyTable:
    """A table.

    Attributes:
        name: of the table and its file.
        columns: the type of each column, by name, in their order.
        portions: yields the rows.
    """

    name: str
    columns: Mapping[str, ColumnType]
    portions: Callable[[], Iterator[Portion]]


_TEXT, _INTEGER, _NUMBER = ColumnType.TEXT, ColumnType.INTEGER, ColumnType.NUMBER

_RUN = {
    "run": _INTEGER,
    "identity": _TEXT,
    "attempt": _INTEGER,
    "config_hash": _TEXT,
    "sweeps": _TEXT,
    "estimator": _TEXT,
    "backend": _TEXT,
    "seed": _INTEGER,
    "status": _TEXT,
    "failure": _TEXT,
    "error": _TEXT,
    "step": _INTEGER,
    "steps": _INTEGER,
    "created": ColumnType.TIME,
    "started": ColumnType.TIME,
    "finished": ColumnType.TIME,
    "config": _TEXT,
}
_POINT = {"run": _INTEGER, "metric": _TEXT, "step": _INTEGER, "value": _NUMBER}
_EVALUATION = {
    "run": _INTEGER,
    "step": _INTEGER,
    "evaluation": _TEXT,
    "task": _TEXT,
    "split": _TEXT,
    "problems": _INTEGER,
    "samples": _INTEGER,
    "created": ColumnType.TIME,
    "settings": _TEXT,
}
_PROBLEM = {
    "run": _INTEGER,
    "step": _INTEGER,
    "evaluation": _TEXT,
    "task": _TEXT,
    "problem": _TEXT,
    "level": _INTEGER,
    "n": _INTEGER,
    "c": _INTEGER,
    "distinct": _INTEGER,
    "unscorable": _INTEGER,
    "answer_entropy": _NUMBER,
    "token_entropy": _NUMBER,
    "right_entropy": _NUMBER,
    "kl_base": _NUMBER,
    "right_rarefied": _NUMBER,
}


def tidy_tables(
    store: Store, runs: Sequence[RunRecord], on_run: Callable[[int], None] = lambda done: None
) -> Iterator[TidyTable]:
    """Yields the tables of some runs; each must be read before the next is taken.

    Args:
        on_run: receives the number of runs whose metrics were read.
    """
    runs = sorted(runs, key=lambda run: run.id)
    yield _run_table(store, runs)
    yield TidyTable("metrics", _POINT, lambda: _points(store, runs, on_run))
    evaluations: list[dict[str, Any]] = []
    yield TidyTable("problems", _PROBLEM, lambda: _problems(store, runs, evaluations))
    yield _from_rows("evaluations", _EVALUATION, evaluations)


def _run_table(store: Store, runs: Sequence[RunRecord]) -> TidyTable:
    summaries = store.metrics.summaries([run.id for run in runs])
    rows = []
    for run in runs:
        config = {f"config.{key}": value for key, value in flatten(run.config)}
        numbers = {f"summary.{key}": value for key, value in summaries.get(run.id, {}).items()}
        rows.append(_described(run) | config | numbers)
    return _from_rows("runs", _RUN, rows)


def _described(run: RunRecord) -> dict[str, Any]:
    return {
        "run": run.id,
        "identity": run.identity,
        "attempt": run.attempt,
        "config_hash": run.config_hash,
        "sweeps": list(run.sweeps),
        "estimator": run.estimator,
        "backend": run.backend,
        "seed": run.seed,
        "status": run.status.value,
        "failure": None if run.failure is None else run.failure.value,
        "error": run.error,
        "step": run.step,
        "steps": run.steps,
        "created": run.created,
        "started": run.started,
        "finished": run.finished,
        "config": run.config,
    }


def _points(
    store: Store, runs: Sequence[RunRecord], on_run: Callable[[int], None]
) -> Iterator[Portion]:
    for done, run in enumerate(runs, 1):
        for name in store.metrics.names(run.id):
            steps, values = store.metrics.series([run.id], name)[run.id]
            shown = printable_line(name)
            yield {
                "run": np.full(len(steps), run.id),
                "metric": [shown] * len(steps),
                "step": steps,
                "value": values,
            }
        on_run(done)


def _problems(
    store: Store, runs: Sequence[RunRecord], evaluations: list[dict[str, Any]]
) -> Iterator[Portion]:
    """Yields the counts of each evaluation, and appends its row to `evaluations`."""
    for run in runs:
        records = store.evaluations.select([run.id], split=None)
        for record in sorted(records, key=lambda record: (record.step, record.identity)):
            evaluations.append(_evaluation_row(record))
            count = len(record.problem_ids)
            yield {
                "run": np.full(count, run.id),
                "step": np.full(count, record.step),
                "evaluation": [record.identity] * count,
                "task": [printable_line(record.task)] * count,
                "problem": [printable_line(problem) for problem in record.problem_ids],
                **record.columns,
            }


def _evaluation_row(record: EvaluationRecord) -> dict[str, Any]:
    row = {
        "run": record.run_id,
        "step": record.step,
        "evaluation": record.identity,
        "task": record.task,
        "split": record.settings.get("split", "held_out"),
        "problems": len(record.problem_ids),
        "samples": int(record.n.sum()),
        "created": record.created,
        "settings": record.settings,
    }
    try:
        scores = record.scores()
    except (KeyError, TypeError, ValueError, AdvsweepError):
        # Of a store from elsewhere: the counts stay, in the table of problems.
        scores = {}
    return {f"score.{name}": value for name, value in scores.items()} | row


def _from_rows(
    name: str, known: Mapping[str, ColumnType], rows: Sequence[Mapping[str, Any]]
) -> TidyTable:
    """Returns a table of rows that are in memory; columns beside the known ones are sorted."""
    more = sorted({key for row in rows for key in row} - known.keys())
    # Two keys may differ in control characters alone; the first stays.
    shown = {key: printable_line(key) for key in reversed(more)}
    sources = {own: key for key, own in shown.items()}
    columns = {**known, **{own: _type_of(rows, sources[own]) for own in sorted(sources)}}

    def portions() -> Iterator[Portion]:
        if rows:
            yield {
                column: [_plain(row.get(sources.get(column, column)), kind) for row in rows]
                for column, kind in columns.items()
            }

    return TidyTable(name, columns, portions)


def _type_of(rows: Sequence[Mapping[str, Any]], key: str) -> ColumnType:
    """Returns the type that holds all values of a column; texts hold any."""
    values = [row[key] for row in rows if row.get(key) is not None]
    if values and all(isinstance(value, bool) for value in values):
        return ColumnType.BOOLEAN
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    if not values or not numbers:
        return _TEXT
    whole = all(isinstance(value, int) for value in values)
    if whole and all(-(2**63) <= value < 2**63 for value in values):
        return _INTEGER
    return _NUMBER if all(_fits_float(value) for value in values) else _TEXT


def _fits_float(value: float) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _plain(value: Any, kind: ColumnType) -> Any:
    if value is None:
        return None
    if kind is not _TEXT:
        return float(value) if kind is _NUMBER else value
    if isinstance(value, str):
        return printable(value)
    return printable_json(json.dumps(value, sort_keys=True))
