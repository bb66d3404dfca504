"""One run's work: what reaches the store, in which order, and how it is interrupted."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import threading
import time

import pytest

from advsweep.backends import build
from advsweep.errors import (
    ConfigError,
    LeaseLostError,
    NoMemoryError,
    StoreError,
    TrainingError,
)
from advsweep.evaluation import run_evaluator
from advsweep.evaluation.run_evaluator import Evaluator
from advsweep.store import Failure, Owner, Status, open_store
from advsweep.sweep.events import (
    DONE,
    ELSEWHERE,
    FAILED,
    ORPHANED,
    OUT_OF_MEMORY,
    STOPPED,
)
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.stop_request import RunStopped, RunStopRequest, StopRequest
from advsweep.sweep.worker import main
from advsweep.sweep.worker.environment import new_run
from advsweep.sweep.worker.main import Heartbeat, work_on
from advsweep.sweep.worker.reporter import StoreReporter
from advsweep.sweep.worker.run import end_of
from tests.sweep.helpers import in_step, points_of, terminate, wait_until


def added(plan, store):
    [planned] = plan.runs
    return store.runs.select(ids=store.runs.add([new_run(planned.run, planned.config)]))[0]


@pytest.mark.parametrize("others", [0, 1])
def test_a_run_that_cannot_be_built_keeps_its_environment(plan, store, monkeypatch, others):
    ids = [added(plan(f"seed={seed}"), store).id for seed in range(1 + others)]

    def refuse(config):
        raise ConfigError("a part of it is missing")

    monkeypatch.setattr(build, "build_run", refuse)
    work_on(store, ids, (), None)
    assert [run.status for run in store.runs.select(ids=ids)] == [Status.FAILED] * len(ids)
    assert all("python" in store.runs.environment(run_id) for run_id in ids)


@pytest.mark.parametrize("step", [1, 2, 5, 10, 13, 20])
def test_an_interrupted_run_goes_on_to_the_same_metrics(
    step, plan, store, quick_undisturbed, monkeypatch
):
    record = added(plan(), store)
    in_step(monkeypatch, step, terminate)
    assert work_on(store, [record.id], (), None) == STOPPED
    [stopped] = store.runs.select()
    assert (stopped.status, stopped.error) == (Status.INTERRUPTED, "asked to stop")
    assert work_on(store, [record.id], (), None) == DONE
    assert points_of(store, record.id) == quick_undisturbed[0]
    assert [e.step for e in store.evaluations.select([record.id])] == [0, 10, 20]


def test_a_checkpoint_of_a_killed_process_is_recorded_when_the_run_resumes(
    plan, store, monkeypatch
):
    class Gone(BaseException):
        """Leaves as a process that is killed between writing a checkpoint and recording it."""

    record = added(plan("backend.checkpoint_every=5", "backend.keep_last=9"), store)
    with monkeypatch.context() as context:

        def vanish(self, step, path):
            context.setattr(StoreReporter, "flush", lambda self: None)
            raise Gone

        context.setattr(StoreReporter, "checkpoint", vanish)
        assert work_on(store, [record.id], (), None) == FAILED
    assert store.checkpoints.select(record.id) == []
    assert work_on(store, [record.id], (), None) == DONE
    assert [c.step for c in store.checkpoints.select(record.id)] == [5, 10, 15, 20]


@pytest.mark.parametrize(("call", "step"), [(0, 0), (1, 10), (2, 20)])
def test_an_evaluation_is_broken_off_at_once_and_no_step_is_lost(
    call, step, plan, store, quick_undisturbed, monkeypatch
):
    started = time.monotonic()
    calls = iter(range(10))
    count = run_evaluator.count

    def slow(*arguments):
        if next(calls) == call:
            terminate()
            time.sleep(30)
        return count(*arguments)

    monkeypatch.setattr(run_evaluator, "count", slow)
    record = added(plan("backend.checkpoint_every=0"), store)
    assert work_on(store, [record.id], (), None) == STOPPED
    assert time.monotonic() - started < 20
    assert [c.step for c in store.checkpoints.select(record.id)] == ([step] if step else [])
    assert work_on(store, [record.id], (), None) == DONE
    assert points_of(store, record.id) == quick_undisturbed[0]
    assert [e.step for e in store.evaluations.select([record.id])] == [0, 10, 20]


def test_a_run_that_another_process_has_is_left_alone(plan, store):
    record = added(plan(), store)
    with open_store(store.url) as other:
        assert other.leases.claim(record.id, Owner.current())
        assert work_on(store, [record.id], (), None) == ELSEWHERE
    assert store.metrics.points(record.id) == []


def test_a_run_that_was_taken_over_is_let_go(plan, store, monkeypatch):
    record = added(plan(), store)

    def lose():
        raise LeaseLostError("another process has it")

    in_step(monkeypatch, 7, lose)
    assert work_on(store, [record.id], (), None) == ELSEWHERE
    [left] = store.runs.select()
    assert left.status is Status.RUNNING


def test_a_full_disk_fails_the_run_and_keeps_its_metrics(plan, store, monkeypatch):
    record = added(plan(), store)
    reserve = record.directory / "reserve"
    full = []

    def takes(face, method):
        plain = getattr(face, method)

        def limited(*arguments, **options):
            if full and reserve.exists():
                raise StoreError("the disk is full")
            return plain(*arguments, **options)

        monkeypatch.setattr(face, method, limited)

    for face, method in (
        (store.leases, "heartbeat"),
        (store.metrics, "record"),
        (store.metrics, "set_summaries"),
        (store.leases, "finish"),
    ):
        takes(face, method)
    in_step(monkeypatch, 12, lambda: full.append(True))
    assert work_on(store, [record.id], (), None) == FAILED
    [failed] = store.runs.select()
    assert (failed.status, failed.error) == (Status.FAILED, "the disk is full")
    assert len(store.metrics.points(record.id, ["reward/mean"])) >= 10
    assert not reserve.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_file_that_cannot_grow_is_a_failure_of_the_disk(number):
    end = end_of(OSError(number, os.strerror(number)))
    assert (end.code, end.status, end.failure) == (FAILED, Status.FAILED, Failure.DISK)
    assert end_of(OSError(errno.EACCES, "no")).failure is Failure.ERROR


def test_a_done_run_is_only_evaluated(plan, store):
    record = added(plan(), store)
    assert work_on(store, [record.id], (), None) == DONE
    before = store.runs.select()
    assert work_on(store, [record.id], ({"name": "standard", "n": 4, "k": [1]},), None) == DONE
    assert store.runs.select() == before
    assert [e.step for e in store.evaluations.select([record.id]) if e.settings["n"] == 4] == [
        0,
        20,
    ]


class OutOfMemoryError(RuntimeError):
    """As torch, and other libraries, call theirs."""


@pytest.mark.parametrize(
    ("error", "code", "failure"),
    [
        (MemoryError(), OUT_OF_MEMORY, Failure.OOM),
        (OutOfMemoryError("CUDA out of memory"), OUT_OF_MEMORY, Failure.OOM),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), OUT_OF_MEMORY, Failure.OOM),
        (RuntimeError("CUDA error: out of memory"), OUT_OF_MEMORY, Failure.OOM),
        (NoMemoryError("no memory; take less"), OUT_OF_MEMORY, Failure.OOM),
        (RuntimeError("shapes do not fit"), FAILED, Failure.ERROR),
        (SystemExit(3), FAILED, Failure.ERROR),
        (TrainingError("step 7: not finite"), FAILED, Failure.ERROR),
    ],
)
def test_a_failure_is_recorded_with_its_class(error, code, failure, plan, store, monkeypatch):
    def fail():
        raise error

    in_step(monkeypatch, 7, fail)
    assert work_on(store, [added(plan(), store).id], (), None) == code
    [failed] = store.runs.select()
    assert (failed.status, failed.failure, failed.step) == (Status.FAILED, failure, 6)


@pytest.fixture
def reported(plan, store):
    """A reporter of a claimed run that writes a checkpoint every 5 of its 20 steps."""
    quick = plan()
    record = added(quick, store)
    assert store.leases.claim(record.id, Owner.current())
    evaluator = Evaluator(store, quick.runs[0].run, record.id, 1)
    return StoreReporter(store, evaluator, StopRequest()), record


def steps(store, record):
    return [step for _, step, _ in store.metrics.points(record.id, ["reward/mean"])]


@pytest.fixture
def locked(store, monkeypatch):
    """Somebody's connection that keeps the store locked until it rolls back."""
    monkeypatch.setattr("advsweep.sweep.worker.reporter.BATCH_SECONDS", 0.0)
    for engine in (store.database.writer, store.database.reader):
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(str(store.file), isolation_level=None, check_same_thread=False)
    yield other
    other.close()


def test_a_training_goes_on_and_keeps_its_points_while_the_store_is_away(reported, store, locked):
    reporter, record = reported
    reporter.metrics(1, {"reward/mean": 0.5})
    locked.execute("BEGIN IMMEDIATE")
    for step in (2, 3):
        reporter.metrics(step, {"reward/mean": 0.5})
    assert store.patience.is_away
    locked.execute("ROLLBACK")
    # As the heartbeat does.
    store.leases.heartbeat(record.id)
    assert steps(store, record) == [1]
    reporter.metrics(4, {"reward/mean": 0.5})
    assert steps(store, record) == [1, 2, 3, 4]


def test_a_checkpoint_waits_for_the_store(reported, store, locked):
    reporter, record = reported
    for step in range(1, 5):
        reporter.metrics(step, {"reward/mean": 0.5})
    locked.execute("BEGIN IMMEDIATE")
    back = threading.Timer(0.5, locked.execute, ["ROLLBACK"])
    back.start()
    reporter.metrics(5, {"reward/mean": 0.5})
    back.join()
    assert steps(store, record) == [1, 2, 3, 4, 5]


def test_who_lost_its_run_while_the_store_was_away_writes_nothing(reported, store, locked):
    reporter, record = reported
    reporter.metrics(1, {"reward/mean": 0.5})
    locked.execute("BEGIN IMMEDIATE")
    reporter.metrics(2, {"reward/mean": 0.5})
    locked.execute("UPDATE runs SET host = 'elsewhere'")
    locked.execute("COMMIT")
    with pytest.raises(LeaseLostError):
        reporter.flush()
    assert steps(store, record) == [1]


def test_what_was_reported_past_a_resume_is_void(reported, store):
    reporter, record = reported
    store.metrics.record(record.id, [("reward/mean", step, 9.0) for step in range(1, 9)])
    reporter.resumed(5)
    reporter.metrics(6, {"reward/mean": 0.5})
    reporter.flush()
    assert steps(store, record) == [1, 2, 3, 4, 5, 6]


def test_a_request_breaks_into_an_interruptible_stretch_once():
    stop = StopRequest()
    unwound = False

    def interrupted():
        nonlocal unwound
        with stop.interruptible():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
                unwound = True

    with stop.installed(), pytest.raises(RunStopped):
        interrupted()
    assert unwound


@pytest.fixture
def quick_heart(monkeypatch):
    monkeypatch.setattr(main, "PARENT_SECONDS", 0.01)
    monkeypatch.setattr(main, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(main, "ORPHAN_SECONDS", 0.1)


class Leased:
    """A run whose lease is renewed."""

    is_open = True

    def __init__(self, run_id, process):
        self.run_id = run_id
        self.stop = RunStopRequest(process)

    def stop_as_lost(self):
        self.is_open = False


@pytest.mark.usefixtures("quick_heart")
def test_a_run_without_a_parent_stops_and_then_ends(store, monkeypatch):
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    stop = StopRequest()
    with stop.installed(), Heartbeat(store, (), stop, parent_pid=1 << 30):
        wait_until(lambda: ends)
    assert stop.reason == "the process that started it is gone"
    assert ends[0] == ORPHANED


@pytest.mark.usefixtures("quick_heart")
def test_a_process_that_lost_its_lease_ends_at_once(plan, store, monkeypatch):
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    record = added(plan(), store)
    store.leases.claim(record.id, Owner(host="elsewhere", pid=1, started=0.0))
    stop = StopRequest()
    with Heartbeat(store, [Leased(record.id, stop)], stop, None):
        with open_store(store.url) as other:
            other.leases.claim(record.id, Owner.current())
            store.leases.held[record.id] = Owner(host="elsewhere", pid=2, started=0.0)
        wait_until(lambda: ends)
    assert ends[0] == ELSEWHERE


def test_checkpoints_of_another_store_are_not_gone_on_from(
    plan, tmp_path, quick_undisturbed, monkeypatch, caplog
):
    """A store that was deleted leaves its runs' folders behind, without their metrics."""
    with open_store(str(tmp_path / "advsweep.db")) as first:
        in_step(monkeypatch, 13, terminate)
        assert work_on(first, [added(plan(), first).id], (), None) == STOPPED
    (tmp_path / "advsweep.db").unlink()
    with open_store(str(tmp_path / "advsweep.db")) as second:
        record = added(plan(), second)
        assert (record.directory / "checkpoints").exists()
        assert work_on(second, [record.id], (), None) == DONE
        assert points_of(second, record.id) == quick_undisturbed[0]
    assert "not of this store" in caplog.text


def test_a_run_whose_data_has_changed_since_it_was_planned_is_not_trained(store, tmp_path):
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(f'{{"question": "{i}?", "answer": "{i}"}}\n' for i in range(8)))
    quick = ["backend=fake", "steps=2", "evaluation.n=2", "evaluation.k=[1]"]
    quick += ["task=file", f"task.data={data}"]
    record = added(make_plan([*quick, "task.held_out=2"]), store)
    assert work_on(store, [record.id], (), None) == DONE
    other = added(make_plan([*quick, "task.held_out=3"]), store)
    data.write_text("".join(f'{{"question": "{i}?", "answer": "{i + 1}"}}\n' for i in range(8)))
    os.utime(data, ns=(1, 1))  # the clock of a file system may be too coarse to tell
    assert work_on(store, [other.id], (), None) == FAILED
    [failed] = store.runs.select(ids=[other.id])
    assert failed.error is not None
    assert failed.error.startswith(f"expected the run that was planned, {other.identity[:12]}")
