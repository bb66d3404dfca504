"""What early stopping and searches keep: rules, pruned runs, trials."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from advsweep.errors import NotFoundError
from advsweep.store import Owner, Status

RULE = {"name": "acr", "first": 50, "threshold": 0.5}


def _pruned(store, new_run, seed: int = 0) -> int:
    [run_id] = store.runs.add([new_run(seed)])
    store.runs.set_stopping([run_id], RULE)
    assert store.leases.claim(run_id, Owner.current())
    store.leases.finish(run_id, Status.PRUNED, error="too many collapsed groups")
    return run_id


def test_a_run_keeps_its_rule_and_why_it_was_pruned(store, new_run):
    run_id = _pruned(store, new_run)
    [run] = store.runs.select(status=Status.PRUNED)
    assert (run.id, run.stopping, run.error) == (run_id, RULE, "too many collapsed groups")
    assert store.runs.count(status=Status.PRUNED) == 1


def test_a_pruned_run_is_not_to_be_had_but_by_another_rule(store, new_run):
    run_id = _pruned(store, new_run)
    store.runs.set_stopping([run_id], dict(RULE))
    assert not store.leases.claim(run_id, Owner.current())
    store.runs.set_stopping([run_id], {**RULE, "threshold": 0.9})
    assert [run.status for run in store.runs.select()] == [Status.INTERRUPTED]
    assert store.leases.claim(run_id, Owner.current())


def test_no_rule_frees_a_pruned_run_and_leaves_others_as_they_are(store, new_run):
    pruned = _pruned(store, new_run)
    [pending] = store.runs.add([new_run(1)])
    store.runs.set_stopping([pruned, pending], None)
    assert [r.status for r in store.runs.select(ids=[pruned, pending])] == [
        Status.INTERRUPTED,
        Status.PENDING,
    ]
    assert [r.stopping for r in store.runs.select()] == [None, None]


def test_trials_are_counted_in_each_sweep(store):
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


def test_no_two_trials_have_a_number(store):
    store.sweeps.add("a", {})
    with ThreadPoolExecutor(4) as threads:
        added = list(threads.map(lambda i: store.trials.add("a", i % 5, {"x": i}, "h"), range(20)))
    assert added.count(True) == 5
    first = [i for i, was_added in enumerate(added) if was_added]
    assert {(t.number, t.params["x"]) for t in store.trials.select("a")} == {
        (i % 5, i) for i in first
    }
