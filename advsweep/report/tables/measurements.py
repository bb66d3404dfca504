"""The second step of a report: a number for each of its runs and columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from advsweep.report.data.column_choice import logged_columns
from advsweep.report.data.columns import Column
from advsweep.report.data.cutoffs import (
    AT,
    Cutoff,
    ReportCutoff,
    find_steps,
    resolve_cutoff,
)
from advsweep.report.data.early_ends import EarlyEnds, find_early_ends, settle_early_ends
from advsweep.report.data.groups import Group, group_by, group_runs
from advsweep.report.data.measure import measure
from advsweep.report.data.refusals import refuse_empty
from advsweep.report.data.run_data import RunData
from advsweep.report.tables.cautions import describe_imported, describe_logged_pass
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.selection import Selection
from advsweep.report.tables.types import Note, NoteKind, as_remarks
from advsweep.store import RunRecord

# The runs of each row, with its name.
Groups = Sequence[tuple[Group, Sequence[RunRecord]]]


@dataclass(frozen=True)
class Measurements:
    """The numbers of a report's runs, and the runs of each of its rows.

    Attributes:
        runs: those of all rows.
        groups: the runs of each row, with its name.
        numbers: a line for each run of the table, by its id, and a column for each measured one.
        lent: the same for the runs that lend the table their spread.
        columns: those that the table shows, as far as its runs have them.
        measured: all of them, by name.
        ends: the runs whose numbers are of an earlier step, where these stay.
        notes: on what was measured, and where.
    """

    runs: Sequence[RunRecord]
    groups: Groups
    numbers: pd.DataFrame
    lent: pd.DataFrame
    columns: Sequence[Column]
    measured: Mapping[str, Column]
    ends: Sequence[EarlyEnds]
    notes: Sequence[Note]

    @property
    def all_numbers(self) -> pd.DataFrame:
        """The numbers of the table's runs and of those that lend it their spread."""
        return self.numbers if self.lent.empty else pd.concat([self.numbers, self.lent])


def measure_runs(selection: Selection, request: ReportRequest) -> Measurements:
    """Measure all columns of the selected runs, and group the runs into rows.

    Raises:
        NotFoundError: no run has a column that the user names, or a key of the rows.
        ReportError: the runs lack what a column needs, none can be compared at the cutoff, or a
            row would combine runs of several configurations.
    """
    data = selection.data
    cutoff = None if request.at is None else resolve_cutoff(data, request.at, selection.hidden)
    at = None if cutoff is None else cutoff.steps
    numbers = measure(data, selection.measured.values(), at)
    logged: list[Column] = []
    texts: list[str] = []
    if request.columns is not None:
        refuse_empty(data, selection.columns, numbers)
    elif _lacks_outcomes(selection, numbers):
        filled = _filled(selection.columns, numbers)
        logged, texts = logged_columns(data.store, data.runs, filled)
        numbers = numbers.join(measure(data, logged, at))
    columns = [*selection.columns, *logged]
    measured = {**selection.measured, **{column.name: column for column in logged}}
    texts = [*texts, *describe_logged_pass(_filled(columns, numbers), data.evaluated)]
    groups = _group(data.runs, request, selection.tuned)
    ends: list[EarlyEnds] = []
    if cutoff is None:
        filled = _filled(measured.values(), numbers)
        ends = find_early_ends(data.store, groups, filled, data.evaluated)
    settled = settle_early_ends(groups, numbers, ends, selection.candidates, request.ended_early)
    remaining = {run.id for _, runs in settled.groups for run in runs}
    runs = [run for run in data.runs if run.id in remaining]
    notes = [Note(NoteKind.EARLY_END, text) for text in settled.texts]
    notes += as_remarks(texts)
    notes += _describe_cutoffs(data, request.at, cutoff, columns, settled.groups)
    notes += as_remarks(describe_imported(data.store, runs))
    return Measurements(
        runs=runs,
        groups=settled.groups,
        numbers=settled.numbers,
        lent=_measure_lending(selection.lending, measured.values(), cutoff),
        columns=columns,
        measured=measured,
        ends=settled.ends,
        notes=notes,
    )


def _lacks_outcomes(selection: Selection, numbers: pd.DataFrame) -> bool:
    """Tell whether no run has one of the default outcomes."""
    if selection.declared.columns:
        return False
    return bool(numbers[list(selection.candidates)].isna().all(axis=None))


def _filled(columns: Iterable[Column], numbers: pd.DataFrame) -> list[Column]:
    """Return the columns of which a run has a number."""
    return [column for column in columns if numbers[column.name].notna().any()]


def _group(runs: Sequence[RunRecord], request: ReportRequest, tuned: str) -> Groups:
    """Return the runs of each row."""
    if request.rows is None:
        return group_runs(runs, always=tuned)
    return group_by(runs, request.rows)


def _measure_lending(
    lending: RunData, columns: Iterable[Column], cutoff: ReportCutoff | None
) -> pd.DataFrame:
    """Return the numbers of the runs that lend a table their spread, by their ids."""
    if not lending.runs:
        return pd.DataFrame()
    at = None if cutoff is None else find_steps(lending, cutoff.cutoff, AT)
    return measure(lending, columns, at)


def _describe_cutoffs(
    data: RunData,
    at: Cutoff | None,
    cutoff: ReportCutoff | None,
    columns: Sequence[Column],
    groups: Groups,
) -> list[Note]:
    """Return notes on where runs are compared: in the report, and in columns with a cutoff."""
    notes = []
    if cutoff is not None:
        text = f"{cutoff.text}, {cutoff.steps.describe(groups)}"
        notes.append(Note(NoteKind.REPORT_CUTOFF, text))
    # Each once.
    cutoffs = {column.at.text: column.at for column in columns if column.at is not None}
    for name, of_column in cutoffs.items():
        if of_column != at:
            text = f"@{name}: {find_steps(data, of_column, name).describe(groups)}"
            notes.append(Note(NoteKind.COLUMN_CUTOFF, text, about=name))
    return notes
