"""Faults of real processes: no run lost, none done twice, no step twice, a clear status.

Most runs here are forks of the test's own process, which start in milliseconds; what ends
them, and what is left of them, is as real as of any other.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from typing import ClassVar

import advsweep_fake as fake
import pytest

from advsweep.store import Failure, RunRecord, Status, lease_guard, open_store
from advsweep.store import store as store_module
from advsweep.store.owners import process_started
from advsweep.store.store import utc_now
from advsweep.sweep.events import EventKind, RunEvent
from advsweep.sweep.executors.base import Resources
from advsweep.sweep.executors.debug import DebugExecutor
from advsweep.sweep.executors.memory import held_bytes, processes_of
from advsweep.sweep.executors.sizes import show_size
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler import workers as watched
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.runs import schedule_runs
from advsweep.sweep.scheduler.scheduler import STORE_SECONDS
from advsweep.sweep.worker import main
from tests.sweep.forked_workers import Child, ForkingExecutor
from tests.sweep.helpers import log_of, measured, wait_until, workers

pytestmark = pytest.mark.slow


STEPS = "steps=40"
SLOW = (STEPS, "backend.step_seconds=0.03")
PATIENT = Policy(retries=100)


def forked(plan):
    return replace(plan, executor=ForkingExecutor())


@contextmanager
def parents(*plans, url, policy=PATIENT):
    """Executes plans at once, each in a process of its own, and ends those that are left."""
    children = []
    for plan in plans:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with open_store(url) as store:
                    code = execute(plan, store, policy=policy).exit_code
            finally:
                os._exit(code)
        children.append(Child(pid))
    try:
        yield children
    except BaseException:
        # Runs that are stopped, or hang, would outlive the test that failed.
        with open_store(url) as store:
            for run in training(store, step=0):
                kill(run)
        raise
    finally:
        for child in children:
            child.kill()
            wait_until(lambda child=child: child.poll() is not None)
    with open_store(url) as store:
        wait_until(lambda: not workers(store))


def training(store, step=1):
    return [run for run in store.runs.select(status=Status.RUNNING) if run.step >= step]


def kill(run, number=signal.SIGKILL):
    assert run.pid is not None
    assert run.pid != os.getpid()
    os.kill(run.pid, number)


def kill_all(parents, store):
    """Kills processes and their runs, and gives neither the time to see the others die."""
    for parent in parents:
        os.kill(parent.process, signal.SIGSTOP)
    for run in training(store, step=0):
        kill(run)
    for parent in parents:
        parent.kill()


@pytest.fixture
def short_lease(monkeypatch):
    """Leases that a test can wait for, in this process and those that it forks."""
    monkeypatch.setattr(lease_guard, "LEASE", timedelta(seconds=3))
    monkeypatch.setattr(main, "BEAT_SECONDS", 0.3)
    monkeypatch.setattr(main, "PARENT_SECONDS", 0.1)
    monkeypatch.setattr(watched, "SILENT_SECONDS", 1.0)


def assert_sound(store, undisturbed, plan):
    """Everything is done once, as if nothing had happened, and nothing is left to do."""
    assert {run.status for run in store.runs.select()} == {Status.DONE}
    assert measured(store) == undisturbed
    again = execute(plan, store)
    assert (again.skipped, again.done, again.exit_code) == (len(store.runs.select()), 0, 0)


@dataclass(kw_only=True)
class Counting(DebugExecutor):
    """Counts the calls of functions that a run makes."""

    name: ClassVar[str] = "counting"

    def __post_init__(self):
        super().__post_init__()
        self.calls = 0

    def start(self, job):
        def note(calls):
            self.calls = calls

        tell_calls(note)
        try:
            return super().start(job)
        finally:
            sys.setprofile(None)


@dataclass(kw_only=True)
class Deadly(ForkingExecutor):
    """Kills the first workers of each run, each once it has made so many calls of functions.

    That is as far on one machine as on another, whatever else it has to do, and anywhere:
    between two rows of a transaction, or two files of a checkpoint.
    """

    name: ClassVar[str] = "deadly"

    def __post_init__(self):
        super().__post_init__()
        self.calls: dict[int, list[int]] = {}
        self._due: int | None = None

    def start(self, job):
        left = self.calls[job.run_id]
        self._due = left.pop(0) if left else None
        return super().start(job)

    def begin(self):
        if self._due is not None:
            tell_calls(self._die_when_due)

    def _die_when_due(self, calls):
        if calls == self._due:
            os.kill(os.getpid(), signal.SIGKILL)


def tell_calls(tell):
    """Tells of each call of a function in this thread from here on, by its number."""
    numbers = itertools.count(1)

    def note(frame, event, argument):
        if event in ("call", "c_call"):
            tell(next(numbers))

    sys.setprofile(note)


@pytest.mark.usefixtures("no_pause")
def test_runs_killed_at_random_moments_go_on_by_themselves(plan, store, tmp_path):
    moments, runs = random.Random(7), 12
    quick = plan(f"seed=range({runs})", "evaluation.every=0")
    counting, deadly = Counting(), Deadly()
    with open_store(str(tmp_path / "undisturbed.db")) as calm:
        # The first run in a process makes more calls, as some things are done but once.
        execute(replace(quick, runs=quick.runs[:2], executor=counting), calm)
        assert execute(forked(quick), calm).done == runs - 2
        undisturbed = measured(calm)
    for run_id in range(1, runs + 1):
        # In one of as many stretches of a run's life, from its claim to its end.
        first = int(counting.calls * (run_id - moments.random()) / runs)
        second = moments.randrange(counting.calls - first)
        deadly.calls[run_id] = [first, second]
    kills: list[RunRecord] = []

    def count(event):
        if isinstance(event, RunEvent) and event.kind is EventKind.RETRYING:
            assert event.run.error == "killed by signal 9 (SIGKILL)"
            kills.append(event.run)

    outcome = execute(replace(quick, executor=deadly), store, on_event=count)
    assert (outcome.done, outcome.exit_code) == (runs, 0)
    assert len(kills) >= 20
    assert len({run.step for run in kills}) >= 3
    for run in store.runs.select():
        steps = [int(step) for step in re.findall(r" step (\d+) of 20: ", log_of(run))]
        twice = [before - now + 1 for before, now in pairwise(steps) if now <= before]
        # At most one interval between checkpoints is trained twice.
        assert len(twice) <= 2
        assert max(twice, default=0) <= 5
    assert_sound(store, undisturbed, quick)


def test_a_parent_and_its_runs_killed_at_random_moments(plan, store, undisturbed):
    moments = random.Random(3)
    forty = forked(plan(*SLOW, "seed=0,1"))
    for i in range(6):
        # Of the eighty steps of both, in stretches of twelve.
        moment = 12 * i + moments.randint(1, 12)
        with parents(forty, url=store.url) as [parent]:
            wait_until(lambda moment=moment: sum(run.step for run in store.runs.select()) >= moment)
            if i % 2:
                kill_all([parent], store)
            else:
                parent.kill()
        assert Status.RUNNING not in {run.status for run in store.runs.select()}
    assert execute(forty, store).exit_code == 0
    assert_sound(store, undisturbed, forty)


@pytest.mark.usefixtures("short_lease")
def test_a_run_that_wakes_up_after_it_was_taken_over_writes_nothing(plan, store, undisturbed):
    forty = forked(plan(*SLOW, "seed=0,1"))
    with parents(forty, url=store.url) as [parent]:
        wait_until(lambda: len(training(store, step=8)) == 2)
        sleeping = training(store)
        # Its parent sleeps as well, and so cannot end it.
        os.kill(parent.process, signal.SIGSTOP)
        stop_between_writes(sleeping, store)
        wait_until(lambda: {run.status for run in store.runs.select()} == {Status.LOST})
        halfway = threading.Event()

        def wake(event):
            if not halfway.is_set() and len(training(store, step=20)) == 2:
                halfway.set()
                for run in sleeping:
                    kill(run, signal.SIGCONT)

        outcome = execute(forty, store, on_event=wake)
        assert halfway.is_set()
        assert (outcome.done, outcome.exit_code) == (2, 0)
        wait_until(lambda: all(_is_over(run) for run in sleeping))
        for run in sleeping:
            assert "was taken over by another process" in log_of(run)
        os.kill(parent.process, signal.SIGCONT)
        wait_until(lambda: parent.poll() is not None)
        assert parent.code == 0
    assert_sound(store, undisturbed, forty)


def stop_between_writes(runs, store):
    """A process that is stopped within a write keeps everybody from writing while it sleeps."""
    file = store.runs_directory.parent / "advsweep.db"
    while True:
        for run in runs:
            kill(run, signal.SIGSTOP)
        try:
            with sqlite3.connect(file, timeout=0.1, isolation_level=None) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            for run in runs:
                kill(run, signal.SIGCONT)
            time.sleep(0.02)
        else:
            return


def _is_over(run):
    assert run.pid is not None
    return process_started(run.pid) is None


@pytest.mark.usefixtures("short_lease", "no_pause")
def test_a_run_that_falls_silent_is_killed_and_goes_on(plan, store, undisturbed):
    stopped: list[RunRecord] = []

    def disturb(event):
        if not stopped and (running := training(store, step=8)):
            stopped.append(running[0])
            stop_between_writes(running[:1], store)

    forty = forked(plan(*SLOW, "seed=0,1"))
    messages: list[str] = []

    def take(event):
        disturb(event)
        messages.append(getattr(event, "message", ""))

    outcome = execute(forty, store, on_event=take)
    assert (outcome.done, outcome.exit_code) == (2, 0)
    assert any("gave no sign of life for 3 s and was killed; retry 1 of 2" in m for m in messages)
    assert_sound(store, undisturbed, forty)


@pytest.fixture
def inject(tmp_path, monkeypatch):
    """Has seed 0 meet a fault of the fake backend in its next seventh step, and never again.

    As an option of the backend a fault is part of the run, and comes back each time. Returns a
    file that is there until the fault is met.
    """
    file = tmp_path / "fault"
    step_of = fake._Trainer.step

    def inject(**fault):
        file.touch()

        def step(self, step):
            if self._run.seed == 0 and step == 7 and file.exists():
                file.unlink()
                self._backend = replace(self._backend, **fault)
            return step_of(self, step)

        monkeypatch.setattr(fake._Trainer, "step", step)
        return file

    return inject


@pytest.mark.parametrize(
    ("fault", "failure", "error"),
    [
        ("fail_at", Failure.ERROR, "RuntimeError: step 7 fails, as the fake backend was told"),
        ("exit_at", Failure.ERROR, "its process ended with exit status 70"),
        ("leave_at", Failure.ERROR, "SystemExit: 3"),
        ("crash_at", Failure.KILLED, "killed by signal 11 (SIGSEGV)"),
    ],
)
def test_a_run_that_ends_itself_ends_alone_and_says_how(
    fault, failure, error, plan, store, undisturbed, inject
):
    inject(**{fault: 7})
    forty = forked(plan(STEPS, "seed=0,1"))
    outcome = execute(forty, store, policy=Policy(retries=0))
    failed, sound = store.runs.select(ids=outcome.run_ids)
    assert (failed.status, failed.failure, failed.error) == (Status.FAILED, failure, error)
    assert failed.step <= 6
    assert sound.status is Status.DONE
    assert outcome.failed == {failed.id: error}
    assert execute(forty, store).done == 1
    assert "resuming after step 5" in log_of(failed)
    assert_sound(store, undisturbed, forty)


def limited(plan, store, policy):
    outcome = execute(plan, store, policy=policy)
    return outcome, store.runs.select(ids=outcome.run_ids)[0]


def test_a_run_beyond_its_memory_ends_alone_and_says_the_limit(plan, store, undisturbed, inject):
    # A fork holds as much as this process from the start.
    most = held_bytes(processes_of(os.getpid()), 0) + 2**28
    forty = forked(plan(*SLOW, "seed=0,1"))
    forty.executor.prepare(Resources(memory=f"{most >> 20}M"), ())
    inject(allocate_at=7)
    outcome, run = limited(forty, store, Policy(retries=0))
    assert (run.status, run.failure) == (Status.FAILED, Failure.OOM)
    assert f"above its limit of {show_size(most)} (resources.memory)" in outcome.failed[run.id]
    assert outcome.done == 1
    assert execute(forty, store).done == 1
    assert "resuming after step 5" in log_of(run)
    assert_sound(store, undisturbed, forty)


@pytest.mark.usefixtures("no_pause")
def test_a_run_beyond_its_time_goes_on_where_it_stopped(plan, store, undisturbed):
    forty = forked(plan(*SLOW, "seed=0,1", "backend.step_seconds=0.1"))
    outcome, run = limited(forty, store, Policy(retries=100, time_limit=3.0))
    assert outcome.exit_code == 0
    assert "interrupted: asked to stop" in log_of(run)
    assert_sound(store, undisturbed, forty)


def test_a_run_that_heeds_no_request_is_killed_after_a_while(
    plan, store, undisturbed, inject, monkeypatch
):
    monkeypatch.setattr(watched, "STOP_SECONDS", 1.0)
    forty = forked(plan(STEPS))
    inject(hang_at=7)
    outcome, run = limited(forty, store, Policy(retries=0, time_limit=3.0))
    assert (run.status, run.failure) == (Status.FAILED, Failure.TIMEOUT)
    assert outcome.failed == {run.id: "took longer than its time limit of 3 s"}
    due = inject(hang_at=7)
    with parents(forty, url=store.url) as [parent]:
        wait_until(lambda: not due.exists())
        parent.stop()
        wait_until(lambda: parent.poll() is not None)
    assert parent.code == 130
    [run] = store.runs.select()
    assert run.status is Status.INTERRUPTED
    assert run.error == "killed by signal 9 (SIGKILL) while stopping"
    assert execute(forty, store).done == 1
    assert_sound(store, {0: undisturbed[0]}, forty)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 3 MB; where none may be mounted, files that may not grow past 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0:
        yield disk
        subprocess.run(["umount", "-l", str(disk)], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    yield disk
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_fails_runs_clearly_and_room_finishes_them(
    plan, small_disk, tmp_path, undisturbed
):
    forty = forked(plan(*SLOW, "seed=0,1"))
    filler = small_disk / "filler"

    def fill(event):
        with open_store(str(small_disk / "advsweep.db")) as store:
            if not filler.exists() and len(training(store, step=2)) == 2:
                filler.touch()
                _fill(small_disk, filler)

    with open_store(str(small_disk / "advsweep.db")) as store:
        outcome = execute(forty, store, on_event=fill)
        # The first that fails makes room, which may be enough for the other.
        assert outcome.failed
        for error in outcome.failed.values():
            assert "disk" in error or "No space left" in error or "File too large" in error
        left = {run.status for run in store.runs.select(ids=list(outcome.failed))}
        assert left <= {Status.FAILED, Status.LOST}
    filler.unlink()
    # The room that a small disk lacks is found on a larger one.
    moved = shutil.copytree(small_disk, tmp_path / "larger")
    resource.setrlimit(
        resource.RLIMIT_FSIZE,
        (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_FSIZE)[1]),
    )
    with open_store(str(moved / "advsweep.db")) as store:
        assert execute(forty, store).exit_code == 0
        assert_sound(store, undisturbed, forty)


def test_files_that_may_not_grow_are_a_failure_of_the_disk(plan, tmp_path, undisturbed):
    """`ulimit -f`, below what the store's write-ahead log comes to."""
    forty = forked(plan(*SLOW, "seed=0,1"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_store(str(tmp_path / "advsweep.db")) as store:
        schedule_runs(forty, store, force=False)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, before[1]))
        try:
            outcome = execute(forty, store)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert len(outcome.failed) == 2
        assert all("ulimit -f" in error for error in outcome.failed.values())
        left = {(run.status, run.failure) for run in store.runs.select(ids=list(outcome.failed))}
        assert left <= {(Status.FAILED, Failure.DISK), (Status.LOST, None)}
        assert execute(forty, store).exit_code == 0
        assert_sound(store, undisturbed, forty)


def _fill(disk, filler):
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


_LOCK = """
import sqlite3, sys, time
with sqlite3.connect(sys.argv[1], isolation_level=None) as connection:
    connection.execute("BEGIN IMMEDIATE")
    print("locked", flush=True)
    time.sleep(float(sys.argv[2]))
    connection.execute("ROLLBACK")
"""


@pytest.mark.parametrize("seconds", ["20", "7"])
def test_a_store_that_is_locked_costs_time_and_nothing_else(
    seconds, plan, store, undisturbed, request
):
    """It can be read meanwhile: leases of 3 s are seen to lapse that nobody can renew."""
    if seconds == "7":
        request.getfixturevalue("short_lease")
    forty = forked(plan(*SLOW, "seed=0,1"))
    locks = []

    def lock(event):
        if not locks and len(training(store, step=6)) == 2:
            file = str(store.runs_directory.parent / "advsweep.db")
            command = [sys.executable, "-c", _LOCK, file, seconds]
            locks.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            assert locks[0].stdout.readline() == b"locked\n"

    outcome = execute(forty, store, on_event=lock, policy=Policy(retries=0))
    assert locks[0].wait() == 0
    assert (outcome.done, outcome.exit_code) == (2, 0)
    assert all(log_of(run).count("training grpo") == 1 for run in store.runs.select())
    assert_sound(store, undisturbed, forty)


@pytest.fixture
def clock(monkeypatch):
    """Seconds by which the clock is off in this process and in those that it forks."""
    # Memory that they share, without a lock that one of them could take along when it is killed.
    off: ctypes.c_double = multiprocessing.RawValue("d", 0.0)
    monkeypatch.setattr(store_module, "utc_now", lambda: utc_now() + timedelta(seconds=off.value))
    return off


@pytest.mark.usefixtures("short_lease")
def test_a_clock_that_is_set_forward_costs_no_step(plan, tmp_path, undisturbed, clock):
    """Whoever looks at a run before it beats by the new clock may take it over, once."""
    forty = forked(plan(*SLOW, "seed=0,1"))
    with open_store(str(tmp_path / "advsweep.db")) as store:
        with parents(forty, forty, url=store.url) as sweeps:
            wait_until(lambda: len(training(store, step=8)) == 2)
            clock.value = 3600
            wait_until(lambda: all(sweep.poll() is not None for sweep in sweeps))
        assert_sound(store, undisturbed, forty)


@pytest.mark.usefixtures("short_lease")
def test_a_clock_that_is_set_back_takes_no_run_from_anybody(plan, tmp_path, undisturbed, clock):
    forty = forked(plan(*SLOW, "seed=0,1"))
    with open_store(str(tmp_path / "advsweep.db")) as store:
        # Two of them, as each may take what it believes that the other has lost.
        with parents(forty, forty, url=store.url) as sweeps:
            wait_until(lambda: len(training(store, step=8)) == 2)
            # They have no occasion to beat by the new clock before both sweeps look at them.
            had = store.runs.select()
            stop_between_writes(had, store)
            clock.value = -3600
            time.sleep(2 * STORE_SECONDS)
            for run in had:
                kill(run, signal.SIGCONT)
            assert [run.pid for run in store.runs.select()] == [run.pid for run in had]
            wait_until(lambda: len(training(store, step=16)) == 2)
            assert [run.pid for run in store.runs.select()] == [run.pid for run in had]
            # Who is killed now was alive an hour later.
            kill_all(sweeps, store)
        assert {run.status for run in store.runs.select()} == {Status.LOST}
        assert all(log_of(run).count("training grpo") == 1 for run in store.runs.select())
        assert execute(forty, store).done == 2
        assert_sound(store, undisturbed, forty)


def test_many_sweeps_at_once_train_each_run_once(plan, store, undisturbed):
    orders = ("0,1", "1,0", "0,1", "1,0")
    plans = [forked(plan(STEPS, f"seed={o}", name=f"s{i}")) for i, o in enumerate(orders)]
    with parents(*plans, url=store.url) as children:
        wait_until(lambda: all(child.poll() is not None for child in children))
    assert [child.code for child in children] == [0] * 4
    for run in store.runs.select():
        assert len(run.sweeps) == 4
        assert log_of(run).count("training grpo") == 1
    assert_sound(store, undisturbed, plans[0])


def test_a_copy_of_the_store_made_in_the_middle_goes_on_by_itself(
    plan, store, tmp_path, undisturbed
):
    copy = tmp_path / "copy" / "advsweep.db"
    copy.parent.mkdir()
    forty = forked(plan(*SLOW, "seed=0,1"))

    def backup(event):
        if not copy.exists() and len(training(store, step=8)) == 2:
            source = sqlite3.connect(store.runs_directory.parent / "advsweep.db")
            target = sqlite3.connect(copy)
            source.backup(target)
            target.close()
            source.close()

    assert execute(forty, store, on_event=backup).exit_code == 0
    assert_sound(store, undisturbed, forty)
    with open_store(str(copy)) as copied:
        assert {run.status for run in copied.runs.select()} == {Status.LOST}
        assert execute(forty, copied).exit_code == 0
        assert_sound(copied, undisturbed, forty)


def test_a_truncated_checkpoint_is_passed_over(plan, store, undisturbed):
    forty = forked(plan(*SLOW, "seed=0,1"))
    with parents(forty, url=store.url) as [parent]:
        wait_until(lambda: len(training(store, step=12)) == 2)
        parent.stop()
        wait_until(lambda: parent.poll() is not None)
    for run in store.runs.select():
        newest = store.checkpoints.select(run.id)[-1].path / "state.json"
        os.truncate(newest, newest.stat().st_size // 2)
    assert execute(forty, store).exit_code == 0
    assert all(
        "is damaged (state.json: wrong length)" in log_of(run) for run in store.runs.select()
    )
    assert_sound(store, undisturbed, forty)
