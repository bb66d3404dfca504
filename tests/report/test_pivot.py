"""Rows and columns of one's own: keys, pivots, pooling, sorting."""

from __future__ import annotations

import pytest

from advsweep.errors import NotFoundError, ReportError
from advsweep.report import Mark, build_report, lay_out, render


@pytest.fixture
def sizes(lab):
    """grpo at group sizes 4, 8 and 16 and fade at 4 and 8, three seeds each."""
    solved = {"grpo": [(1, 0), (1, 0), (2, 0)], "fade": [(3, 2), (3, 2), (4, 3)]}
    for size in (16, 4, 8):
        for estimator in ("grpo", "fade") if size < 16 else ("grpo",):
            for seed, counts in enumerate(solved[estimator]):
                lab.run(estimator, seed, solved=counts, group_size=size)
    return lab


def _texts(table):
    return [(line.names, [entry.text for entry in line.entries]) for line in table.lines]


def test_a_key_as_columns(sizes):
    report = build_report(sizes.store, "demo", rows=["estimator"], columns=["group_size"])
    [table, *_] = lay_out(report).tables
    assert (table.title, table.names) == ("p@1 by group_size", ("estimator",))
    assert [h.levels for h in table.columns] == [
        ("group_size=4",), ("group_size=8",), ("group_size=16",)
    ]  # fmt: skip
    # pass@1 of grpo is 1/8, 1/8 and 1/4, of fade 5/8, 5/8 and 7/8: .54 ± .18 more. The base model
    # has 1 of 4 and 0 of 4 whatever the group size.
    assert _texts(table) == [
        (("base",), ["0.12", "0.12", "0.12"]),
        (("grpo",), ["0.17", "0.17", "0.17"]),
        (("fade",), ["0.71", "0.71", "–"]),
    ]
    marks = [[entry.mark for entry in line.entries] for line in table.lines[1:]]
    assert marks == [[Mark.SECOND, Mark.SECOND, None], [Mark.BEST, Mark.BEST, None]]


def test_metrics_beside_a_key_stand_below_each_of_its_values(sizes):
    columns = ["group_size", "pass@1", "pass@2"]
    report = build_report(sizes.store, "demo", rows=["estimator"], columns=columns)
    table = lay_out(report).tables[0]
    assert table.title == ""
    assert table.columns[:3] == tuple(
        type(table.columns[0])(levels)
        for levels in (("group_size=4", "p@1"), ("group_size=4", "p@2"), ("group_size=8", "p@1"))
    )
    latex = render(report, "latex")
    assert r"\multicolumn{2}{c}{group\_size=4}" in latex
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5} \cmidrule(lr){6-7}" in latex
    assert "| estimator | group_size=4 p@1 | group_size=4 p@2 |" in render(report, "markdown")


def test_each_value_is_compared_with_the_baseline_of_its_own(sizes):
    report = build_report(sizes.store, "demo", rows=["estimator"], columns=["group_size"])
    assert report.baseline == "grpo"
    pairs = [
        (report.rows[d.row].group, report.rows[d.baseline].group)
        for d in report.differences
        if d.column.name == "pass@1"
    ]
    assert pairs == [
        ({"estimator": "fade", "group_size": size}, {"estimator": "grpo", "group_size": size})
        for size in (4, 8)
    ]


def test_refuses_rows_that_differ_in_another_key(sizes):
    with pytest.raises(ReportError) as error:
        build_report(sizes.store, "demo", rows=["estimator"])
    assert str(error.value).startswith(
        "the runs of estimator=grpo differ in other keys as well (group_size: 16, 4, 8): give "
    )
    # Of an estimator's parameters there is nothing to say where the estimator differs.
    sizes.run("fade", 3, estimator__h_star=0.5)
    with pytest.raises(ReportError, match=r"\(estimator: grpo, fade; group_size: 16, 4, 8\)"):
        build_report(sizes.store, "demo", rows=["steps"])


def test_pooled_rows_average_each_seed_over_its_runs(sizes):
    sizes.run("grpo", 3, solved=(4, 4), group_size=4)
    report = build_report(sizes.store, "demo", rows=["estimator"], columns=["pass@1"], pool=True)
    grpo = report.rows[1]
    assert (grpo.n, grpo.runs, grpo.seeds) == (4, 10, (0, 1, 2, 3))
    # Seed 3 has a run of one group size of three.
    assert grpo.cells["pass@1"].values[:3] == pytest.approx((0.125, 0.125, 0.25))
    assert grpo.cells["pass@1"].n == 3
    assert report.remarks == (
        "the value of a seed is the mean of its runs over group_size; seeds that lack one are out",
    )
    assert "p@1: 1 of 7 seeds have no number" in lay_out(report).notes


def test_seeds_can_be_columns(demo):
    report = build_report(demo.store, "demo", rows=["estimator"], columns=["seed"])
    assert _texts(lay_out(report).tables[0])[1] == (("grpo",), ["0.25", "0.500", "0.75"])
    assert report.differences == []
    assert "not compared with grpo: that takes two seeds of each" in lay_out(report).notes


def test_replicates_are_apart_where_seeds_are_columns_beside_a_key(sizes):
    report = build_report(sizes.store, "demo", columns=["group_size", "seed"])
    assert all(row.n == 1 for row in report.rows)
    table = lay_out(report).tables[0]
    assert table.names == ("estimator",)
    # grpo at group sizes 4, 8 and 16: 1 of 8, 1 of 8 and 2 of 8 for its seeds.
    assert _texts(table)[1] == (("grpo",), ["0.12", "0.12", "0.25"] * 3)
    assert _texts(table)[2] == (("fade",), [*["0.62", "0.62", "0.88"] * 2, *["–"] * 3])


def test_estimators_as_columns(sizes):
    report = build_report(sizes.store, "demo", columns=["estimator"])
    table = lay_out(report).tables[0]
    assert table.names == ("group_size",)
    # The base model stands where the rows' names do.
    assert _texts(table) == [
        (("base",), ["0.12", "0.12"]),
        (("16",), ["–", "0.17"]),
        (("4",), ["0.71", "0.17"]),
        (("8",), ["0.71", "0.17"]),
    ]


def test_levels_and_wildcards(demo):
    report = build_report(demo.store, "demo", columns=["pass@*[level=*]"])
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
    report = build_report(tasks.store, "demo", columns=columns)
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
    assert [e["task"] for e in report.provenance.evaluations] == ["countdown", "aime24", "math"]
    below = "\n".join(lay_out(report).provenance)
    assert "evaluated on 2 problems of math: n=8, " in below


def test_tasks_beside_the_runs_own_have_a_column_by_themselves(tasks):
    names = [column.name for column in build_report(tasks.store, "demo").columns]
    assert names == ["pass@1", "pass@2", "pass@1[aime24]", "pass@1[math]", "entropy/answer"]


def test_refuses_a_column_of_a_task_with_different_evaluations(tasks):
    run = tasks.run("fade", 0, solved=(2, 0), task={"name": "countdown"})
    tasks.evaluate(run, "c", 20, (4, 4), task="math", n=16, k=[1])
    assert "pass@1[math]" not in [c.name for c in build_report(tasks.store, "demo").columns]
    with pytest.raises(ReportError, match=r"evaluation\.n: 16 \(1 run\) and 8 \(2 runs\)"):
        build_report(tasks.store, "demo", columns=["pass@1[math]"])
    mixed = build_report(tasks.store, "demo", columns=["pass@1[math]"], mixed_protocols=True)
    assert [row.cells["pass@1[math]"].mean for row in mixed.rows[1:]] == pytest.approx([0.5, 0.25])
    assert [sorted(e["n"]) for e in mixed.provenance.evaluations] == [[8, 16]]


def test_refuses_runs_of_several_tasks_unless_mixed(lab):
    first = lab.run("grpo", 0, solved=None, task={"name": "math"})
    lab.evaluate(first, "a", 20, (4, 0), task="math")
    lab.run("fade", 0, solved=(4, 4), task={"name": "countdown"})
    with pytest.raises(ReportError, match=r"task: countdown \(1 run\) and math \(1 run\)"):
        build_report(lab.store, "demo")
    with pytest.raises(ReportError, match=r"different tasks; expected one of \[math, countdown\]"):
        build_report(lab.store, "demo", columns=["pass@1"], mixed_protocols=True)
    mixed = build_report(lab.store, "demo", columns=["pass@1[math]"], mixed_protocols=True)
    assert [row.cells["pass@1[math]"].n for row in mixed.rows[1:]] == [1, 0]


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        ("pass@1[gsm8k]", NotFoundError, "was evaluated on 'gsm8k'; known: countdown"),
        ("pass@1[level=9]", NotFoundError, "no problem is of level 9; known: 0, 1"),
        ("pass@5", ReportError, "expected k up to the 4 samples per problem, got 5"),
        ("pas@1", NotFoundError, "a metric 'pas@1'; did you mean 'pass@1'"),
        ("pass@1[a,b]", NotFoundError, "no column is called"),
        ("group_siz", NotFoundError, "a metric 'group_siz'; did you mean 'group_size'"),
    ],
)
def test_unknown_columns_of_evaluations(demo, column, error, message):
    with pytest.raises(error, match=message):
        build_report(demo.store, "demo", columns=[column])


def test_unknown_rows(demo):
    with pytest.raises(NotFoundError, match="no run has a key 'estimater'; did you mean"):
        build_report(demo.store, "demo", rows=["estimater"])


def _order(demo, sort):
    rows = build_report(demo.store, "demo", sort=sort).rows
    return [row.group["estimator"] for row in rows]


def test_sorting(demo):
    # pass@1 is 1/2, 3/4 and 1; ACR 0.45, 0.15 and 0.15.
    assert _order(demo, "pass@1") == ["base", "rloo", "fade", "grpo"]
    assert _order(demo, "pass@1:rising") == ["base", "grpo", "fade", "rloo"]
    assert _order(demo, "collapse/acr@first100")[-1] == "grpo"
    assert _order(demo, "estimator") == ["base", "fade", "grpo", "rloo"]
    assert _order(demo, "estimator:falling") == ["base", "rloo", "grpo", "fade"]
    with pytest.raises(NotFoundError, match="no column or key 'pass@3'; did you mean"):
        _order(demo, "pass@3")
    with pytest.raises(ReportError, match="expected pass@1:rising or pass@1:falling"):
        _order(demo, "pass@1:up")
