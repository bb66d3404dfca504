"""Leases: one process at a time trains a run."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from advsweep.errors import LeaseLostError, NotFoundError
from advsweep.store import Owner, Status, open_store
from advsweep.store.owners import process_started


@pytest.fixture
def run_id(store, new_run) -> int:
    return store.runs.add([new_run()])[0]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this host that lives until the test ends it."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def _owner_of(process: subprocess.Popen[bytes]) -> Owner:
    started = process_started(process.pid)
    assert started is not None
    return Owner(Owner.current().host, process.pid, started)


def _status(store, run_id: int) -> Status:
    [run] = store.runs.select(ids=[run_id])
    return run.status


def test_an_owner_without_a_start_time_can_claim(store, run_id):
    assert store.leases.claim(run_id, Owner("elsewhere", 1, None))
    store.leases.heartbeat(run_id, step=3)
    store.metrics.record(run_id, [("reward/mean", 3, 0.5)])
    store.leases.finish(run_id, Status.DONE)
    assert _status(store, run_id) is Status.DONE


def test_a_run_of_a_dead_process_can_be_claimed_at_once(store, run_id, sleeper):
    store.leases.claim(run_id, _owner_of(sleeper))
    sleeper.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    # A zombie: its pid still exists.
    assert Path(f"/proc/{sleeper.pid}").exists() or not Path("/proc/self").exists()
    assert _status(store, run_id) is Status.LOST
    assert store.leases.claim(run_id, Owner.current())


def test_a_later_process_with_the_same_pid_is_another(store, run_id, sleeper):
    earlier = _owner_of(sleeper)
    store.leases.claim(run_id, Owner(earlier.host, earlier.pid, earlier.started - 1))
    assert store.leases.claim(run_id, Owner.current())


def test_a_heartbeat_in_the_future_does_not_hold_a_lease_of_another_host(store, clock, run_id):
    store.leases.claim(run_id, Owner("elsewhere", 1, 0.0))
    clock.forward(-59)
    assert not store.leases.claim(run_id, Owner.current())
    clock.forward(-3600)
    assert _status(store, run_id) is Status.LOST
    assert store.leases.claim(run_id, Owner.current())


def test_a_living_process_keeps_its_lease_when_the_clock_is_set_back(store, clock, run_id, sleeper):
    store.leases.claim(run_id, _owner_of(sleeper))
    clock.forward(-3600)
    assert not store.leases.claim(run_id, Owner.current())
    store.leases.heartbeat(run_id)  # by the new clock
    clock.forward(61)
    assert store.leases.claim(run_id, Owner.current())


def test_no_write_succeeds_after_the_lease_is_lost(store, clock, run_id, tmp_path):
    checkpoint = tmp_path / "step-000005"
    with open_store(store.url, clock=clock) as late:
        late.leases.claim(run_id, Owner("elsewhere", 1, 0.0))
        late.metrics.record(run_id, [("reward/mean", 1, 0.5)])
        clock.forward(61)
        store.leases.claim(run_id, Owner.current())
        store.metrics.record(run_id, [("reward/mean", 2, 0.5)])
        store.checkpoints.add(run_id, 2, checkpoint)
        for write in (
            lambda: late.metrics.record(run_id, [("reward/mean", 2, 0.9)]),
            lambda: late.metrics.truncate(run_id, after_step=0),
            lambda: late.metrics.set_summaries(run_id, {"time/run": 1.0}),
            lambda: late.runs.set_environment(run_id, {"host": "elsewhere"}),
            lambda: late.checkpoints.add(run_id, 1, checkpoint),
            lambda: late.checkpoints.remove(run_id, checkpoint),
        ):
            with pytest.raises(LeaseLostError, match=f"run {run_id} was taken over"):
                write()
    assert store.metrics.points(run_id) == [("reward/mean", 1, 0.5), ("reward/mean", 2, 0.5)]
    assert [c.step for c in store.checkpoints.select(run_id)] == [2]
    assert store.metrics.summaries([run_id]) == {}


def test_a_process_of_another_host_holds_its_lease_until_its_heartbeat_is_old(store, clock, run_id):
    other = Owner("elsewhere", 1, 0.0)
    assert store.leases.claim(run_id, other)
    clock.forward(59)
    assert not store.leases.claim(run_id, Owner.current())
    store.leases.heartbeat(run_id)
    clock.forward(59)
    assert not store.leases.claim(run_id, Owner.current())
    clock.forward(2)
    assert _status(store, run_id) is Status.LOST
    assert store.leases.claim(run_id, Owner.current())


@pytest.mark.parametrize("end", [Status.FAILED, Status.INTERRUPTED])
def test_an_unfinished_run_can_be_claimed_again(store, clock, run_id, end):
    store.leases.claim(run_id, Owner.current())
    began = clock.now
    clock.forward(5)
    store.leases.finish(run_id, end, error="boom", traceback="Traceback ...")
    [run] = store.runs.select()
    assert (run.status, run.error, run.traceback) == (end, "boom", "Traceback ...")
    assert run.finished == clock.now
    assert store.leases.claim(run_id, Owner.current())
    [run] = store.runs.select()
    assert (run.status, run.error, run.traceback, run.finished) == (Status.RUNNING, *[None] * 3)
    assert run.started == began


def test_a_heartbeat_records_step_and_stage(store, clock, run_id):
    store.leases.claim(run_id, Owner.current())
    clock.forward(10)
    store.leases.heartbeat(run_id, step=7, stage="training")
    clock.forward(10)
    store.leases.heartbeat(run_id)
    [run] = store.runs.select()
    assert (run.step, run.stage, run.heartbeat) == (7, "training", clock.now)


def test_a_stop_request_lasts_until_it_is_withdrawn(store, run_id):
    assert not store.leases.stops_requested([run_id])
    store.leases.request_stop(run_id)
    # A request before the claim is not lost.
    store.leases.claim(run_id, Owner.current())
    assert store.leases.stops_requested([run_id])
    store.leases.finish(run_id, Status.INTERRUPTED)
    assert store.leases.stops_requested([run_id])
    store.leases.withdraw_stops([run_id])
    assert not store.leases.stops_requested([run_id])


def test_without_proc_pids_identify_processes(sleeper, monkeypatch):
    monkeypatch.setattr("advsweep.store.owners._HAS_PROC", False)
    assert Owner.current().started == 0.0
    owner = _owner_of(sleeper)
    assert not owner.has_ended()
    sleeper.kill()
    sleeper.wait()
    assert owner.has_ended()


def _claim_all(store, sweep: str | None = None) -> list[int]:
    """Claims runs until none is available; returns their ids."""
    taken = []
    while (run_id := store.leases.claim_next(Owner.current(), sweep)) is not None:
        taken.append(run_id)
    return taken


def test_claim_next_takes_the_first_available_run_of_the_plan(store, new_run, sleeper):
    a, b, c, d = (new_run(seed=i) for i in range(4))
    store.sweeps.add("demo", {})
    others = store.runs.add([d])
    ids = store.runs.add([c, a, b], "demo")
    store.leases.claim(ids[1], _owner_of(sleeper))
    assert _claim_all(store, "demo") == [ids[0], ids[2]]
    assert {run.status for run in store.runs.select(ids=ids)} == {Status.RUNNING}
    assert _claim_all(store) == others
    with pytest.raises(NotFoundError, match="no sweep 'dmo'"):
        store.leases.claim_next(Owner.current(), "dmo")


def test_claim_next_resumes_interrupted_but_not_failed_runs(store, new_run):
    ids = store.runs.add([new_run(seed=i) for i in range(4)])
    for run_id, end in zip(ids, (Status.INTERRUPTED, Status.FAILED, Status.DONE), strict=False):
        store.leases.claim(run_id, Owner.current())
        store.leases.finish(run_id, end)
    assert _claim_all(store) == [ids[0], ids[3]]


def test_claim_next_skips_runs_with_a_stop_request(store, new_run):
    ids = store.runs.add([new_run(seed=i) for i in range(2)])
    store.leases.claim(ids[0], Owner.current())
    for run_id in ids:
        store.leases.request_stop(run_id)
    store.leases.finish(ids[0], Status.INTERRUPTED)
    assert _claim_all(store) == []
    assert store.leases.claim(ids[0], Owner.current())


def test_claim_next_takes_lost_runs(store, clock, new_run, sleeper):
    ids = store.runs.add([new_run(seed=i) for i in range(3)])
    store.leases.claim(ids[0], Owner("elsewhere", 1, 0.0))
    store.leases.claim(ids[1], _owner_of(sleeper))
    store.leases.claim(ids[2], _owner_of(sleeper))
    store.leases.finish(ids[2], Status.DONE)
    assert _claim_all(store) == []
    sleeper.kill()
    sleeper.wait()
    assert _claim_all(store) == [ids[1]]
    clock.forward(61)
    store.leases.heartbeat(ids[1])
    assert _claim_all(store) == [ids[0]]


def test_claim_next_takes_runs_of_other_hosts_with_a_heartbeat_in_the_future(
    store, clock, new_run, sleeper
):
    ids = store.runs.add([new_run(seed=i) for i in range(2)])
    store.leases.claim(ids[0], _owner_of(sleeper))
    store.leases.claim(ids[1], Owner("elsewhere", 1, 0.0))
    clock.forward(-59)
    assert _claim_all(store) == []
    clock.forward(-3600)
    # The process of this host lives and renews its lease by the new clock soon.
    assert _claim_all(store) == [ids[1]]
    assert [run.status for run in store.runs.select(ids=ids)] == [Status.RUNNING] * 2


def test_renew_returns_the_runs_that_were_taken_over(store, clock, new_run):
    ids = store.runs.add([new_run(seed=seed) for seed in range(4)])
    me = Owner.current()
    for run_id in ids:
        store.leases.claim(run_id, me)
    store.leases.finish(ids[0], Status.DONE)
    with open_store(store.url) as other:
        other.leases.claim(ids[1], Owner("elsewhere", 1, None), holder=me)
    before = {run.id: run.heartbeat for run in store.runs.select()}
    clock.now += timedelta(seconds=1)
    assert store.leases.renew(ids) == [ids[1]]
    after = {run.id: run.heartbeat for run in store.runs.select()}
    assert [after[i] == before[i] for i in ids] == [True, True, False, False]


def test_a_run_that_is_given_back_is_as_open_as_before(store, run_id):
    store.leases.claim(run_id, Owner.current())
    store.leases.release(run_id, error="nothing here can train it")
    [run] = store.runs.select(ids=[run_id])
    assert (run.status, run.started, run.finished) == (Status.PENDING, None, None)
    assert run.error == "nothing here can train it"
    store.leases.claim(run_id, Owner.current())
    assert store.runs.select(ids=[run_id])[0].error is None
    store.leases.heartbeat(run_id, step=3)
    store.leases.release(run_id)
    [run] = store.runs.select(ids=[run_id])
    assert (run.status, run.step) == (Status.INTERRUPTED, 3)
    assert run.started is not None


def test_a_run_that_was_taken_over_is_not_given_back(store, clock, run_id):
    with open_store(store.url, clock=clock) as late:
        late.leases.claim(run_id, Owner("elsewhere", 1, 0.0))
        clock.forward(61)
        assert store.leases.claim(run_id, Owner.current())
        with pytest.raises(LeaseLostError):
            late.leases.release(run_id)
    assert _status(store, run_id) is Status.RUNNING
