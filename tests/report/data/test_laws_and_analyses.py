"""Columns of laws of pass@k, and of stored analyses."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from advsweep.errors import NotFoundError
from advsweep.plugins import Discovery, PluginPoint
from advsweep.report.data.analyses import AnalysisColumns, analysis_columns
from advsweep.report.tables.build import build_report
from advsweep.report.tables.request import ReportRequest
from advsweep.statistics import pass_at_k
from advsweep.statistics.pass_laws import fit_pass_at_k
from advsweep.store import NewAnalysis


def values(lab, *columns):
    report = build_report(lab.store, ReportRequest("demo", columns=list(columns)))
    [row] = [row for row in report.rows if "grpo" in row.group.values()]
    return {name: row.cells[name].mean for name in columns}


def test_the_law_of_the_last_evaluation(lab):
    """Of the mean over two problems, at k up to half of 64 samples."""
    lab.samples = 64
    lab.run(solved=(30, 2), base_solved=(5, 1))
    ks = np.array([1, 2, 4, 8, 16, 32])
    curve = (pass_at_k(64, 30, ks) + pass_at_k(64, 2, ks)) / 2
    law = fit_pass_at_k(ks, curve)
    found = values(lab, "law/a", "law/b", "law/c", "law/mse/shifted_power", "law/mse/exponential")
    assert found["law/a"] == pytest.approx(law.a.value)
    assert found["law/b"] == pytest.approx(law.b.value)
    assert found["law/c"] == pytest.approx(law.c.value)
    assert found["law/mse/shifted_power"] == pytest.approx(law.mse)
    assert found["law/mse/exponential"] > 0


def test_laws_over_the_training(lab):
    lab.samples = 64
    run = lab.run(solved=(40, 10), base_solved=(20, 5))
    lab.evaluate(run, "between", 10, (30, 7))
    found = values(lab, "law/a@max", "law/a@argmax", "law/a", "law/aic/power[level=0]")
    assert found["law/a@argmax"] == 0
    assert found["law/a@max"] > found["law/a"]


def test_columns_of_a_package_that_is_not_there_name_it(lab, monkeypatch):
    monkeypatch.setattr("advsweep.plugins._discover", lambda path: Discovery((), ()))
    lab.run()
    assert analysis_columns("weights/r1") is None
    with pytest.raises(NotFoundError, match="'weights/r1'; install its package: pip install cont"):
        values(lab, "weights/r1")


WORDS = AnalysisColumns(
    "words", re.compile("words/(count)"), lambda result, match: result[match[1]], "count words"
)


def test_columns_that_a_package_adds(lab, monkeypatch):
    """Of the last analysis of each run, and over its analyses by a window."""
    point = PluginPoint("advsweep.columns", "words", f"{__name__}:WORDS", "counter", "1.0")
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(WORDS=WORDS))
    monkeypatch.setattr("advsweep.plugins._discover", lambda path: Discovery((point,), ()))
    run = lab.run()
    with pytest.raises(NotFoundError, match="has a metric 'words/count'; `count words`"):
        values(lab, "words/count")
    for step in (10, 20):
        new = NewAnalysis(kind="words", step=step, settings={}, result={"count": step / 2})
        lab.store.analyses.add(run, new)
    assert values(lab, "words/count", "words/count@min") == {
        "words/count": 10,
        "words/count@min": 5,
    }
    assert analysis_columns("words/length") is None
