"""Queries about many runs, and the removal of runs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from sqlalchemy import func, select

from advsweep.errors import NotFoundError, StoreError
from advsweep.store import Owner, Status
from advsweep.store.records import StepCounts
from advsweep.store.tables import METADATA
from tests.store.conftest import evaluation_of


@pytest.fixture
def ids(store, new_run):
    """Runs 1 to 5 of the sweep `five`, of which 1 is running, 2 lost, 3 failed, 4 done; and 6."""
    store.sweeps.add("five", {})
    added = store.runs.add([new_run(seed) for seed in range(5)], "five")
    added += store.runs.add([new_run(5)])
    for run_id in added[:4]:
        owner = Owner.current()
        store.leases.claim(run_id, replace(owner, started=-1.0) if run_id == added[1] else owner)
    store.leases.finish(added[2], Status.FAILED, error="no reason")
    store.leases.finish(added[3], Status.DONE)
    return added


def test_count_by_status_has_every_status(store, ids):
    assert store.runs.count_by_status("five") == {
        Status.PENDING: 1,
        Status.RUNNING: 1,
        Status.DONE: 1,
        Status.FAILED: 1,
        Status.INTERRUPTED: 0,
        Status.PRUNED: 0,
        Status.LOST: 1,
    }
    assert store.runs.count_by_status()[Status.PENDING] == 2
    with pytest.raises(NotFoundError, match="no sweep 'fife'"):
        store.runs.count_by_status("fife")


def test_steps_that_a_retry_keeps_are_done(store, ids):
    store.leases.heartbeat(ids[0], step=3, stage="training")
    # Of 100 steps each, one run is done, one has done 3, and a failed one keeps none. Left are 97
    # and 100 each of the pending and the lost run; nothing of the failed one.
    assert store.runs.count_steps("five") == StepCounts(done=103, planned=500)
    assert store.runs.count_steps() == StepCounts(done=103, planned=600)


def test_a_checkpoint_of_a_failed_run_is_kept(store, new_run, tmp_path):
    [run_id] = store.runs.add([new_run(0)])
    store.leases.claim(run_id, Owner.current())
    for step in (20, 40):
        store.checkpoints.add(run_id, step, tmp_path / f"step-{step}")
    store.leases.heartbeat(run_id, step=47, stage="training")
    store.leases.finish(run_id, Status.FAILED, error="no reason")
    assert store.runs.count_steps() == StepCounts(done=40, planned=100)


def test_last_finished_runs_come_first(store, ids, clock):
    for run_id in (ids[5], ids[4]):
        clock.forward(1)
        store.leases.claim(run_id, Owner.current())
        store.leases.finish(run_id, Status.FAILED)
    assert store.runs.last_finished(Status.FAILED, limit=9) == [ids[4], ids[5], ids[2]]
    assert store.runs.last_finished(Status.FAILED, limit=2) == [ids[4], ids[5]]
    assert store.runs.last_finished(Status.FAILED, "five", limit=9) == [ids[4], ids[2]]


def test_means_of_replicates_are_of_the_config_and_a_shared_sweep(store, new_run):
    store.sweeps.add("two", {})
    ids = store.runs.add([new_run(0), new_run(1), new_run(2), new_run(3, config={"x": 1})], "two")
    ids += store.runs.add([new_run(4)])
    values = [9.0, 1.0, math.nan, math.inf, 3.0, 9.0]
    for run_id, own in [(ids[0], values), (ids[1], values[:4]), (ids[3], values), (ids[4], [7.0])]:
        points = [("x", step, value) for step, value in enumerate(own, 1)]
        store.leases.claim(run_id, Owner.current(), holder=Owner.current())
        store.metrics.record(run_id, points, step=len(own))
    means = store.metrics.replicate_means
    # Seed 1 has done 4 steps, seed 2 none.
    assert means(ids[2], "x", 2, 5) == [2.0]
    assert means(ids[2], "x", 1, 2) == [5.0, 5.0]
    assert means(ids[2], "x", 3, 4) == []
    assert means(ids[2], "y", 1, 4) == []
    assert means(ids[3], "x", 1, 1) == [9.0]
    assert means(ids[4], "x", 1, 1) == [7.0]


@pytest.fixture
def pair(store, new_run, tmp_path):
    """Two finished runs of the sweep `pair` that share the evaluation of their base model."""
    store.sweeps.add("pair", {})
    ids = store.runs.add([new_run(0), new_run(1)], "pair")
    store.evaluations.add(evaluation_of("base", ids[0], 0))
    store.evaluations.link(ids[1], "base", 0)
    for run_id in ids:
        store.leases.claim(run_id, Owner.current())
        store.metrics.record(run_id, [("reward/mean", 1, 0.5)])
        store.metrics.set_summaries(run_id, {"time/run": 1.0})
        store.checkpoints.add(run_id, 1, tmp_path / str(run_id))
        store.evaluations.add(evaluation_of(f"own {run_id}", run_id, 1, problems=[f"of {run_id}"]))
        store.leases.finish(run_id, Status.DONE)
    return ids


def rows(store):
    """How many rows each table has."""
    with store.database.read() as connection:
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in METADATA.sorted_tables
        }


def test_remove_of_models_keeps_evaluations_of_runs(store, pair):
    for name, problem in (("m1", "a"), ("m2", "of a model")):
        store.evaluations.add(
            evaluation_of(name, None, 0, subject=f"model:{name}", problems=[problem])
        )
    before = rows(store)
    store.evaluations.remove_of_models(["m2", "base"])
    assert [e.identity for e in store.evaluations.of_models()] == ["m1"]
    # A run's evaluation is none of a model, though it is named.
    after = rows(store)
    changed = {name: n - after[name] for name, n in before.items() if after[name] != n}
    assert changed == {"evaluations": 1, "problem_sets": 1}


def test_remove_deletes_what_belongs_to_the_run_alone(store, pair):
    gone, left = pair
    before = rows(store)
    store.runs.remove([gone])
    assert [run.id for run in store.runs.select(sweep="pair")] == [left]
    assert [e.identity for e in store.evaluations.select([left])] == ["base", f"own {left}"]
    assert store.metrics.points(left) == [("reward/mean", 1, 0.5)]
    after = rows(store)
    # Names of metrics stay; of two links to evaluations and one of its own each, one run's go.
    halved = {"runs", "sweep_runs", "points", "summaries", "checkpoints", "run_evaluations"}
    assert {name for name, n in before.items() if n and after[name] * 2 == n} == halved
    assert (before["evaluations"], after["evaluations"]) == (3, 2)
    assert (before["problem_sets"], after["problem_sets"]) == (3, 2)


def test_removing_a_sweep_keeps_its_runs(store, pair):
    store.sweeps.remove("pair")
    assert [run.sweeps for run in store.runs.select()] == [(), ()]
    with pytest.raises(NotFoundError, match="no sweep 'pair'"):
        store.sweeps.remove("pair")


def test_nothing_is_removed_if_one_of_the_runs_is_running(store, pair, new_run):
    [running] = store.runs.add([new_run(2)])
    store.leases.claim(running, Owner.current())
    with pytest.raises(StoreError, match=f"run {running} is being trained by process"):
        store.runs.remove([*pair, running])
    assert len(store.runs.select()) == 3
    with pytest.raises(NotFoundError, match="no run 77"):
        store.runs.remove([77])
