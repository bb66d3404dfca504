"""Runs compared at equal cost, or where a metric is equal."""

from __future__ import annotations

import math

import pytest

from advsweep.errors import ConfigError, NotFoundError, ReportError
from advsweep.report.claims.assertions import evaluate_assertion, parse_assertion
from advsweep.report.data.cutoffs import parse_cutoff
from advsweep.report.tables.build import build_report
from advsweep.report.tables.render import lay_out
from advsweep.report.tables.request import ReportRequest


@pytest.fixture
def costly(lab, constant):
    """Two seeds each of grpo, and of fade, which draws twice the rollouts of seed 1.

    pass@1 rises in a straight line from 1/8 at the start over 1/2 at step 10 to 1 for grpo; it
    is 1/4 at the end for fade, without an evaluation between.
    """
    for seed in range(2):
        points = constant(cost__rollouts=1.0, time__rollout=0.5, time__reward=0.25)
        points += constant(cost__tokens=100.0)
        points += constant(time__estimator=0.0, time__update=0.25)
        points += [("collapse/acr", step, step / 20) for step in range(1, 21)]
        run = lab.run("grpo", seed, solved=(4, 4), points=points)
        lab.evaluate(run, f"grpo {seed} 10", 10, (2, 2))
        drawn = constant(cost__rollouts=1.0 + seed, cost__tokens=90.0 * (1 + seed))
        lab.run("fade", seed, solved=(2, 0), points=points + drawn)
    return lab


def _cells(report, column):
    rows = {row.group["estimator"]: row for row in report.rows}
    return {name: row.cells[column].values for name, row in rows.items()}


def _at(lab, text, *columns):
    return build_report(lab.store, ReportRequest("demo", columns=columns, at=parse_cutoff(text)))


def test_costs(costly):
    columns = ["total/steps", "total/rollouts", "total/tokens", "total/seconds"]
    report = build_report(costly.store, ReportRequest("demo", columns=columns))
    assert _cells(report, "total/steps")["grpo"] == (20.0, 20.0)
    # 20 steps of 4 prompts with 8 rollouts each, or twice that.
    assert _cells(report, "total/rollouts") == {
        "base": (), "grpo": (640.0, 640.0), "fade": (640.0, 1280.0)
    }  # fmt: skip
    assert _cells(report, "total/tokens")["grpo"] == (2000.0, 2000.0)
    assert _cells(report, "total/seconds")["fade"] == (20.0, 20.0)


def test_equal_rollouts(costly):
    report = _at(costly, "rollouts=480", "pass@1", "collapse/acr", "total/steps")
    # 480 rollouts are 15 steps, or 7.5 of twice as many; pass@1 is then 3/4 for grpo, and for
    # fade 1/8 + 15/20 · 1/8 and 1/8 + 7.5/20 · 1/8.
    assert _cells(report, "total/steps") == {"grpo": (15.0, 15.0), "fade": (15.0, 7.5)}
    assert _cells(report, "pass@1")["grpo"] == pytest.approx((0.75, 0.75))
    assert _cells(report, "pass@1")["fade"] == pytest.approx((0.21875, 0.171875))
    # The mean of ACR over whole steps: of 1/20 ... 15/20 it is 8/20, of 1/20 ... 7/20 4/20.
    assert _cells(report, "collapse/acr")["fade"] == pytest.approx((0.4, 0.2))
    assert report.remarks == (
        "each run as it was where it had spent 480 rollouts, at steps 7.5 to 15",
    )


def test_last_steps_end_at_the_cutoff(costly):
    # ACR of the steps 6 to 15.
    report = _at(costly, "steps=15", "collapse/acr@end", "collapse/acr@first2")
    assert _cells(report, "collapse/acr@end")["grpo"] == pytest.approx((10.5 / 20,) * 2)
    assert _cells(report, "collapse/acr@first2")["grpo"] == pytest.approx((1.5 / 20,) * 2)


@pytest.fixture
def often(costly):
    """Runs of grpo are evaluated after steps 3, 4 and 15, too: 1/8, 3/8 and 3/4."""
    for run in costly.store.runs.select():
        for step, solved in ((3, (1, 0)), (4, (2, 1)), (15, (3, 3))):
            if run.estimator == "grpo":
                costly.evaluate(run.id, f"grpo {run.seed} {step}", step, solved)
    return costly


def test_where_a_metric_is_equal(often):
    report = _at(often, "pass@1=0.25", "pass@1", "total/steps")
    assert _cells(report, "total/steps")["grpo"] == pytest.approx((3.5, 3.5))
    assert _cells(report, "total/steps")["fade"] == pytest.approx((20.0, 20.0))
    # In what they are equal in they are not compared.
    assert {d.column.name for d in report.differences} == {"entropy/right", "total/steps"}


def test_leaves_out_and_counts_runs_that_never_reach_the_cutoff(often):
    report = _at(often, "pass@1=0.75", "total/steps")
    assert all(math.isnan(value) for value in _cells(report, "total/steps")["fade"])
    left_out = "; runs that do not come to it are left out of its numbers: fade (seeds 0, 1)"
    assert left_out in report.remarks[0]
    assert "all steps: 2 of 4 runs have no number" in lay_out(report).notes


def test_where_a_training_metric_is_equal(costly):
    # The mean of ACR over the last ten steps is 5.5/20 after step 10 and 10.5/20 after 15.
    report = _at(costly, "collapse/acr=0.4", "total/steps")
    assert _cells(report, "total/steps")["grpo"] == pytest.approx((12.5, 12.5))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("hours", ConfigError, "--at: expected steps, rollouts, tokens, seconds, one of these"),
        ("rollouts=-1", ConfigError, "--at: expected steps"),
        ("rollouts=2000", ReportError, "no run of the table comes to it; they are from 0 to 1280"),
        ("pass@1=1.5", ReportError, "no run of the table comes to it; they are from 0.125 to 1"),
        ("collapse/arc=1", NotFoundError, "no run has a metric 'collapse/arc'; did you mean"),
        ("collapse/acr@end=1", NotFoundError, "expected a metric or a pass@k"),
    ],
)
def test_wrong_cutoffs(costly, text, error, message):
    with pytest.raises(error, match=message):
        _at(costly, text, "total/steps")


def test_unrecorded_costs(lab):
    lab.run("grpo", 0)
    with pytest.raises(ReportError, match="no run of the table recorded what it takes"):
        build_report(lab.store, ReportRequest("demo", at=parse_cutoff("seconds")))


def test_large_gaps_between_evaluations_are_not_interpolated(often):
    """From step 4 to 10, 3/8 to 1/2, are 30 % of the 20 steps; to 1/2 itself there is no gap."""
    names = ["total/steps@pass@1=0.4", "reached@pass@1=0.4", "collapse/acr@pass@1=0.4", "pass@1"]
    report = build_report(
        often.store, ReportRequest("demo", columns=[*names, "total/steps@pass@1=0.5"])
    )
    for name in (names[0], names[2]):
        assert all(map(math.isnan, _cells(report, name)["grpo"]))
    assert _cells(report, names[1]) == {"base": (), "grpo": (1.0, 1.0), "fade": (0.0, 0.0)}
    assert _cells(report, "total/steps@pass@1=0.5")["grpo"] == (10.0, 10.0)
    refused, exact = report.remarks
    assert refused == (
        "@pass@1=0.4: in no run; runs that do not come to it are left out of its numbers: fade "
        "(seeds 0, 1); 2 of 4 runs come to it "
        "between two evaluations more than 5% of their steps apart (6 of 20), too far to "
        "interpolate, and are left out of its numbers; evaluation.every=1, or evaluation.at, makes "
        "more evaluations"
    )
    assert exact.startswith("@pass@1=0.5: at steps 10; runs")
    told = evaluate_assertion(report, parse_assertion(f"{names[2]}[grpo] > 0.5"))
    assert told.text.startswith("cannot tell: ")
    assert told.text.endswith(f"; {refused}")
    with pytest.raises(ReportError, match=r"^--at pass@1=0.4: 2 of 4 runs come to it between two"):
        _at(often, "pass@1=0.4", "total/steps")


def test_runs_in_a_gap_are_left_out_beside_others(often):
    """Fade goes to 1/4 in one gap, so that 0.2 is found in grpo alone: at 3 + 0.075 / 0.25."""
    report = _at(often, "pass@1=0.2", "total/steps", "pass@1")
    assert _cells(report, "total/steps")["grpo"] == pytest.approx((3.3, 3.3))
    assert all(map(math.isnan, _cells(report, "total/steps")["fade"]))
    assert "; 2 of 4 runs come to it between two evaluations more than 5%" in report.remarks[0]
    # Gaps of training metrics are none.
    assert "apart (" not in _at(often, "collapse/acr=0.4", "total/steps").remarks[0]


def test_problems_by_the_solve_rate_of_the_base(lab):
    """The base solves the first of 2 problems at a rate of 1/4, and never the second."""
    for seed in range(2):
        lab.run("grpo", seed, solved=(2 + seed, 3))
    names = ["pass@1[base=0.1:0.5]", "pass@1[base=0:0.1]", "pass@1[base=0:1]"]
    report = build_report(
        lab.store, ReportRequest("demo", columns=[*names, "pass@1[base=0.25:1,level=0]"])
    )
    grpo = _cells(report, names[0])["grpo"], _cells(report, names[1])["grpo"]
    assert grpo == ((0.5, 0.75), (0.75, 0.75))
    base = [value for name in names for value in _cells(report, name)["base"]]
    assert base == pytest.approx([0.25, 0.0, 0.125])


def test_a_base_that_always_solves_a_problem_is_in_the_last_class(lab):
    run = lab.run("grpo", 0)
    lab.evaluate(run, "strong", 0, (4, 1), task="sums")
    lab.evaluate(run, "trained", 20, (2, 4), task="sums")
    columns = ["pass@1[sums,base=0.5:1]", "pass@1[sums,base=0.25:0.5]"]
    [_, row] = build_report(lab.store, ReportRequest("demo", columns=columns)).rows
    assert [row.cells[column].values for column in columns] == [(0.5,), (1.0,)]
