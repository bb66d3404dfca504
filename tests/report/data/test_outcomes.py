"""Primary outcomes: the default ones, and those that a sweep or a list of claims declares."""

from __future__ import annotations

import pytest

from advsweep.errors import ConfigError
from advsweep.report.claims.lists import evaluate_claims, parse_claim_list
from advsweep.report.data.columns import find_outcome, parse_column, parse_outcomes
from advsweep.report.tables.build import build_report
from advsweep.report.tables.cells import make_cell
from advsweep.report.tables.outcomes import choose_outcome
from advsweep.report.tables.render import lay_out
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import Row
from advsweep.tasks.base import Split
from advsweep.tasks.countdown import Countdown

TASK = {"name": "countdown", "levels": [0], "held_out_per_level": 2}


def _columns(*names):
    return [parse_column(name) for name in names]


def _fill(lab, names=("grpo", "fade"), **config):
    for name in names:
        for seed in range(3):
            lab.run(
                name, seed, solved=(2, {"grpo": 0, "fade": 1 + seed, "psr": seed}[name]), **config
            )


def _outcomes(lab, **options):
    return [
        column.name for column in build_report(lab.store, ReportRequest("demo", **options)).outcomes
    ]


@pytest.mark.parametrize(
    ("samples", "coverage"), [(4, []), (8, ["pass@2"]), (30, ["pass@7"]), (128, ["pass@32"])]
)
def test_the_largest_k_is_a_quarter_of_the_samples(lab, samples, coverage):
    lab.samples = samples
    _fill(lab)
    assert _outcomes(lab) == ["pass@1", *coverage, "entropy/right"]
    assert _outcomes(lab, columns=["pass@1"]) == ["pass@1", *coverage, "entropy/right"]


def test_coverage_is_above_chance_where_the_task_has_a_chance_baseline(lab):
    problems = Countdown(levels=(0,), held_out_per_level=2).problems(Split.HELD_OUT)
    lab.problems, lab.samples = [(p.id, p.prompt) for p in problems], 8
    _fill(lab, task=TASK)
    assert _outcomes(lab) == ["pass@1", "pass@2[above=guess]", "entropy/right"]


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ({"new": {(0, 3), (1, 3)}, "old": {(0, 3), (1, 3)}}, ["new"]),
        # A row whose evaluations are older decides for all, and so does a run.
        ({"new": {(0, 3)}, "old": {(0, 3), (1, 3)}}, ["old"]),
        ({"new": {(0, 3), (1, 2)}, "old": {(0, 3), (1, 3)}}, ["old"]),
        # A row that has neither decides nothing.
        ({"new": {(0, 3), (2, 3)}, "old": {(0, 3)}}, ["new"]),
        ({"new": set(), "old": set()}, []),
    ],
)
def test_the_first_column_that_all_runs_have(rows, chosen):
    listed = [
        Row({}, 3, (), {name: make_cell([0.5] * dict(own).get(i, 0)) for name, own in rows.items()})
        for i in range(3)
    ]
    found = choose_outcome(_columns("new", "old"), listed)
    assert [column.name for column in [found] if column] == chosen


@pytest.mark.parametrize(
    ("column", "same"),
    [
        ("pass@8", True),
        ("pass@8[above=guess]", True),
        ("pass@4", False),
        ("pass@8[level=3]", False),
        ("pass@8@max", False),
        ("entropy/right", False),
    ],
)
def test_a_chance_baseline_changes_no_difference(column, same):
    [outcome, other] = _columns("pass@8[above=guess]", column)
    assert (find_outcome(other, [outcome]) is outcome) is same


def test_a_sweep_may_declare_others(lab):
    _fill(lab)
    lab.store.sweeps.add("demo", {"outcomes": ["pass@1[level=1]"]})
    report = build_report(lab.store, ReportRequest("demo"))
    assert [column.name for column in report.outcomes] == ["pass@1[level=1]"]
    assert {d.column.name for d in report.primary} == {"pass@1[level=1]"}
    notes = "\n".join(lay_out(report).notes)
    assert "1 primary outcome x 1 arm (level 1 p@1, declared by the sweep)" in notes
    # A report of all runs has the default ones.
    assert [c.name for c in build_report(lab.store, ReportRequest()).outcomes] == [
        "pass@1",
        "entropy/right",
    ]


def test_a_declared_outcome_that_no_run_has_is_named(lab):
    _fill(lab)
    lab.store.sweeps.add("demo", {"outcomes": ["pass@1", "noise"]})
    report = build_report(lab.store, ReportRequest("demo"))
    assert [column.name for column in report.outcomes] == ["pass@1"]
    assert "declared as outcomes, but no run has a number: noise" in report.remarks


def test_a_list_of_claims_may_declare_others_and_says_what_is_outside(lab):
    _fill(lab, ("grpo", "fade", "psr"))
    claims = [
        {"id": metric, "says": "so", "metric": metric, "of": "fade", "than": "grpo"}
        for metric in ("pass@1", "pass@2", "entropy/answer")
    ]
    document = {
        "common": {"sweep": "demo"},
        "outcomes": ["pass@2"],
        "claims": [{**claim, "direction": "higher"} for claim in claims],
    }
    results = evaluate_claims(lab.store, parse_claim_list(document)).results
    assert [result.family for result in results] == [
        "2 tests of this list",
        "2 differences: 1 primary outcome x 2 arms against grpo in demo",
        "2 tests of this list",
    ]
    for result in results:
        assert result.family in result.reason


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("pass@1", "where: expected a list of columns, each once, such as .*, got 'pass@1'"),
        ([], r"got \[\]"),
        (["pas@@1"], "got 'pas@@1'"),
        (["pass@*"], r"got 'pass@\*'"),
        (["pass@8", "pass@8[above=guess]"], r"got 'pass@8\[above=guess\]'"),
    ],
)
def test_outcomes_that_cannot_be(names, message):
    with pytest.raises(ConfigError, match=message):
        parse_outcomes(names, "where")
