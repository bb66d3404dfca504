"""Columns of laws of pass@k, and of stored analyses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from advsweep.errors import NotFoundError, ReportError
from advsweep.report import build_report
from advsweep.report.data.analyses import is_analysed
from advsweep.report.data.columns import MetricDirection, parse_column
from advsweep.statistics import fit_pass_at_k, pass_at_k
from advsweep.store import NewAnalysis


def values(lab, *columns):
    report = build_report(lab.store, "demo", columns=list(columns))
    [row] = [row for row in report.rows if "grpo" in row.group.values()]
    return {name: cell.mean for name, cell in row.cells.items()}


def test_the_law_of_the_last_evaluation(lab):
    """Of the mean over two problems, at k up to half of 64 samples."""
    lab.samples = 64
    lab.run(solved=(30, 2), base_solved=(5, 1))
    ks = np.array([1, 2, 4, 8, 16, 32])
    curve = (pass_at_k(64, 30, ks) + pass_at_k(64, 2, ks)) / 2
    law = fit_pass_at_k(ks, curve)
    found = values(lab, "law/a", "law/b", "law/c", "law/mse/shifted_power", "law/mse/logarithmic")
    assert found["law/a"] == pytest.approx(law.a.value)
    assert found["law/b"] == pytest.approx(law.b.value)
    assert found["law/c"] == pytest.approx(law.c.value)
    assert found["law/mse/shifted_power"] == pytest.approx(law.mse)
    assert found["law/mse/logarithmic"] > 0


def test_laws_over_the_training(lab):
    lab.samples = 64
    run = lab.run(solved=(40, 10), base_solved=(20, 5))
    lab.evaluate(run, "between", 10, (30, 7))
    found = values(lab, "law/a@max", "law/a@argmax", "law/a", "law/aic/power[level=0]")
    assert found["law/a@argmax"] == 0
    assert found["law/a@max"] > found["law/a"]


def test_too_few_samples_for_a_law_are_refused(lab):
    lab.run()
    with pytest.raises(ReportError, match="at least 16 samples"):
        values(lab, "law/b")


def test_lower_levels_of_the_law_are_better():
    assert parse_column("law/a").direction is MetricDirection.LOWER
    assert parse_column("law/b[level=2]").direction is MetricDirection.NEITHER
    assert parse_column("law/mse/cubic").metric == "law/mse/cubic"


MATRICES = [
    {"name": "h", "part": "head", "norm": 3.0, "share": 0.36, "s1": 2.0, "s1_over_s2": 2.0},
    {"name": "l", "part": "layer 0", "norm": 4.0, "share": 0.64, "s1": 4.0, "s1_over_s2": None},
    {"name": "u", "part": "layer 1", "norm": 0.0, "share": 0.0, "s1": 0.0, "s1_over_s2": None},
]


def test_weights_of_the_last_analysis(lab):
    """Norms 3, 4 and 0 make 5; r1 is (4 + 16)/25, and of the head alone 4/9."""
    run = lab.run()
    for step, scale in ((10, 0.5), (20, 1.0)):
        matrices = [
            {**m, "norm": m["norm"] * scale, "srank": 2 + i} for i, m in enumerate(MATRICES)
        ]
        lab.store.analyses.add(
            run, NewAnalysis(kind="weights", step=step, settings={}, result={"matrices": matrices})
        )
    found = values(
        lab,
        "weights/norm",
        "weights/norm@min",
        "weights/r1",
        "weights/r1/head",
        "weights/share/layers",
        "weights/s1_over_s2/head",
        "weights/srank",
        "weights/norm/layer_0",
    )
    expected = [5.0, 2.5, 20 / 25, 4 / 9, 0.64, 2.0, 2.5, 4.0]
    assert list(found.values()) == pytest.approx(expected)


def test_hidden_states_of_the_last_analysis(lab):
    result = {
        "correct": {"rho": 0.3, "residual": 2.0},
        "failed": {"rho": None, "residual": 1.0},
        "along": 0.9,
        "residual_ratio": 0.5,
        "clt_baseline": 0.4,
    }
    run = lab.run()
    new = NewAnalysis(kind="hidden_states", step=20, settings={}, result=result)
    lab.store.analyses.add(run, new)
    found = values(lab, "hidden/rho/correct", "hidden/residual/failed", "hidden/along")
    assert list(found.values()) == pytest.approx([0.3, 1.0, 0.9])
    assert math.isnan(values(lab, "hidden/rho/failed")["hidden/rho/failed"])


def test_a_column_of_an_analysis_that_no_run_has_is_refused(lab):
    lab.run()
    with pytest.raises(NotFoundError, match="advsweep weights"):
        values(lab, "weights/r1")


def test_other_names_are_no_analyses():
    assert not is_analysed("weights/rank")
    assert not is_analysed("hidden/rho")
    assert not is_analysed("weight/variance")
