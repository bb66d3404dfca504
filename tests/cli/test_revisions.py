"""Runs of two revisions of a component in one store: what `ls` and `report` say."""

from __future__ import annotations

import pytest

from advsweep.estimators import ESTIMATORS
from advsweep.store import open_store

SMALL = ["executor=debug", "backend=fake", "steps=2", "evaluation.n=4", "evaluation.k=[1,2]"]
SWEEP = ["--name=two", *SMALL, "estimator=grpo,rloo", "seed=0,1"]


@pytest.fixture
def after(succeeds, monkeypatch, tmp_path):
    """`succeeds` beside runs 1 to 4, and runs 5 and 6 of revision 2 of `rloo`."""
    monkeypatch.chdir(tmp_path)
    succeeds("sweep", *SWEEP)
    monkeypatch.setattr(ESTIMATORS.get("rloo"), "revision", 2)
    succeeds("sweep", *SWEEP)
    return succeeds


@pytest.mark.slow
def test_listings_and_reports_say_which_runs_are_of_which_revision(after):
    for arguments in (("ls",), ("ls", "two"), ("ls", "--format", "json")):
        [expected] = after(*arguments)[1].splitlines()
        assert "estimator 'rloo' has several revisions" in expected
        assert "revision 1 in runs 3-4, revision 2 in runs 5-6" in expected
    assert "revision" not in after("ls", "--limit", "2")[1]
    # A report says how to leave the older one out.
    [note] = [line for line in after("report", "two")[0].splitlines() if "has several" in line]
    assert "revision 1 in runs 3-4, revision 2 in runs 5-6" in note
    condition = note.partition("--where '")[2].partition("'")[0]
    chosen = after("report", "two", "--where", condition, "--format", "json")[0]
    assert "revisions" not in chosen
    with open_store(None, create=False) as store:
        hashes = {run.id: run.config_hash[:8] for run in store.runs.select()}
    assert condition == f"config_hash!={hashes[3]}"
    assert hashes[3] == hashes[4] != hashes[5]


@pytest.mark.parametrize("arguments", [("eval", "3"), ("export", "3", "weights")])
def test_a_run_of_an_earlier_revision_is_neither_evaluated_nor_exported(after, called, arguments):
    """Its base model and its sampler are others now."""
    code, _, err = called(*arguments)
    assert code == 2
    assert err.startswith("advsweep: run 3: expected the run")
    assert "a component that this version of advsweep revised" in err
