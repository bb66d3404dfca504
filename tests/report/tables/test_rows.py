"""Rows and columns of one's own: keys, tasks, levels, sorting."""

from __future__ import annotations

import pytest

from advsweep.errors import NotFoundError, ReportError
from advsweep.report.data.frames import run_frame
from advsweep.report.tables.build import build_report
from advsweep.report.tables.render import lay_out
from advsweep.report.tables.request import ReportRequest


@pytest.fixture
def sizes(lab):
    """grpo at group sizes 4, 8 and 16 and fade at 4 and 8, three seeds each."""
    solved = {"grpo": [(1, 0), (1, 0), (2, 0)], "fade": [(3, 2), (3, 2), (4, 3)]}
    for size in (16, 4, 8):
        for estimator in ("grpo", "fade") if size < 16 else ("grpo",):
            for seed, counts in enumerate(solved[estimator]):
                lab.run(estimator, seed, solved=counts, group_size=size)
    return lab


def test_refuses_rows_that_differ_in_another_key(sizes):
    with pytest.raises(ReportError) as error:
        build_report(sizes.store, ReportRequest("demo", rows=["estimator"]))
    assert str(error.value).startswith(
        "the runs of grpo differ in other keys as well (group_size: 16, 4, 8): give "
    )
    # Of an estimator's parameters there is nothing to say where the estimator differs.
    sizes.run("fade", 3, estimator__h_star=0.5)
    with pytest.raises(ReportError, match=r"\(estimator: grpo, fade; group_size: 16, 4, 8\)"):
        build_report(sizes.store, ReportRequest("demo", rows=["steps"]))


def test_levels_and_wildcards(demo):
    report = build_report(demo.store, ReportRequest("demo", columns=["pass@*[level=*]"]))
    assert [column.name for column in report.columns] == [
        *("pass@1[level=0]", "pass@1[level=1]", "pass@2[level=0]", "pass@2[level=1]")
    ]
    assert report.columns[0].header == "level 0 p@1"
    # grpo solves (2, 0), (2, 2) and (4, 2) of 4: at level 0 1/2, 1/2 and 1.
    cells = report.rows[1].cells
    assert cells["pass@1[level=0]"].values == pytest.approx((0.5, 0.5, 1.0))
    assert cells["pass@1[level=1]"].values == pytest.approx((0.0, 0.5, 0.5))


@pytest.fixture
def tasks(lab):
    """Two seeds, evaluated on their own task and on two others."""
    for seed in range(2):
        run = lab.run("grpo", seed, solved=(2, 0), task={"name": "countdown"})
        lab.evaluate(run, f"a{seed}", 20, (4, seed), task="aime24", k=[1])
        lab.evaluate(run, f"b{seed}", 20, (4, 4), task="math", n=8, k=[1])
    return lab


def test_numbers_of_several_tasks(tasks):
    columns = ["pass@1", "pass@1[*]", "pass@1[mean]", "pass@1[aime24,level=1]"]
    report = build_report(tasks.store, ReportRequest("demo", columns=columns))
    assert [c.header for c in report.columns] == [
        *("p@1", "countdown p@1", "aime24 p@1", "math p@1", "mean p@1", "aime24 level 1 p@1")
    ]
    cells = report.rows[1].cells
    assert (
        cells["pass@1"].values == cells["pass@1[countdown]"].values == pytest.approx((0.25, 0.25))
    )
    assert cells["pass@1[aime24]"].values == pytest.approx((0.5, 0.625))
    assert cells["pass@1[math]"].values == pytest.approx((0.5, 0.5))
    # The means of 0.25, 0.5 and 0.5, and of 0.25, 0.625 and 0.5.
    assert cells["pass@1[mean]"].values == pytest.approx((1.25 / 3, 1.375 / 3))
    assert cells["pass@1[aime24,level=1]"].values == pytest.approx((0.0, 0.25))
    assert [e["task"] for e in report.provenance["evaluations"]] == ["countdown", "aime24", "math"]
    below = "\n".join(lay_out(report).provenance)
    assert "evaluated on 2 problems of math: n=8, " in below


def test_refuses_a_column_of_a_task_with_different_evaluations(tasks):
    run = tasks.run("fade", 0, solved=(2, 0), task={"name": "countdown"})
    tasks.evaluate(run, "c", 20, (4, 4), task="math", n=16, k=[1])
    assert "pass@1[math]" not in [
        c.name for c in build_report(tasks.store, ReportRequest("demo")).columns
    ]
    with pytest.raises(ReportError, match=r"evaluation\.n: 16 \(1 run\) and 8 \(2 runs\)"):
        build_report(tasks.store, ReportRequest("demo", columns=["pass@1[math]"]))
    mixed = run_frame(tasks.store, tasks.store.runs.select(), ["pass@1[math]"], mixed=True)
    means = mixed.groupby("estimator")["pass@1[math]"].mean()
    assert means.to_dict() == pytest.approx({"grpo": 0.5, "fade": 0.25})


def test_refuses_runs_of_several_tasks_unless_mixed(lab):
    first = lab.run("grpo", 0, solved=None, task={"name": "math"})
    lab.evaluate(first, "a", 20, (4, 0), task="math")
    lab.run("fade", 0, solved=(4, 4), task={"name": "countdown"})
    with pytest.raises(ReportError, match=r"task: countdown \(1 run\) and math \(1 run\)"):
        build_report(lab.store, ReportRequest("demo"))
    runs = lab.store.runs.select()
    with pytest.raises(ReportError, match="tasks math, countdown"):
        run_frame(lab.store, runs, ["pass@1"], mixed=True)
    mixed = run_frame(lab.store, runs, ["pass@1[math]"], mixed=True).set_index("estimator")
    assert mixed["pass@1[math]"].notna().to_dict() == {"grpo": True, "fade": False}


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        ("pass@1[gsm8k]", NotFoundError, "tasks countdown"),
        ("pass@1[level=9]", NotFoundError, "levels 0, 1, "),
        ("pass@5", ReportError, "4 samples per problem"),
        ("pass@1[a,b]", NotFoundError, "no column is called"),
        ("group_size", ReportError, "group_size is a config key, which names rows"),
        ("group_siz", NotFoundError, "a metric 'group_siz'; did you mean 'group_size'"),
    ],
)
def test_unknown_columns_of_evaluations(demo, column, error, message):
    with pytest.raises(error, match=message):
        build_report(demo.store, ReportRequest("demo", columns=[column]))


def _order(demo, sort):
    rows = build_report(demo.store, ReportRequest("demo", sort=sort)).rows
    return [row.group["estimator"] for row in rows]


def test_sorting(demo):
    # pass@1 is 1/2, 3/4 and 1; ACR 0.45, 0.15 and 0.15.
    # grpo is the baseline, which stays above the rows that are compared with it.
    assert _order(demo, "pass@1") == ["base", "grpo", "rloo", "fade"]
    assert _order(demo, "collapse/acr@first100")[1] == "grpo"
    assert _order(demo, "estimator") == ["base", "grpo", "fade", "rloo"]
    with pytest.raises(NotFoundError, match="no column or key 'pass@3'; did you mean"):
        _order(demo, "pass@3")
