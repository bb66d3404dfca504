"""Builds a report: rows of replicates, columns of metrics, each number with interval and n.

    ReportRequest -> Selection -> Measurements -> Rows -> Compared -> Report

Each step is a function of the values before it, in a module of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from advsweep.report.data.columns import Column
from advsweep.report.data.early_ends import describe_early_ends
from advsweep.report.data.evaluation_sources import Evaluation
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.tables.cautions import (
    describe_capabilities,
    describe_denominators,
    describe_large_k,
    describe_no_signal,
)
from advsweep.report.tables.chance import caution_of_chance
from advsweep.report.tables.comparison import Compared, compare
from advsweep.report.tables.measurements import Measurements, measure_runs
from advsweep.report.tables.provenance import describe_provenance
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.rows import Rows, make_rows
from advsweep.report.tables.selection import Selection, select
from advsweep.report.tables.types import Note, NoteKind, Report
from advsweep.store import Store
from advsweep.store.evaluation_records import unscorable_share
from advsweep.store.sanity import find_mixed_revisions


def build_report(store: Store, request: ReportRequest) -> Report:
    """Compare the finished runs of a sweep, of all sweeps, or of some ids.

    Raises:
        NotFoundError: the sweep, a run, key, metric or row does not exist; the message offers
            the nearest name.
        ReportError: no run is finished, the runs were not evaluated alike, or a row would
            combine runs of several configurations.
    """
    selection = select(store, request)
    measurements = measure_runs(selection, request)
    rows = make_rows(selection, measurements, request)
    compared = compare(rows, request, tuned=selection.tuned)
    return _make_report(request, selection, measurements, rows, compared)


def _make_report(
    request: ReportRequest,
    selection: Selection,
    measurements: Measurements,
    rows: Rows,
    compared: Compared,
) -> Report:
    """Put the values of all steps together, with where the numbers come from."""
    store = selection.data.store
    evaluated = selection.data.evaluated
    pruned = [run.stopping["name"] for run in selection.runs.pruned if run.stopping]
    return Report(
        columns=tuple(rows.columns),
        rows=tuple(rows.listed),
        left_out=selection.runs.left_out,
        pruned=Counter(pruned),
        unscorable=unscorable_share(evaluated.final),
        unjudged=_count_unjudged(evaluated),
        provenance=describe_provenance(
            store,
            request.sweep,
            measurements.runs,
            [evaluated.tasks[name].protocol for name in _measured_tasks(evaluated, rows.columns)],
        ),
        notes=(
            *selection.notes,
            *measurements.notes,
            *rows.notes,
            *_notes_on_numbers(request, selection, measurements, rows, compared),
        ),
        baseline=compared.baseline,
        run_ids=frozenset(run.id for run in measurements.runs),
        arms=tuple(rows.arms),
        ranks=rows.ranks,
        outcomes=tuple(rows.outcomes),
        declared_by=selection.declared.by,
        differences=compared.differences,
        tuned=selection.tuned,
        edges=selection.edges,
        head=() if request.sweep is None else store.sweeps.find(request.sweep).head,
    )


def _count_unjudged(evaluated: EvaluationsByTask) -> int:
    """Return how many problems have no scores, over all tasks."""
    problems = [(record.task, name) for record in evaluated.final for name in record.unjudged]
    return len(set(problems))


def _measured_tasks(evaluated: EvaluationsByTask, columns: Sequence[Column]) -> list[str]:
    """Return the tasks that the columns of a table measure; the main one if none does."""
    choices = [c.source.problems for c in columns if isinstance(c.source, Evaluation)]
    tasks = {choice.task or evaluated.main for choice in choices} or {evaluated.main}
    if any(choice.is_mean for choice in choices):
        return list(evaluated.tasks)
    return [name for name in evaluated.tasks if name in tasks]


def _notes_on_numbers(
    request: ReportRequest,
    selection: Selection,
    measurements: Measurements,
    rows: Rows,
    compared: Compared,
) -> list[Note]:
    """Return notes on runs and numbers that say less than they seem to."""
    store = selection.data.store
    evaluated = selection.data.evaluated
    in_table = {column.name for column in [*rows.columns, *rows.outcomes]}
    ends = [end for end in measurements.ends if end.column.name in in_table]
    filled = [column for column in rows.columns if column.name in rows.filled]
    cautions = [
        *describe_large_k(evaluated, filled),
        *describe_denominators(evaluated, filled),
        *describe_capabilities(store, measurements.runs),
    ]
    if request.at is None:
        cautions += caution_of_chance(rows.listed, compared.differences)
    texts = {
        NoteKind.REVISION: find_mixed_revisions(store, measurements.runs),
        NoteKind.WITHOUT_SIGNAL: describe_no_signal(store, measurements.groups),
        NoteKind.EARLY_END: describe_early_ends(measurements.groups, ends),
        NoteKind.CAUTION: cautions,
        NoteKind.UNTESTED: _describe_untested(request, rows),
    }
    return [Note(kind, text) for kind, listed in texts.items() for text in listed]


def _describe_untested(request: ReportRequest, rows: Rows) -> list[str]:
    """Say which tests the user asked for in vain, as there is no second row."""
    if len(rows.planned) > 1:
        return []
    asked = []
    if request.margins:
        asked.append("--margin")
    if request.target is not None:
        asked.append("--difference")
    return [f"{flag} has no effect: there is no other row to compare with" for flag in asked]
