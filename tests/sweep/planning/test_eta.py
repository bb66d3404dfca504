"""Estimates: where a plan's runs stand, and how long the rest should take."""

from __future__ import annotations

import pytest

from advsweep.store import Owner, Status
from advsweep.sweep.planning.eta import EARLIER, estimate
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.worker.environment import new_run


def record(store, plan):
    """The plan's runs, in the store and not begun."""
    return store.runs.add([new_run(p.run, p.config) for p in plan.runs])


def finish(store, run_id, step, status, seconds):
    store.leases.claim(run_id, Owner.current())
    store.leases.heartbeat(run_id, step=step)
    store.metrics.set_summaries(run_id, {"time/run": seconds})
    store.leases.finish(run_id, status)


def test_without_a_store_all_is_missing_and_nothing_tells_the_time(plan):
    left = estimate(plan("seed=0,1"), None, slots=2)
    assert (left.states, left.steps, left.seconds) == ({"missing": 2}, 40, None)
    assert (left.runs_without_estimate, left.sources, left.gpu_hours) == (2, [], None)


def test_time_goes_by_earlier_runs_of_the_same_shape(plan, store):
    [first] = record(store, plan("seed=0"))
    finish(store, first, 20, Status.DONE, 10.0)
    left = estimate(plan("group_size=8,4", "seed=0,1,2"), store, slots=2)
    # The one before took half a second per step: 10 s for each of two, side by side.
    assert (left.states, left.steps) == ({"done": 1, "missing": 5}, 100)
    assert [run["seconds_left"] for run in left.runs] == [0, 10, 10, None, None, None]
    assert (left.seconds, left.sources, left.runs_without_estimate) == (10.0, [EARLIER], 3)


def test_each_state_of_the_store_is_told(plan, store):
    ids = record(store, plan("seed=0,1,2,3"))
    for run_id, status in zip(ids, (Status.DONE, Status.FAILED, Status.INTERRUPTED), strict=False):
        finish(store, run_id, 20 if status is Status.DONE else 15, status, 10.0)
    store.leases.claim(ids[3], Owner("here", 1, None))
    store.leases.heartbeat(ids[3], step=8)
    left = estimate(plan("seed=0,1,2,3,4"), store, slots=1)
    assert [(r["id"], r["status"], r["step"], r["steps_left"]) for r in left.runs] == [
        (ids[0], "done", 20, 0),
        (ids[1], "failed", 15, 5),
        (ids[2], "interrupted", 15, 5),
        (ids[3], "running", 8, 12),
        (None, "missing", 0, 20),
    ]
    forced = estimate(plan("seed=0"), store, slots=1, force=True)
    assert (forced.states, forced.steps, forced.seconds) == ({"done": 1}, 20, pytest.approx(10.0))


def test_a_training_that_is_evaluated_in_two_ways_is_trained_once(plan, store):
    both = plan("evaluation.n=8,16")
    assert [run["steps_left"] for run in estimate(both, store, slots=1).runs] == [20, 0]
    execute(plan("evaluation.n=8"), store)
    left = estimate(both, store, slots=1)
    assert ([run["status"] for run in left.runs], left.steps) == (["done", "unevaluated"], 0)
    execute(both, store)
    assert estimate(both, store, slots=1).states == {"done": 2}
