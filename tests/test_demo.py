"""The demo from end to end: the shipped sweep, in small, on the real transformer."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from advsweep.backends.models import PretrainingSeed
from advsweep.report.claims.lists import claim_lists
from advsweep.sweep.planning.plan import make_plan

RESULTS = Path(__file__).parents[1] / "experiments" / "demo"


def test_the_demo_compares_four_estimators_with_four_bases_each():
    plan = make_plan(["+experiment=demo"])
    seeds = Counter(p.run.estimator.name for p in plan.runs)
    assert plan.name == "demo"
    assert len(seeds) == 4
    assert set(seeds.values()) == {4}
    assert {p.run.model.pretraining_seed for p in plan.runs} == {PretrainingSeed.RUN}
    assert all(max(p.run.evaluation.k) <= p.run.evaluation.n // 4 for p in plan.runs)


@pytest.mark.slow
def test_the_claims_about_the_demo_name_its_rows_and_nothing_that_guessing_answers():
    listed = yaml.safe_load(claim_lists()["demo"].read_text("utf-8"))
    assert listed["common"]["sweep"] == "demo"
    runs = [p.run for p in make_plan(["+experiment=demo"]).runs]
    rows = {run.estimator.name for run in runs} | {"base"}
    names, columns = set[str](), set[str]()
    for claim in listed["claims"]:
        for text in [claim["statement"]] if "statement" in claim else []:
            for column, row in re.findall(r"(\S+)\[(\w+)\]", str(text)):
                names.add(row)
                columns.add(column)
        names |= {claim[key] for key in ("of", "than") if key in claim}
        columns |= {claim["metric"]} if "metric" in claim else set()
    assert names == rows
    passed = [(int(k), c) for c in columns for k in re.findall(r"pass@(\d+)", c)]
    assert {k for k, _ in passed} <= set(runs[0].evaluation.k)
    assert {k for k, column in passed if "above=guess" not in column} == {1}


def test_the_committed_demo_has_a_settled_difference_between_trained_estimators():
    rows = csv.DictReader((RESULTS / "claims.csv").read_text("utf-8").splitlines())
    settled = [
        row
        for row in rows
        if row["verdict"] == "holds" and "[grpo]" in row["judged"] and "[base]" not in row["judged"]
    ]
    compared = [row for row in settled if row["judged"].count("[") >= 2]
    assert compared
    for row in compared:
        assert int(row["n"]) == 4
        assert float(row["p_adjusted"]) <= 0.05
        assert float(row["low"]) > 0 or float(row["high"]) < 0
