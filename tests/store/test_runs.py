"""Runs and sweeps in the store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from advsweep.errors import ConfigError, NotFoundError, StoreError
from advsweep.store import Owner, Status, open_store, parse_status


def test_a_run_comes_back_as_it_was_planned(store, clock, new_run):
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


def test_times_of_other_zones_come_back_in_utc(tmp_path, new_run):
    noon_in_tokyo = datetime(2026, 3, 1, 12, 0, tzinfo=timezone(timedelta(hours=9)))
    with open_store(str(tmp_path / "a.db"), clock=lambda: noon_in_tokyo) as store:
        store.runs.add([new_run()])
        [run] = store.runs.select()
    assert run.created.isoformat() == "2026-03-01T03:00:00+00:00"


def test_adding_runs_again_adds_nothing_and_gives_their_ids_in_order(store, new_run):
    runs = [new_run(seed=i) for i in range(5)]
    ids = store.runs.add(runs)
    assert len(set(ids)) == 5
    again, new, *rest = store.runs.add([runs[4], new_run(seed=9), runs[0], runs[4]])
    assert [again, *rest] == [ids[4], ids[0], ids[4]]
    assert new not in ids
    assert len(store.runs.select()) == 6
    assert store.runs.add([]) == []


def test_adding_a_run_that_is_done_leaves_it_done(store, new_run):
    [run_id] = store.runs.add([new_run()])
    store.leases.claim(run_id, Owner.current())
    store.leases.finish(run_id, Status.DONE)
    assert store.runs.add([new_run()]) == [run_id]
    assert store.runs.select()[0].status is Status.DONE


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


def test_sweeps_share_runs_and_keep_the_order_of_their_plans(store, new_run):
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


def test_a_sweep_of_the_same_name_is_given_the_new_spec(store, clock):
    sweep_id = store.sweeps.add("demo", {"seeds": 3})
    created = clock.now
    clock.forward(60)
    assert store.sweeps.add("demo", {"seeds": 5}) == sweep_id
    [sweep] = store.sweeps.select()
    assert (sweep.spec, sweep.created) == ({"seeds": 5}, created)


def test_sweeps_tell_the_states_of_their_runs(store, clock, new_run):
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


def test_runs_of_a_sweep_that_is_not_there(store, new_run):
    store.sweeps.add("demo", {})
    for asked in (
        lambda: store.runs.select(sweep="dmo"),
        lambda: store.runs.count(sweep="dmo"),
        lambda: store.runs.add([new_run()], "dmo"),
    ):
        with pytest.raises(NotFoundError, match=r"no sweep 'dmo' in .*; did you mean 'demo'\?"):
            asked()
    assert store.runs.select() == []


def test_choosing_runs(store, new_run):
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


def test_running_and_lost_are_told_apart_when_runs_are_read(store, clock, new_run):
    ids = store.runs.add([new_run(seed=i) for i in range(4)])
    store.leases.claim(ids[0], Owner.current())
    clock.forward(50)
    store.leases.claim(ids[1], Owner.current())
    clock.forward(20)  # the first lease is 70 s old, the second 20 s
    assert [run.id for run in store.runs.select(status=Status.LOST)] == [1]
    assert [run.id for run in store.runs.select(status=Status.RUNNING, limit=1)] == [2]
    assert store.runs.count(status=Status.LOST) == store.runs.count(status=Status.RUNNING) == 1


def test_another_attempt_takes_the_place_of_the_first(store, new_run):
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
    for key in ("7", "abc", "ffffffffff", "nonsense"):
        with pytest.raises(NotFoundError, match=f"no run '{key}' .*known: 1, 2, 3"):
            store.runs.find(key)
    with pytest.raises(NotFoundError, match="'demo' is a sweep: `advsweep ls demo`"):
        store.runs.find("demo")


def test_the_start_of_several_identities_is_not_enough(store, new_run):
    store.runs.add([replace(new_run(), identity="abcd" + str(i) * 60) for i in (1, 2)])
    with pytest.raises(NotFoundError, match="several runs \\(abcd111111, abcd222222\\)"):
        store.runs.find("abcd")
    assert store.runs.find("abcd2").id == 2


def test_environments_that_are_alike_come_once(store, new_run):
    ids = store.runs.add([new_run(seed) for seed in range(4)])
    for run_id, cores in zip(ids, (2, 4, 2), strict=False):
        store.runs.set_environment(run_id, {"cores": cores, "git": None})
    alike = [{"cores": 2, "git": None}, {"cores": 4, "git": None}]
    assert store.runs.distinct_environments(ids) == alike
    assert store.runs.distinct_environments(ids[1:2]) == alike[1:]
    assert store.runs.distinct_environments([]) == []


def test_environments(store, new_run):
    ids = store.runs.add([new_run(seed=i) for i in range(2)])
    store.runs.set_environment(ids[0], {"git": {"commit": "abc", "dirty": False}, "cores": 2})
    assert store.runs.environment(ids[0]) == {"git": {"commit": "abc", "dirty": False}, "cores": 2}
    assert store.runs.environment(ids[1]) == {}
    assert list(store.runs.environments(ids)) == [ids[0]]
    assert store.runs.distinct_environments(ids) == [store.runs.environment(ids[0])]
    with pytest.raises(NotFoundError):
        store.runs.set_environment(99, {})


def test_a_status_by_its_name():
    assert parse_status(None) is None
    assert parse_status("failed") is Status.FAILED
    with pytest.raises(ConfigError, match="'faild'; did you mean 'failed'"):
        parse_status("faild")


@pytest.mark.parametrize("estimator", ["My-Estimator", "../grpo", ""])
def test_a_run_that_could_not_be_read_again_is_not_added(store, new_run, estimator):
    runs = [new_run(seed=0), replace(new_run(seed=1), estimator=estimator)]
    with pytest.raises(StoreError, match="estimator: expected lower-case letters, digits and"):
        store.runs.add(runs)
    assert store.runs.select() == []
