"""Rows of controls and of tuned arms: named, compared, and never counted with the baseline."""

from __future__ import annotations

import pytest

from advsweep.report.data.filters import parse_where
from advsweep.report.tables.build import build_report
from advsweep.report.tables.request import ReportRequest
from advsweep.store.tuning_records import TUNE_KEY, TunedArm, TunedValue, TuningRecord, ValueState

NOISE = {"name": "noise", "false_positives": 0.1}


@pytest.fixture
def fair(lab, constant):
    """A sweep of two arms with rates of their own, and three controls of the first."""
    arms = [
        ("grpo", 1e-4, None),
        ("rloo", 4e-4, None),
        ("grpo", 1e-4, {"name": "aa", "copy": 1}),
        ("grpo", 1e-4, {"name": "placebo"}),
        ("grpo", 1e-4, NOISE),
        ("grpo", 1e-4, {**NOISE, "false_positives": 0.3}),
    ]
    for place, (estimator, rate, control) in enumerate(arms):
        for seed in (0, 1, 2):
            points = constant(reward__mean=0.1 * place + 0.01 * seed**2)
            own = {} if control is None else {f"control__{k}": v for k, v in control.items()}
            lab.run(estimator, seed, points=points, optimizer__lr=rate, solved=None, **own)
    return lab


def rows(report):
    return [row.group for row in report.rows if not row.is_untrained]


def test_controls_are_compared_with_what_they_repeat(fair):
    report = build_report(fair.store, ReportRequest("demo", columns=["reward/mean"]))
    of_rewards = [d for d in report.differences if d.column.name == "reward/mean"]
    found = {report.rows[d.row].group["estimator"]: d.comparison.difference for d in of_rewards}
    # Rates differ between grpo and rloo, which nothing says were tuned.
    assert found == {
        "grpo (A/A)": pytest.approx(0.2),
        "grpo (placebo)": pytest.approx(0.3),
        "grpo (verifier noise)": pytest.approx(0.5),
    }
    assert len(of_rewards) == 4


def test_they_are_never_counted_as_runs_of_the_baseline(fair):
    chosen = build_report(
        fair.store,
        ReportRequest("demo", columns=["reward/mean"], where=parse_where("estimator=grpo")),
    )
    assert (rows(chosen), len(chosen.run_ids)) == ([{"estimator": "grpo"}], 3)
    placebo = parse_where("control=placebo")
    assert (
        len(
            build_report(
                fair.store, ReportRequest("demo", columns=["reward/mean"], where=placebo)
            ).run_ids
        )
        == 3
    )


def test_a_tuned_key_is_shown_and_does_not_keep_rows_apart(fair):
    record = TuningRecord(
        key="optimizer.lr",
        metric="pass@1",
        lower=False,
        seeds=(1000,),
        sweep="demo-tuning",
        arms=[
            TunedArm(
                name=name,
                grid=[TunedValue(value=rate, state=ValueState.DONE, seeds=1, scores=(0.5,))],
                chosen=rate,
            )
            for name, rate in (("grpo", 1e-4), ("rloo", 4e-4))
        ],
    )
    fair.store.sweeps.add("demo", {TUNE_KEY: record.plain()})
    report = build_report(fair.store, ReportRequest("demo", columns=["reward/mean"]))
    assert {group["estimator"]: group["optimizer.lr"] for group in rows(report)} == {
        "grpo": 1e-4,
        "rloo": 4e-4,
        **dict.fromkeys(("grpo (A/A)", "grpo (placebo)", "grpo (verifier noise)"), 1e-4),
    }
    compared = [report.rows[d.row].group["estimator"] for d in report.differences]
    assert compared[:2] == ["rloo", "grpo (A/A)"]
    assert record.text in report.remarks
    # A choice that all share is shown as well.
    same = build_report(
        fair.store,
        ReportRequest("demo", columns=["reward/mean"], where=parse_where("optimizer.lr=1e-4")),
    )
    assert all(group["optimizer.lr"] == 1e-4 for group in rows(same))
