"""Sweeps and trials in the store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from advsweep.errors import NotFoundError
from advsweep.store import Owner, Status


def test_sweeps_share_runs_in_the_order_of_their_plans(store, new_run):
    a, b, c = (new_run(seed=i) for i in range(3))
    store.sweeps.add("first", {"runs": 2})
    store.sweeps.add("second", {"runs": 3})
    store.runs.add([b, a], "first")
    store.runs.add([c, a, b], "second")
    store.runs.add([a, c], "first")

    def seeds(sweep, **how):
        return [run.seed for run in store.runs.select(sweep=sweep, **how)]

    assert seeds("first", newest_first=False) == [1, 0, 2]
    assert seeds("second", newest_first=False) == [2, 0, 1]
    assert seeds("second") == [2, 0, 1]  # ids 3, 2, 1
    assert store.runs.select(ids=[1])[0].sweeps == ("first", "second")


def test_sweeps_count_their_runs_by_status(store, clock, new_run):
    store.sweeps.add("empty", {})
    store.sweeps.add("demo", {})
    ids = store.runs.add([new_run(seed=i) for i in range(5)], "demo")
    for run_id in ids[:3]:
        store.leases.claim(run_id, Owner.current())
    store.leases.finish(ids[0], Status.DONE)
    store.leases.finish(ids[1], Status.FAILED)
    assert [(s.name, s.runs) for s in store.sweeps.select()] == [
        ("empty", {}),
        (
            "demo",
            {Status.PENDING: 2, Status.RUNNING: 1, Status.DONE: 1, Status.FAILED: 1},
        ),
    ]
    clock.forward(61)
    assert store.sweeps.select()[1].runs[Status.LOST] == 1


def test_trials_are_numbered_within_a_sweep(store):
    store.sweeps.add("a", {})
    store.sweeps.add("b", {})
    added = [("a", 0), ("a", 1), ("b", 0)]
    assert all(store.trials.add(s, i, {"x": i}, f"h{i}") for s, i in added)
    assert [(t.number, t.params, t.config_hash) for t in store.trials.select("a")] == [
        (0, {"x": 0}, "h0"),
        (1, {"x": 1}, "h1"),
    ]
    with pytest.raises(NotFoundError, match="no sweep 'c'"):
        store.trials.add("c", 0, {}, "h")


def test_trial_numbers_are_unique(store):
    store.sweeps.add("a", {})
    with ThreadPoolExecutor(4) as threads:
        added = list(threads.map(lambda i: store.trials.add("a", i % 5, {"x": i}, "h"), range(20)))
    assert added.count(True) == 5
    first = [i for i, was_added in enumerate(added) if was_added]
    assert {(t.number, t.params["x"]) for t in store.trials.select("a")} == {
        (i % 5, i) for i in first
    }
