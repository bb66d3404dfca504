"""The Python API: frames of runs, metrics and problems, and reports in notebooks."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO

import pandas as pd
import pytest

import advsweep
from advsweep.errors import AdvsweepError, NoStoreError, NotFoundError
from advsweep.report.tables.build import build_report
from advsweep.report.tables.render import render
from advsweep.report.tables.request import ReportRequest
from advsweep.store import Status

LOADS = ("load_runs", "load_metrics", "load_evaluations", "load_problems")
ENTROPIES = ("entropy/answer", "entropy/right", "entropy/right_rarefied")


def test_importing_advsweep_alone_imports_nothing_heavy():
    program = (
        "import sys, advsweep\n"
        "names = {'load_runs', 'load_metrics', 'load_evaluations', 'load_problems'}\n"
        "names |= {'report', 'plot', 'sweep'}\n"
        "assert names <= {*dir(advsweep)}\n"
        "heavy = {'torch', 'pandas', 'sqlalchemy', 'numpy', 'scipy'} & {*sys.modules}\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="no attribute 'load_run'"):
        _ = advsweep.load_run


def test_loads_a_row_per_run(demo):
    demo.run("grpo", 7, status=Status.FAILED)
    runs = advsweep.load_runs("advsweep.db", sweep="demo")
    assert len(runs) == 8
    assert runs["estimator"].value_counts().to_dict() == {"grpo": 4, "fade": 3, "rloo": 1}
    assert runs["status"].tolist() == ["done"] * 7 + ["failed"]
    assert runs["group_size"].tolist() == [8] * 8
    done = runs[runs["status"] == "done"]
    means = done.groupby("estimator")["pass@1"].mean()
    report = build_report(demo.store, ReportRequest("demo"))
    expected = {row.group["estimator"]: row.cells["pass@1"].mean for row in report.rows}
    assert means.to_dict() == pytest.approx({k: v for k, v in expected.items() if k != "base"})


def test_selects_runs_and_columns(demo):
    runs = advsweep.load_runs(where="estimator=fade seed<2", columns=["collapse/acr@end", "seed"])
    assert runs["seed"].tolist() == [0, 1]
    assert runs["collapse/acr@end"].tolist() == pytest.approx([0.1, 0.1])


def test_loads_metric_points(lab, constant):
    for size in (4, 8):
        lab.run("grpo", 0, group_size=size, points=constant(reward__mean=size / 10, loss__kl=0.5))
    curves = advsweep.load_metrics("advsweep.db", sweep="demo", names="reward/mean")
    assert list(curves) == ["run", "estimator", "group_size", "seed", "metric", "step", "value"]
    assert curves.groupby("group_size")["value"].agg(["size", "mean"]).to_dict("index") == {
        4: {"size": 20, "mean": pytest.approx(0.4)},
        8: {"size": 20, "mean": pytest.approx(0.8)},
    }
    assert set(advsweep.load_metrics()["metric"]) == {"reward/mean", "loss/kl"}
    wide = advsweep.load_metrics(sweep="demo", wide=True)
    assert list(wide)[-3:] == ["step", "loss/kl", "reward/mean"]
    assert len(wide) == 40


def test_loads_the_counts_of_every_problem(demo):
    problems = advsweep.load_problems("advsweep.db", where="estimator=grpo")
    final = problems[problems["step"] == 20]
    assert final.groupby("seed")["c"].apply(list).to_dict() == {0: [2, 0], 1: [2, 2], 2: [4, 2]}
    assert set(problems["n"]) == {4}
    assert set(problems.loc[problems["step"] == 0, "c"]) == {1, 0}


def test_loads_the_scores_of_every_evaluation(demo):
    evaluations = advsweep.load_evaluations("advsweep.db", where="estimator=grpo")
    assert evaluations[["seed", "step", "n", "problems"]].values.tolist() == [
        [seed, step, 4, 2] for seed in (0, 1, 2) for step in (0, 20)
    ]
    # Of four samples of two problems each: 2 and 0, 2 and 2, 4 and 2 are right.
    final = evaluations[evaluations["step"] == 20]
    assert final["pass@1"].tolist() == pytest.approx([0.25, 0.5, 0.75])
    of_runs = advsweep.load_runs(where="estimator=grpo", columns=",".join(ENTROPIES))
    for name in ENTROPIES:
        assert final[name].tolist() == pytest.approx(of_runs[name].tolist(), nan_ok=True)


def test_frames_of_no_runs_are_empty(demo):
    for name in LOADS:
        frame = getattr(advsweep, name)("advsweep.db", where="seed>99")
        assert frame.empty
        assert {"run", "estimator", "seed"} <= {*frame}


def test_report_is_that_of_the_command(demo):
    report = advsweep.report("advsweep.db", sweep="demo", columns="pass@1,collapse/acr@end")
    built = build_report(demo.store, ReportRequest("demo", columns=["pass@1", "collapse/acr@end"]))
    assert str(report) == render(built, "table")
    assert report.render("csv") == render(built, "csv")
    frame = report.to_frame()
    read = pd.read_csv(StringIO(report.render("csv")))
    pd.testing.assert_frame_equal(frame, read, check_dtype=False)


def test_report_in_a_notebook_escapes_texts(lab):
    for name in ("a", "<script>"):
        lab.run("grpo", 0, objective={"name": name})
    for columns in ("pass@1", "pass@1,pass@2"):
        shown = advsweep.report(lab.store, columns=columns)._repr_html_()
        assert shown.startswith("<pre>")
        assert "&lt;script&gt;" in shown
        assert "<script>" not in shown


def test_report_takes_the_options_of_the_command(demo):
    report = advsweep.report(
        sweep="demo", where="estimator=fade,grpo", sort="pass@1", baseline="grpo", at="steps=10"
    )
    assert len(report.to_frame()) == 2
    assert "steps 10" in str(report)


@pytest.mark.parametrize("name", [*LOADS, "report"])
def test_errors_of_the_api(name, demo):
    load = getattr(advsweep, name)
    with pytest.raises(NoStoreError, match=r"no store at nowhere\.db"):
        load("nowhere.db")
    assert not os.path.exists("nowhere.db")
    with pytest.raises(NotFoundError, match="no sweep 'dmeo'"):
        load("advsweep.db", sweep="dmeo")
    with pytest.raises(AdvsweepError, match="did you mean 'estimator'"):
        load("advsweep.db", where="estimater=fade")
