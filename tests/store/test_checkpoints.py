"""Checkpoints and analyses in the store."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from advsweep.store import NewAnalysis, open_store
from advsweep.store.merge import merge

ANALYSIS = NewAnalysis(
    kind="weights",
    step=50,
    settings={"delta": 0.01},
    result={"matrices": [{"name": "a", "r1": 0.5, "s1_over_s2": math.inf}], "share": math.nan},
    directions=np.array([0.6, 0.8], dtype=np.float32),
)


@pytest.fixture
def ids(store, new_run) -> list[int]:
    return store.runs.add([new_run(seed=seed) for seed in range(2)])


@pytest.fixture
def run_id(store, new_run) -> int:
    [found] = store.runs.add([new_run()])
    return found


def test_an_analysis_stores_nan_as_null(store, clock, run_id):
    store.analyses.add(run_id, ANALYSIS)
    [found] = store.analyses.select([run_id], "weights")
    assert (found.run_id, found.kind, found.step) == (run_id, "weights", 50)
    assert (found.settings, found.created) == ({"delta": 0.01}, clock.now)
    assert found.identity == ANALYSIS.identity
    assert found.result == {
        "matrices": [{"name": "a", "r1": 0.5, "s1_over_s2": None}],
        "share": None,
    }
    assert found.directions.tolist() == ANALYSIS.directions.tolist()


def test_analyses_are_sorted_by_step_and_filtered_by_kind(store, run_id):
    for step in (100, 20, 50):
        store.analyses.add(run_id, dataclasses.replace(ANALYSIS, step=step))
    store.analyses.add(run_id, dataclasses.replace(ANALYSIS, settings={"delta": 0.1}))
    store.analyses.add(run_id, dataclasses.replace(ANALYSIS, kind="hidden_states"))
    assert [a.step for a in store.analyses.select([run_id], "weights")] == [20, 50, 50, 100]
    assert [a.step for a in store.analyses.select([run_id], "hidden_states")] == [50]
    assert len(store.analyses.select([run_id])) == 5


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_merging_adds_missing_analyses(store, run_id, new_run, clock, tmp_path):
    store.analyses.add(run_id, ANALYSIS)
    with open_store(str(tmp_path / "other.db"), clock=clock) as other:
        # One more run, so that ids differ; the second is the same as that of `store`.
        _, twin = other.runs.add([new_run(seed=1), new_run()])
        other.analyses.add(twin, dataclasses.replace(ANALYSIS, step=100))
        merge(store, other, dry_run=True)
        assert len(store.analyses.select([run_id], "weights")) == 1
        merge(store, other)
        merge(store, other)
    assert [a.step for a in store.analyses.select([run_id], "weights")] == [50, 100]


def test_checkpoints(store, clock, ids):
    [run] = store.runs.select(ids=[ids[0]])
    inside, outside = run.directory / "checkpoints" / "step-000050", Path("/elsewhere/step-000100")
    store.checkpoints.add(ids[0], 100, outside)
    store.checkpoints.add(ids[0], 50, inside)
    store.checkpoints.add(ids[0], 50, inside)
    found = store.checkpoints.select(ids[0])
    assert [(c.step, c.path, c.created) for c in found] == [
        (50, inside, clock.now),
        (100, outside, clock.now),
    ]
    store.checkpoints.remove(ids[0], inside)
    assert [c.step for c in store.checkpoints.select(ids[0])] == [100]
    assert store.checkpoints.select(ids[1]) == []


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_store_can_be_moved_together_with_its_runs(store, ids, tmp_path):
    [run] = store.runs.select(ids=[ids[0]])
    store.checkpoints.add(ids[0], 50, run.directory / "checkpoints" / "step-000050")
    store.close()
    moved = tmp_path / "moved"
    moved.mkdir()
    (tmp_path / "advsweep.db").rename(moved / "advsweep.db")
    with open_store(str(moved / "advsweep.db"), create=False) as there:
        [checkpoint] = there.checkpoints.select(ids[0])
        [run] = there.runs.select(ids=[ids[0]])
    assert checkpoint.path == run.directory / "checkpoints" / "step-000050"
    assert run.directory.is_relative_to(moved)
