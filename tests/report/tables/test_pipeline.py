"""The steps of a report, each with the value that it makes of those before it."""

from __future__ import annotations

import pytest

from advsweep.report.data.cutoffs import parse_cutoff
from advsweep.report.data.filters import parse_where
from advsweep.report.tables.build import build_report
from advsweep.report.tables.comparison import compare
from advsweep.report.tables.measurements import measure_runs
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.rows import make_rows
from advsweep.report.tables.selection import select
from advsweep.report.tables.types import NoteKind


def _names(columns):
    return [column.name for column in columns]


def _steps(lab, request):
    selection = select(lab.store, request)
    measurements = measure_runs(selection, request)
    rows = make_rows(selection, measurements, request)
    return selection, measurements, rows, compare(rows, request, tuned=selection.tuned)


def test_a_selection_has_runs_and_columns_and_no_numbers(demo):
    request = ReportRequest("demo", columns=["pass@1"], where=parse_where("estimator!=rloo"))
    selection = select(demo.store, request)
    assert {run.estimator for run in selection.data.runs} == {"grpo", "fade"}
    # The run of rloo, which the table does not show, lends its spread.
    assert [run.estimator for run in selection.lending.runs] == ["rloo"]
    assert selection.hidden == selection.lending.runs
    assert _names(selection.columns) == ["pass@1"]
    # Outcomes are measured though they are not shown.
    outcomes = ["pass@1", "entropy/right_rarefied", "entropy/right"]
    assert list(selection.candidates) == list(selection.measured) == outcomes
    assert [note.text for note in selection.notes] == ["chosen by estimator!=rloo"]


def test_measurements_have_a_number_for_each_run_and_column(demo):
    request = ReportRequest("demo", columns=["collapse/acr@end"], at=parse_cutoff("steps=10"))
    _, measurements, *_ = _steps(demo, request)
    assert measurements.numbers.shape == (7, len(measurements.measured))
    assert measurements.numbers["collapse/acr@end"].tolist() == pytest.approx(
        [0.4, 0.5, 0.6, 0.2, 0.2, 0.2, 0.2]
    )
    assert [len(runs) for _, runs in measurements.groups] == [3, 3, 1]
    [note] = measurements.notes
    assert (note.kind, note.text) == (
        NoteKind.REPORT_CUTOFF,
        "each run as it was where it had spent 10 steps, at steps 10",
    )


def test_the_note_of_a_column_names_its_cutoff(demo):
    request = ReportRequest("demo", columns=["collapse/acr@steps=10", "total/rollouts@steps=10"])
    _, measurements, *_ = _steps(demo, request)
    [note] = measurements.notes
    assert (note.kind, note.about) == (NoteKind.COLUMN_CUTOFF, "steps=10")


def test_rows_are_sorted_below_the_baseline_and_the_plan_keeps_its_order(demo):
    request = ReportRequest("demo", columns=["pass@1"], sort="pass@1")
    _, _, rows, _ = _steps(demo, request)
    assert [row.group["estimator"] for row in rows.planned] == ["grpo", "fade", "rloo"]
    assert [row.group["estimator"] for row in rows.listed] == ["base", "grpo", "rloo", "fade"]
    assert _names(rows.outcomes) == ["pass@1", "entropy/right"]
    assert rows.filled == {"pass@1"}


@pytest.mark.parametrize(
    ("options", "baseline", "compared"),
    [
        ({}, "grpo", ["pass@1", "entropy/right", "pass@2"]),
        ({"described": False}, "grpo", ["pass@1", "entropy/right"]),
        ({"baseline": "fade"}, "fade", ["pass@1", "entropy/right", "pass@2"]),
        ({"baseline": "none"}, None, []),
        (
            {"columns": ["collapse/acr", "pass@1"]},
            "grpo",
            ["pass@1", "entropy/right", "collapse/acr"],
        ),
    ],
)
def test_what_is_compared(demo, options, baseline, compared):
    *_, comparison = _steps(demo, ReportRequest("demo", **options))
    assert comparison.baseline == baseline
    assert list(dict.fromkeys(d.column.name for d in comparison.differences)) == compared


def test_a_report_has_the_notes_of_all_steps_in_their_order(demo):
    request = ReportRequest("demo", where=parse_where("seed<2"), columns=["pass@4@pass@1=0.3"])
    selection, measurements, rows, _ = _steps(demo, request)
    notes = [*selection.notes, *measurements.notes, *rows.notes]
    assert list(build_report(demo.store, request).notes[: len(notes)]) == notes
