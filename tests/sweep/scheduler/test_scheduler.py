"""The engine in one process: what it does, what it leaves out, and what it records."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
import torch

from advsweep.errors import StoreError
from advsweep.store import Failure, Owner, Status, open_store
from advsweep.sweep.events import (
    ELSEWHERE,
    FAILED,
    Event,
    EventKind,
    RunEvent,
    SweepProgress,
    SweepResult,
)
from advsweep.sweep.executors.base import Executor, Handle, Job
from advsweep.sweep.executors.debug import EndedHandle
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler import scheduler
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.runs import schedule_runs
from tests.sweep.helpers import kinds, run


@pytest.mark.slow
def test_a_sweep_trains_evaluates_and_records(plan, store):
    outcome, events = run(plan("estimator=grpo,fade", "seed=0,1", name="pair"), store)
    assert outcome == SweepResult([1, 2, 3, 4], 4, 0, {}, 0, stopped=False)
    assert outcome.exit_code == 0
    assert kinds(events) == ["started"] * 1 + ["done", "started"] * 3 + ["done"]
    for record in store.runs.select(sweep="pair"):
        assert (record.status, record.step, record.error) == (Status.DONE, 20, None)
        steps, _ = store.metrics.series([record.id], "reward/mean")[record.id]
        assert steps.tolist() == list(range(1, 21))
        assert [e.step for e in store.evaluations.select([record.id])] == [0, 10, 20]
        steps, _ = store.metrics.series([record.id], "pass@8")[record.id]
        assert steps.tolist() == [0, 10, 20]
        assert [c.step for c in store.checkpoints.select(record.id)] == [15, 20]
        summaries = store.metrics.summaries([record.id])[record.id]
        measured = {"time/run", "time/start", "time/training_step", "time/evaluation_sample"}
        # The first run of a worker has a start of its own.
        assert set(summaries) - {"time/first_start"} == {*measured, "memory/peak"}
        environment = store.runs.environment(record.id)
        assert {"git", "python", "packages", "cpu", "cores", "memory_bytes"} <= set(environment)
        capability = torch.backends.cpu.get_cpu_capability()
        assert environment["processor"]["vector_capability"] == capability
    bases = [e for e in store.evaluations.select([1, 2, 3, 4]) if e.step == 0]
    assert len({e.identity for e in bases}) == 1


def test_what_is_done_is_not_done_again(plan, store):
    run(plan("seed=0,1"), store)
    outcome, events = run(plan("seed=0,1,2"), store)
    assert (outcome.done, outcome.skipped) == (1, 2)
    assert kinds(events) == ["skipped", "skipped", "started", "done"]
    outcome, events = run(plan("seed=0,1,2"), store)
    assert (outcome.done, outcome.skipped, outcome.exit_code) == (0, 3, 0)
    assert kinds(events) == ["skipped"] * 3


def test_force_makes_a_new_attempt_of_what_is_done(plan, store):
    run(plan(name="again"), store)
    outcome, _ = run(plan(name="again"), store, force=True)
    [record] = store.runs.select(sweep="again")
    assert (outcome.run_ids, outcome.done) == ([record.id], 1)
    assert (record.attempt, record.status) == (2, Status.DONE)
    first, second = ([e.identity for e in store.evaluations.select([i])] for i in (1, 2))
    assert first[0] == second[0]  # the base model's
    assert set(first[1:]).isdisjoint(second[1:])
    assert store.metrics.points(1, ["reward/mean"]) == store.metrics.points(2, ["reward/mean"])


def test_a_failing_run_does_not_hurt_the_others(plan, store):
    outcome, events = run(plan("backend.fail_at=7,0", "backend.nan_at=12,0"), store)
    # fail_at=7 fails whatever nan_at is; nan_at=12 alone fails at 12; neither is done.
    assert (outcome.done, len(outcome.failed), outcome.exit_code) == (1, 3, 1)
    first, _, third, fourth = store.runs.select(newest_first=False)
    assert first.error == "RuntimeError: step 7 fails, as the fake backend was told"
    assert first.traceback is not None
    assert "in _fault" in first.traceback
    assert first.step == 6
    assert len(store.metrics.points(first.id, ["reward/mean"])) == 6
    assert third.error is not None
    assert third.error.startswith("step 12: expected a finite loss")
    assert third.traceback is None
    assert fourth.status is Status.DONE
    assert kinds(events).count("failed") == 3


def other_process(store, run_id, owner):
    """Another handle on the store, through which a run is held."""
    other = open_store(store.url)
    assert other.leases.claim(run_id, owner)
    return other


@pytest.mark.parametrize(("status", "expected"), [(Status.DONE, "done"), (Status.FAILED, "failed")])
def test_a_run_that_another_process_has_is_waited_for(status, expected, plan, store, monkeypatch):
    monkeypatch.setattr(scheduler, "STORE_SECONDS", 0.05)
    quick = plan()
    units = schedule_runs(quick, store, force=False)
    other = other_process(store, units[0].run_id, Owner.current())
    ending = threading.Timer(0.4, lambda: other.leases.finish(1, status, error="as it was told"))
    ending.start()
    outcome, events = run(quick, store)
    ending.join()
    assert kinds(events) == ["waiting", expected]
    assert (outcome.done, len(outcome.failed)) == ((1, 0) if expected == "done" else (0, 1))


def test_a_run_of_a_dead_process_is_free_at_once(plan, store):
    quick = plan()
    units = schedule_runs(quick, store, force=False)
    dead = replace(Owner.current(), started=-1.0)
    other_process(store, units[0].run_id, dead)
    _, events = run(quick, store)
    assert kinds(events) == ["started", "done"]


@dataclass(kw_only=True)
class Scripted(Executor):
    """Starts nothing; its handles end with the codes that were written down."""

    name: ClassVar[str] = "scripted"
    codes: tuple[int, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        self.started: list[Job] = []
        self.most = 0
        self._left = list(self.codes)
        self._alive = 0

    def capacity(self):
        return 2

    def start(self, job):
        if not self._left:
            raise OSError("no more processes")
        self.started.append(job)
        self._alive += 1
        self.most = max(self.most, self._alive)
        return ScriptedHandle(self, self._left.pop(0))


@dataclass
class ScriptedHandle(Handle):
    """Ends at the second look."""

    executor: Scripted
    code: int
    looks: Iterator[None] = field(default_factory=lambda: iter([None]))

    def poll(self):
        for _ in self.looks:
            return None
        self.executor._alive -= 1
        return self.code

    def stop(self):
        raise AssertionError

    def kill(self):
        raise AssertionError


def scripted(plan, *codes):
    executor = Scripted(codes=codes)
    return replace(plan, executor=executor), executor


@pytest.mark.parametrize(
    ("code", "failure", "reason"),
    [
        (-9, Failure.KILLED, "killed by signal 9 (SIGKILL)"),
        (-11, Failure.KILLED, "killed by signal 11 (SIGSEGV)"),
        (-35, Failure.KILLED, "killed by signal 35"),
        (70, Failure.ERROR, "its process ended with exit status 70"),
        (13, Failure.KILLED, "its process could not use the store any more"),
        (15, Failure.OOM, "out of memory"),
    ],
)
def test_a_worker_that_dies_without_a_word_is_recorded(code, failure, reason, plan, store):
    told, _ = scripted(plan(), code)
    outcome, events = run(told, store, policy=Policy(retries=0))
    [record] = store.runs.select()
    assert (record.status, record.failure, record.error) == (Status.FAILED, failure, reason)
    assert outcome.failed == {record.id: reason}
    assert kinds(events) == ["started", "failed"]


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize(
    ("code", "policy", "started"),
    [
        (-9, Policy(), 3),
        (-9, Policy(retries=4), 5),
        (15, Policy(), 3),
        (70, Policy(), 1),
    ],
)
def test_failures_are_tried_again_by_their_class_and_so_often(code, policy, started, plan, store):
    told, executor = scripted(plan(), *[code] * 9)
    outcome, events = run(told, store, policy=policy)
    assert len(executor.started) == started
    assert kinds(events) == ["started", "retrying"] * (started - 1) + ["started", "failed"]
    assert list(outcome.failed) == [1]


def test_a_run_rests_before_it_is_tried_again_while_others_go_on(plan, store, monkeypatch):
    monkeypatch.setattr("advsweep.sweep.retry_policy.BACKOFF_SECONDS", 0.5)
    told, executor = scripted(plan("seed=0,1,2"), -9, 70, 70, 70)
    run(told, store, jobs=1)
    assert [job.run_id for job in executor.started] == [1, 2, 3, 1]


def test_what_a_run_recorded_of_its_end_counts_whatever_ended_its_process(plan, store, monkeypatch):
    both = plan("backend.fail_at=0,7")
    start = both.executor.start

    def killed_in_the_end(executor, job):
        start(job)
        return EndedHandle(-9)

    monkeypatch.setattr(type(both.executor), "start", killed_in_the_end)
    outcome, events = run(both, store)
    assert kinds(events) == ["started", "done", "started", "failed"]
    done, failed = store.runs.select(ids=outcome.run_ids)
    assert (done.status, failed.failure) == (Status.DONE, Failure.ERROR)
    assert outcome.failed == {failed.id: failed.error}


def test_nothing_more_is_started_after_so_many_failures(plan, store):
    told, executor = scripted(plan("seed=range(6)"), *[70] * 6)
    outcome, _ = run(told, store, policy=Policy(max_failures=2), jobs=1)
    assert len(executor.started) == 2
    assert (len(outcome.failed), outcome.unfinished, outcome.halted) == (2, 4, True)
    assert (outcome.stopped, outcome.exit_code) == (False, 1)
    told, executor = scripted(plan("seed=range(6)"), *[70] * 6)
    outcome, _ = run(told, store, policy=Policy(max_failures=7), jobs=1)
    assert (len(executor.started), outcome.halted) == (6, False)


def test_a_process_that_cannot_be_started_fails_its_run_alone(plan, store):
    told, _ = scripted(plan())
    outcome, _ = run(told, store)
    assert outcome.failed == {1: "its process could not be started: no more processes"}


def test_a_run_that_was_taken_between_look_and_start_is_waited_for(plan, store, monkeypatch):
    monkeypatch.setattr(scheduler, "STORE_SECONDS", 0.05)
    told, _ = scripted(plan(), ELSEWHERE, 70)
    _, events = run(told, store)
    assert kinds(events) == ["started", "waiting", "started", "failed"]


def test_a_failed_evaluation_leaves_the_training_done(plan, store):
    run(plan(), store)
    told, _ = scripted(plan("evaluation.n=16"), FAILED)
    outcome, _ = run(told, store)
    assert store.runs.select()[0].status is Status.DONE
    assert outcome.failed[1].startswith("evaluation: ")


def test_a_store_without_room_does_not_end_the_sweep(plan, store, monkeypatch):
    finish, refusals = store.leases.finish, iter([True])

    def full_once(*args, **options):
        if next(refusals, False):
            raise StoreError("the disk is full")
        finish(*args, **options)

    monkeypatch.setattr(store.leases, "finish", full_once)
    told, _ = scripted(plan("seed=0,1"), -9, 70)
    outcome, _ = run(told, store, policy=Policy(retries=0))
    assert set(outcome.failed) == {1, 2}
    assert [r.status for r in store.runs.select()] == [Status.FAILED] * 2


@pytest.fixture
def _heeds_ctrl_c():
    """A shell that starts the tests in the background would have them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heeds_ctrl_c")
def test_a_request_to_stop_starts_nothing_more(plan, store):
    seen: list[Event] = []

    def on_event(event):
        seen.append(event)
        if isinstance(event, RunEvent) and event.kind is EventKind.DONE:
            os.kill(os.getpid(), signal.SIGINT)

    outcome = execute(plan("seed=0,1,2"), store, on_event=on_event)
    assert (outcome.done, outcome.unfinished, outcome.stopped) == (1, 2, True)
    assert outcome.exit_code == 130
    assert any(isinstance(e, SweepProgress) and e.stopping for e in seen)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
