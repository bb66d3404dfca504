"""The demo from end to end: the shipped sweep, in small, on the real transformer."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import yaml

from advsweep.backends.models import PretrainingSeed
from advsweep.report.claims.lists import claim_lists
from advsweep.sweep.planning.plan import make_plan

STUDIES = Path(__file__).parents[1] / "experiments"
RESULTS = STUDIES / "demo"
TRAININGS = {"vector": "report.csv", "plain": "report_plain.csv", "seeds": "report_seeds.csv"}
SEEDS = 12


def test_the_demo_compares_four_estimators_with_twelve_bases_each():
    plan = make_plan(["+experiment=demo"])
    seeds = Counter(p.run.estimator.name for p in plan.runs)
    assert plan.name == "demo"
    assert len(seeds) == 4
    assert set(seeds.values()) == {SEEDS}
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


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES))
    return importlib.import_module("processors")


def read_trainings() -> dict[str, pd.DataFrame]:
    return {name: pd.read_csv(RESULTS / file) for name, file in TRAININGS.items()}


def test_the_trainings_of_the_demo_have_the_arms_and_seeds_of_its_sweep():
    arms = {p.run.estimator.name for p in make_plan(["+experiment=demo"]).runs}
    for table in read_trainings().values():
        trained = table[table["estimator"].isin(arms)]
        assert set(trained["estimator"]) == arms
        assert set(trained["n"]) == {SEEDS}


def test_the_verdicts_on_the_page_of_the_demo_are_those_of_its_reports(processors):
    found = processors.compare(read_trainings(), ["estimator"])
    recorded = pd.read_csv(RESULTS / "verdicts.csv")
    assert len(recorded) == len(processors.OUTCOMES) * 3
    pd.testing.assert_frame_equal(recorded, found.reset_index(drop=True), rtol=1e-4)


def test_what_the_demo_shows_holds_with_other_bits_and_other_seeds():
    """PSR and Pass@k training differ from GRPO in opposite directions, far from the edge."""
    verdicts = pd.read_csv(RESULTS / "verdicts.csv").set_index(["estimator", "outcome"])
    opposite = [("psr", 1), ("passk_analytic", -1)]
    for estimator, sign in opposite:
        for outcome in ("pass@1", "pass@32[above=guess]", "entropy/right_rarefied"):
            row = verdicts.loc[estimator, outcome]
            expected = sign if outcome == "pass@1" else -sign
            for training in TRAININGS:
                assert row[f"{training}_p_adjusted"] < 0.01
                assert row[f"{training}_difference"] * expected > 0


def test_a_verdict_moves_where_one_training_alone_is_significant(processors):
    found = pd.DataFrame({"a_p_adjusted": [0.01, 0.04, 0.2], "b_p_adjusted": [0.02, 0.06, 0.9]})
    assert processors.moved(found, ["a", "b"]).tolist() == [False, True, False]
