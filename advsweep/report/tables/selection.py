"""The first step of a report: its runs, their evaluations, and its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advsweep.errors import ReportError, first_of
from advsweep.report.data.column_choice import (
    WrittenColumn,
    choose_columns,
    logged_pass_columns,
    read_columns,
)
from advsweep.report.data.columns import REACHED, Column, reached_column
from advsweep.report.data.evaluation_choice import select_evaluations
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.data.filters import Filter, describe_filters
from advsweep.report.data.keys import MISSING, is_key, value_of
from advsweep.report.data.labels import show_key
from advsweep.report.data.run_data import RunData
from advsweep.report.data.runs import read_runs
from advsweep.report.data.selection import SelectedRuns, select_runs
from advsweep.report.tables.chance import chance_column
from advsweep.report.tables.designs import lending_runs
from advsweep.report.tables.outcomes import Declared, declared_outcomes, outcome_choices
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import Note, as_remarks, count_states
from advsweep.store import RunRecord, Status, Store
from advsweep.store.races import read_race
from advsweep.store.tuning_records import TuningRecord

_SHOWN = 8  # values of a key in a message


@dataclass(frozen=True)
class Selection:
    """The runs of a report, their evaluations, and its columns.

    Attributes:
        data: the runs that the table shows, with their evaluations.
        lending: the finished runs that lend it their spread, with theirs.
        evaluated: the evaluations of both.
        hidden: the finished runs of its sweep that it does not show.
        runs: which others are left out.
        columns: those that it shows, as far as its runs have them.
        declared: the primary outcomes that are declared.
        choices: the columns that each primary outcome is chosen from.
        tuned: the key whose value each row has chosen for itself; empty without a tuning.
        edges: the names of the arms that chose the smallest or largest value tried.
        notes: on how runs were selected.
    """

    data: RunData
    lending: RunData
    evaluated: EvaluationsByTask
    hidden: Sequence[RunRecord]
    runs: SelectedRuns
    columns: Sequence[Column]
    declared: Declared
    choices: Sequence[Sequence[Column]]
    tuned: str
    edges: frozenset[str]
    notes: Sequence[Note]

    @property
    def candidates(self) -> dict[str, Column]:
        """The columns that may be primary outcomes, by name.

        They are measured whether or not they are shown, so that hiding a column cannot change
        what is significant.
        """
        return {column.name: column for choice in self.choices for column in choice}

    @property
    def measured(self) -> dict[str, Column]:
        """All columns that are measured, by name; a candidate is compared with chance, too."""
        measured = dict(self.candidates)
        for candidate in self.candidates.values():
            plain = chance_column(candidate)
            if plain is not None:
                measured[plain.name] = plain
        return measured | {column.name: column for column in self.columns}


def select(store: Store, request: ReportRequest) -> Selection:
    """Select the runs of a report, read their evaluations, and choose its columns.

    Raises:
        NotFoundError: the sweep, a run, a key or a column does not exist.
        ReportError: no run is finished, or the runs were not evaluated alike.
    """
    runs = read_runs(store, request.sweep, request.run_ids)
    selected = select_runs(store, runs, request.where)
    if not selected.runs:
        raise _nothing_finished(store, request, runs, selected)
    _refuse_keys(selected.runs, request.columns)
    declared = declared_outcomes(store, request)
    written = _read_columns(request)
    # Runs of the same design that the table does not show lend it their spread.
    scope = runs if request.run_ids is None else read_runs(store, request.sweep)
    lending = lending_runs(scope, selected.runs)
    evaluated = select_evaluations(
        store,
        selected.runs,
        lending=lending,
        along=_needs_training_curves(request, written, declared),
    )
    data = RunData(store, selected.runs, evaluated.without([run.id for run in lending]))
    tuning = None if request.sweep is None else store.sweeps.tuning(request.sweep)
    remarks = [*selected.remarks]
    if tuning is not None:
        remarks.append(tuning.text)
    remarks += _describe_race(store, request.sweep)
    return Selection(
        data=data,
        lending=RunData(
            store,
            lending,
            evaluated.without([run.id for run in selected.runs]),
            refuses_absent=False,
        ),
        evaluated=evaluated,
        hidden=_hidden_runs(scope, selected.runs, request.sweep),
        runs=selected,
        columns=_choose_columns(request, written, data),
        declared=declared,
        choices=outcome_choices(data.evaluated, declared.columns),
        tuned="" if tuning is None else tuning.key,
        edges=_edges(tuning),
        notes=as_remarks(remarks),
    )


def _edges(tuning: TuningRecord | None) -> frozenset[str]:
    """Return the names of the arms whose choice is at an edge of what was tried."""
    arms = () if tuning is None else tuning.arms
    return frozenset(arm.name for arm in arms if arm.is_at_edge)


def _refuse_keys(runs: Sequence[RunRecord], columns: Sequence[str] | None) -> None:
    """Refuse columns that are config keys."""
    keys = [name for name in columns or () if is_key(runs, name)]
    if keys:
        raise ReportError(
            f"--columns: {', '.join(keys)} is a config key, which names rows: expected it among "
            "--rows, or in --where"
        )


def _read_columns(request: ReportRequest) -> list[WrittenColumn] | None:
    """Parse the columns that the user names; None if none are named."""
    if request.columns is None:
        return None
    # A cutoff brings the column that says which runs come to it.
    is_added = request.at is not None
    return read_columns(name for name in request.columns if not (is_added and name == REACHED))


def _needs_training_curves(
    request: ReportRequest, written: Sequence[WrittenColumn] | None, declared: Declared
) -> bool:
    """Tell whether evaluations within the training are needed."""
    if request.at is not None:
        return True
    if any(column.needs_training_curve for column in written or ()):
        return True
    return any(column.needs_training_curve for column in declared.columns)


def _choose_columns(
    request: ReportRequest, written: Sequence[WrittenColumn] | None, data: RunData
) -> list[Column]:
    """Return the columns that the table shows, as far as its runs have them."""
    columns = choose_columns(written, data.evaluated)
    if written is None:
        columns += logged_pass_columns(data.store, data.runs, data.evaluated)
        names = {column.name for column in columns}
        columns += [column for column in request.outcomes if column.name not in names]
    if request.at is not None and not request.at.is_cost:
        columns.append(reached_column(request.at))
    return columns


def _hidden_runs(
    runs: Sequence[RunRecord], shown: Sequence[RunRecord], sweep: str | None
) -> list[RunRecord]:
    """Return the finished runs of a table's sweep that it does not show.

    Args:
        runs: of the sweep, or of the store.
        shown: those that the table shows.
        sweep: None: those of the runs that are shown.
    """
    ids = {run.id for run in shown}
    sweeps = {name for run in shown for name in run.sweeps} if sweep is None else {sweep}
    finished = [run for run in runs if run.status is Status.DONE and run.id not in ids]
    return [run for run in finished if not sweeps.isdisjoint(run.sweeps)]


def _describe_race(store: Store, sweep: str | None) -> list[str]:
    """Return a sentence on a race of the sweep's arms for seeds; none without one."""
    race = None if sweep is None else read_race(store, sweep)
    if race is None:
        return []
    return [
        f"{race.text}; the intervals and p-values here are those of a number of seeds that was "
        "fixed beforehand, which it was not"
    ]


def _nothing_finished(
    store: Store, request: ReportRequest, runs: Sequence[RunRecord], selected: SelectedRuns
) -> ReportError:
    """Return the error of a report without runs."""
    what = store.name if request.sweep is None else f"sweep '{request.sweep}'"
    states = f" ({count_states(selected.left_out)})" if selected.left_out else ""
    if not runs or not (request.where or states):
        hint = "start some with `advsweep run` or `advsweep sweep`"
        return ReportError(f"{what} has no runs to report; {hint}")
    if not request.where:
        hint = "`advsweep ls` shows them"
        return ReportError(f"{what} has no finished run to report yet{states}; {hint}")
    text = f"{what} has no finished run with {describe_filters(request.where)}{states}"
    return ReportError(text + "".join(_describe_values(filter, runs) for filter in request.where))


def _describe_values(filter: Filter, runs: Sequence[RunRecord]) -> str:
    """Return the values that runs have of a filter's key; empty where one matches."""
    values = [value_of(run, filter.key) for run in runs]
    shown = dict.fromkeys(show_key(value) for value in values if value is not MISSING)
    if not shown or any(map(filter.holds, values)):
        return ""
    return f"; {filter.key} is {first_of(shown, _SHOWN)}"
