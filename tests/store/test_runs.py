"""Runs in the store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

import pytest

from advsweep.errors import NotFoundError, StoreError
from advsweep.store import Owner, Status

RULE = {"name": "acr", "first": 50, "threshold": 0.5}


def test_a_run_is_read_as_it_was_planned(store, clock, new_run):
    planned = new_run(seed=3, group_size=16, nested={"list": [1, 2.5, None, "inf"], "on": True})
    [run_id] = store.runs.add([planned])
    [run] = store.runs.select()
    assert (run.id, run.attempt, run.status, run.step, run.sweeps) == (
        *(run_id, 1, Status.PENDING, 0),
        (),
    )
    for key in ("identity", "config_hash", "seed", "config", "steps", "estimator", "backend"):
        assert getattr(run, key) == getattr(planned, key)
    assert run.created == clock.now
    assert run.created.tzinfo is UTC
    assert run.started is run.finished is run.heartbeat is run.host is run.error is None
    assert run.directory == store.runs_directory / f"grpo-seed3-{planned.identity[:12]}"


def test_adding_runs_again_returns_their_ids_in_order(store, new_run):
    runs = [new_run(seed=i) for i in range(5)]
    ids = store.runs.add(runs)
    assert len(set(ids)) == 5
    again, new, *rest = store.runs.add([runs[4], new_run(seed=9), runs[0], runs[4]])
    assert [again, *rest] == [ids[4], ids[0], ids[4]]
    assert new not in ids
    assert len(store.runs.select()) == 6
    assert store.runs.add([]) == []


@pytest.mark.parametrize("status", list(Status))
def test_a_run_takes_new_settings_until_it_is_done(store, clock, new_run, status):
    """Its identity is the same, so that they are such as cannot change its result."""
    first = new_run()
    [run_id] = store.runs.add([first])
    if status is not Status.PENDING:
        store.leases.claim(run_id, Owner.current())
    if status is Status.LOST:
        clock.forward(3600)
    elif status not in (Status.PENDING, Status.RUNNING):
        store.leases.finish(run_id, status)
    assert store.runs.select()[0].status is status
    given = replace(first, config={**first.config, "backend": {"checkpoint_every": 5}})
    assert store.runs.add([given]) == [run_id]
    kept = status in (Status.DONE, Status.RUNNING)
    assert store.runs.select()[0].config == (first if kept else given).config


def test_select_filters_runs(store, new_run):
    ids = store.runs.add([new_run(seed=i) for i in range(6)])
    store.leases.claim(ids[2], Owner.current())
    store.leases.finish(ids[2], Status.FAILED, error="boom")
    assert [run.id for run in store.runs.select()] == [6, 5, 4, 3, 2, 1]
    assert [run.id for run in store.runs.select(limit=2)] == [6, 5]
    assert [run.id for run in store.runs.select(limit=2, newest_first=False)] == [1, 2]
    assert [run.id for run in store.runs.select(ids=[4, 1, 6])] == [4, 1, 6]
    assert [run.id for run in store.runs.select(ids=[4, 3], status=Status.FAILED)] == [3]
    assert [run.id for run in store.runs.select(status=Status.FAILED)] == [3]
    assert store.runs.select(ids=[]) == []
    assert (store.runs.count(), store.runs.count(status=Status.PENDING)) == (6, 5)
    with pytest.raises(NotFoundError, match="no run 77"):
        store.runs.select(ids=[1, 77])


def test_a_new_attempt_replaces_the_first_in_its_sweeps(store, new_run):
    store.sweeps.add("demo", {})
    [first] = store.runs.add([new_run()], "demo")
    store.leases.claim(first, Owner.current())
    store.leases.finish(first, Status.DONE)
    second = store.runs.new_attempt(first)
    old, new = store.runs.select(ids=[first, second])
    assert (old.status, old.sweeps) == (Status.DONE, ())
    assert (new.status, new.sweeps, new.attempt) == (Status.PENDING, ("demo",), 2)
    assert (new.identity, new.config) == (old.identity, old.config)
    assert new.directory == old.directory.with_name(f"{old.directory.name}-2")
    assert store.runs.add([new_run()], "demo") == [second]
    assert store.runs.select(ids=[store.runs.new_attempt(second)])[0].attempt == 3
    with pytest.raises(NotFoundError, match="no run 99"):
        store.runs.new_attempt(99)


def test_finding_a_run(store, clock, new_run):
    runs = [new_run(seed=i) for i in range(3)]
    ids = store.runs.add(runs)
    assert store.runs.find("2").id == 2
    assert store.runs.find(runs[1].identity).id == 2
    assert store.runs.find(runs[1].identity[:6].upper()).id == 2
    assert store.runs.find("last").id == 3
    clock.forward(1)
    store.leases.claim(ids[0], Owner.current())
    assert store.runs.find("last").id == 1
    again = store.runs.new_attempt(ids[1])
    assert store.runs.find(runs[1].identity[:8]).id == again


def test_runs_that_cannot_be_found(store, new_run):
    with pytest.raises(NotFoundError, match=r"no runs in .* yet"):
        store.runs.find("last")
    store.sweeps.add("demo", {})
    store.runs.add([new_run(seed=i) for i in range(3)], "demo")
    for key in ("7", "abc", "ffffffffff", "nonsense", "\u00b2", "9" * 30):
        with pytest.raises(NotFoundError, match=f"no run '{key}' .*`advsweep ls` lists the runs"):
            store.runs.find(key)
    with pytest.raises(NotFoundError, match="'demo' is a sweep: `advsweep ls demo`"):
        store.runs.find("demo")


def test_an_ambiguous_identity_is_refused(store, new_run):
    store.runs.add([replace(new_run(), identity="abcd" + str(i) * 60) for i in (1, 2)])
    with pytest.raises(NotFoundError, match="several runs \\(abcd111111, abcd222222\\)"):
        store.runs.find("abcd")
    assert store.runs.find("abcd2").id == 2
    same = "abcd" + "3" * 20
    store.runs.add([replace(new_run(), identity=same + str(i) * 40) for i in (1, 2)])
    with pytest.raises(NotFoundError, match=f"\\({same}11, {same}22\\)"):
        store.runs.find(same)


def test_last_is_no_calibration_while_there_are_other_runs(store, clock, new_run):
    calibration = new_run().config | {"optimizer": {"calibrates": "grpo"}}
    runs = [replace(new_run(i), config=calibration) for i in range(1, 80)]
    assert store.runs.add(runs)[-1] == 79
    assert store.runs.find("last").id == 79
    clock.forward(-1)
    assert store.runs.add([new_run(0)]) == [80]
    assert store.runs.find("last").id == 80


def test_environments(store, new_run):
    ids = store.runs.add([new_run(seed=i) for i in range(2)])
    store.runs.set_environment(ids[0], {"git": {"commit": "abc", "dirty": False}, "cores": 2})
    assert store.runs.environment(ids[0]) == {"git": {"commit": "abc", "dirty": False}, "cores": 2}
    assert store.runs.environment(ids[1]) == {}
    assert list(store.runs.environments(ids)) == [ids[0]]
    with pytest.raises(NotFoundError):
        store.runs.set_environment(99, {})


@pytest.mark.parametrize("estimator", ["My-Estimator", "../grpo", ""])
def test_a_run_that_could_not_be_read_is_not_added(store, new_run, estimator):
    runs = [new_run(seed=0), replace(new_run(seed=1), estimator=estimator)]
    with pytest.raises(StoreError, match="estimator: expected lower-case letters, digits and"):
        store.runs.add(runs)
    assert store.runs.select() == []


def _pruned(store, new_run, seed: int = 0) -> int:
    [run_id] = store.runs.add([new_run(seed)])
    store.runs.set_stopping([run_id], RULE)
    assert store.leases.claim(run_id, Owner.current())
    store.leases.finish(run_id, Status.PRUNED, error="too many collapsed groups")
    return run_id


def test_only_another_rule_frees_a_pruned_run(store, new_run):
    run_id = _pruned(store, new_run)
    store.runs.set_stopping([run_id], dict(RULE))
    assert not store.leases.claim(run_id, Owner.current())
    store.runs.set_stopping([run_id], {**RULE, "threshold": 0.9})
    assert [run.status for run in store.runs.select()] == [Status.INTERRUPTED]
    assert store.leases.claim(run_id, Owner.current())
