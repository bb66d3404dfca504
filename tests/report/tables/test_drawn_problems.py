"""Rows whose seeds have problems of their own, drawn from a pool of data by `task.seed=seed`."""

from __future__ import annotations

import pytest

from advsweep.errors import ReportError
from advsweep.report.figures.data import FigureData, NamedRuns
from advsweep.report.tables.build import build_report
from advsweep.report.tables.render import lay_out
from advsweep.report.tables.request import ReportRequest

TASK = {"name": "dataset", "data": "/nowhere/sums.jsonl", "held_out": 2, "seed": "seed"}
POOL = "0123456789abcdef"
BASE = "base:aaaabbbbcccc"


def evaluate(lab, estimator, seed, *, end, base, pool=POOL, levels=(0, 1)):
    """Adds a run, evaluated on the problems of its seed; both problems are drawn four times."""
    lab.problems = [(f"{seed}-{i}", f"{seed} + {i} =") for i in range(2)]
    lab.levels = levels
    run_id = lab.run(estimator, seed, task=TASK, solved=None)
    # The subject of the base is the same for all seeds, and its evaluations are not: `every` tells
    # them apart here, and is no part of how they were made.
    for subject, step, solved in ((f"{estimator}{seed}", 20, end), (BASE, 0, base)):
        lab.evaluate(run_id, subject, step, solved, task="sums", pool=pool, every=seed)
    return run_id


@pytest.fixture
def lab(lab):
    lab.samples = 4
    return lab


def rows_of(lab):
    report = build_report(lab.store, ReportRequest("demo", columns=["pass@1"]))
    return report, {row.group["estimator"]: row for row in report.rows}


def test_seeds_with_problems_of_their_own_are_one_row_and_pair_with_their_base(lab):
    for seed in range(3):
        levels = (0, seed % 2)  # as many problems, and not of the same levels
        for place, estimator in enumerate(("rloo", "psr")):
            end = (2 + place, seed)
            evaluate(lab, estimator, seed, end=end, base=(0, seed), levels=levels)
    report, rows = rows_of(lab)
    assert [*rows] == ["base", "rloo", "psr"]
    base = rows["base"]
    assert (base.seeds, base.models) == ((0, 1, 2), 1)
    # Each seed's own: 0 and SEED right answers of eight.
    assert base.cells["pass@1"].values == pytest.approx([0, 1 / 8, 2 / 8])
    assert rows["rloo"].cells["pass@1"].values == pytest.approx([2 / 8, 3 / 8, 4 / 8])
    assert rows["psr"].by_seed("pass@1") == pytest.approx({0: 3 / 8, 1: 4 / 8, 2: 5 / 8})
    notes = [note for note in lay_out(report).notes if note.startswith("base: ")]
    assert notes[0].startswith("base: the model that all runs start from, on the problems of each")


def test_a_figure_has_the_base_on_the_problems_of_every_seed(lab):
    for seed in range(3):
        evaluate(lab, "rloo", seed, end=(2, seed), base=(0, seed))
    [base] = FigureData(lab.store, NamedRuns(lab.store.runs.select(), "demo")).untrained
    assert base.label == "base"
    assert sorted(int(record.c.sum()) for record in base.evaluations) == [0, 1, 2]


@pytest.mark.parametrize("pool", ["fedcba9876543210", None])
def test_evaluations_on_problems_of_another_pool_are_refused(lab, pool):
    evaluate(lab, "rloo", 0, end=(2, 2), base=(1, 1))
    lab.problems = [("other", "7 + 7 ="), ("another", "8 + 8 =")]
    run_id = lab.run("rloo", 1, task=TASK, solved=None)
    settings = {} if pool is None else {"pool": pool}
    lab.evaluate(run_id, "rloo1", 20, (1, 1), task="sums", **settings)
    with pytest.raises(ReportError, match=rf"pool: {POOL} \(1 run\) and {pool or 'the default'}"):
        rows_of(lab)
