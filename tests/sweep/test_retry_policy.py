"""Retries and limits: how they are read, and how workers are held to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

import psutil
import pytest

from advsweep import machine
from advsweep.errors import ConfigError, StoreError
from advsweep.store import Failure, Status
from advsweep.store.owners import process_started
from advsweep.sweep.executors.base import Handle
from advsweep.sweep.executors.memory import held_bytes, processes_of
from advsweep.sweep.executors.processes import ProcessHandle
from advsweep.sweep.retry_policy import (
    Policy,
    parse_duration,
    store_patience,
)
from advsweep.sweep.scheduler import workers
from advsweep.sweep.scheduler.causes import KernelKills, cause_of_exit, take_store_error
from advsweep.sweep.scheduler.workers import Worker
from advsweep.sweep.worker.run import leave_store_error


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("1.5H", 5400), ("2d", 172800)],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-5s", "5 minutes", "1h30", "m", "1.5.2s", "nan"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ConfigError, match="--time-limit: expected a duration above 0"):
        parse_duration(text)


@dataclass
class Noted(Handle):
    """A process that lives on, and notes what it is told."""

    told: list[str] = field(default_factory=list)
    process: int | None = None
    waiting: bool = False

    def pid(self):
        return self.process

    def is_waiting(self):
        return self.waiting

    def poll(self):
        return None

    def stop(self):
        self.told.append("stop")

    def kill(self):
        self.told.append("kill")


def test_the_time_in_which_a_worker_waits_for_a_machine_does_not_count(monkeypatch):
    handle = Noted(waiting=True)
    worker = Worker(handle, Policy(time_limit=90))
    now = time.monotonic() + 1000
    monkeypatch.setattr(time, "monotonic", lambda: now)
    worker.check_time()
    handle.waiting = False
    now += 89
    worker.check_time()
    assert (worker.cause, handle.told) == (None, [])
    now += 2
    worker.check_time()
    assert worker.cause is not None
    assert worker.cause.reason == "took longer than its time limit of 90 s"
    assert handle.told == ["stop"]


def test_a_worker_beyond_its_time_is_asked_and_then_killed(monkeypatch):
    handle = Noted()
    worker = Worker(handle, Policy(time_limit=90))
    now = time.monotonic() + 89
    monkeypatch.setattr(time, "monotonic", lambda: now)
    worker.check_time()
    assert worker.cause is None
    now += 2
    worker.check_time()
    worker.check_time()
    assert worker.cause == (Failure.TIMEOUT, "took longer than its time limit of 90 s")
    assert handle.told == ["stop"]
    now += workers.STOP_SECONDS + 1
    worker.check_time()
    assert handle.told == ["stop", "kill"]


def test_a_worker_that_stays_silent_is_killed(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    handle = Noted()
    worker = Worker(handle, Policy())
    # The machine slept: the heartbeat looks old once, and is renewed.
    worker.check_heartbeat({Status.LOST})
    now = 101.0
    worker.check_heartbeat({Status.RUNNING})
    now = 120.0
    worker.check_heartbeat({Status.LOST})
    assert handle.told == []
    now = 131.0
    worker.check_heartbeat({Status.LOST})
    assert handle.told == ["kill"]
    assert worker.cause == (Failure.KILLED, "gave no sign of life for 60 s and was killed")


FAMILY = """
import mmap, os, sys, tempfile, time
held = bytearray(b"x") * (64 << 20)
with tempfile.TemporaryFile() as file:
    file.truncate(32 << 20)
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.read()
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        more = bytearray(b"y") * (32 << 20)
        os.write(1, b"ready\\n")
        time.sleep(600)
os.write(1, b"ready\\n")
time.sleep(600)
"""
"""A process that holds 64 MiB and maps a file, with so many children that hold 32 MiB each."""


@pytest.fixture
def family():
    """`family(children)`: such a process, once all of them hold what they do."""
    started: list[subprocess.Popen[bytes]] = []

    def start(children):
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", FAMILY, str(children)],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        for _ in range(children + 1):
            assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_memory_is_that_of_a_process_and_its_descendants(family):
    alone, three = (processes_of(family(children).pid) for children in (0, 3))
    rest = 16 << 20  # of each interpreter; the 32 MiB of the mapped file must not count
    least = 64 << 20
    assert least <= held_bytes(alone, 0) <= least + rest
    least += 3 * (32 << 20)
    assert least <= held_bytes(three, 0) <= least + 4 * rest
    # As long as that is not too much, sizes are added up: the shared 64 MiB for each child.
    summed = held_bytes(three, 1 << 40)
    assert summed >= least + 3 * (64 << 20)
    assert held_bytes(processes_of(2**22 + 1), 0) == 0


def test_a_worker_beyond_its_memory_is_killed_with_its_descendants(family):
    leader = family(1)
    child = processes_of(leader.pid)[1]
    worker = Worker(ProcessHandle(leader), Policy(), memory_limit=1 << 40)
    worker.check_memory()
    assert worker.cause is None
    worker = Worker(ProcessHandle(leader), Policy(), memory_limit=80 << 20)
    worker.check_memory()
    assert worker.cause is not None
    assert worker.cause.failure is Failure.OOM
    assert worker.cause.reason.endswith("of memory, above its limit of 80M (resources.memory)")
    assert leader.wait(60) == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while process_started(child.pid) is not None:
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.01)


def test_a_worker_elsewhere_is_left_to_whoever_limits_it_there():
    handle = Noted()
    Worker(handle, Policy(), memory_limit=1).check_memory()
    assert handle.told == []


def test_a_worker_that_is_killed_leaves_no_processes_behind(family):
    leader = family(2)
    children = [child.pid for child in psutil.Process(leader.pid).children(recursive=True)]
    assert len(children) == 2
    ProcessHandle(leader).kill()
    deadline = time.monotonic() + 60
    while any(process_started(child) is not None for child in children):
        assert time.monotonic() < deadline, "they live on"
        time.sleep(0.01)


def test_only_new_kills_of_the_kernel_count_as_out_of_memory(tmp_path, monkeypatch):
    counts = tmp_path / "vmstat"
    monkeypatch.setattr(machine, "_VMSTAT", counts)
    counts.write_text("nr_free_pages 7\noom_kill 3\n")
    kills = KernelKills()
    kills.sample()
    assert not kills.have_happened()
    counts.write_text("nr_free_pages 7\noom_kill 4\n")
    kills.sample()
    assert kills.have_happened()
    for _ in range(3):
        kills.sample()
    assert not kills.have_happened()


NO_ROOM = (
    "its process could not write any more: the disk is full, or a quota or a limit on the size of "
    "files (ulimit -f) is reached"
)


@pytest.mark.parametrize(
    ("code", "killed_by_kernel", "failure", "reason"),
    [
        (15, False, Failure.OOM, "out of memory"),
        (13, False, Failure.KILLED, "its process could not use the store any more"),
        (18, False, Failure.DISK, NO_ROOM),
        (-25, False, Failure.DISK, NO_ROOM),
        (-9, False, Failure.KILLED, "killed by signal 9 (SIGKILL)"),
        (-9, True, Failure.OOM, "killed by the kernel, which had run out of memory"),
        (-15, True, Failure.KILLED, "killed by signal 15 (SIGTERM)"),
        (-35, False, Failure.KILLED, "killed by signal 35"),
        (10, False, Failure.ERROR, "its process ended with exit status 10"),
        (70, True, Failure.ERROR, "its process ended with exit status 70"),
    ],
)
def test_an_exit_code_has_a_class_and_a_sentence(code, killed_by_kernel, failure, reason):
    assert cause_of_exit(code, killed_by_kernel=killed_by_kernel) == (failure, reason)


def test_a_worker_that_its_executor_killed_for_its_memory_is_out_of_memory():
    held = "held 9G of memory, above its limit of 8G"
    assert cause_of_exit(-9, killed_by_kernel=False, excess=held) == (Failure.OOM, held)


def test_the_reason_of_a_process_without_a_store_is_read_once(tmp_path):
    assert take_store_error(tmp_path) == ""
    full = StoreError("the server takes no more\nconnections")
    assert leave_store_error(full, tmp_path) == 13
    reason = take_store_error(tmp_path)
    assert reason == r"the server takes no more\nconnections"
    assert take_store_error(tmp_path) == ""
    told = cause_of_exit(13, killed_by_kernel=False, store_error=reason)
    assert told.reason.endswith(f"could not use the store any more: {reason}")
    # Nothing else that lies there is read.
    (tmp_path / "store-error.txt").symlink_to("/etc/passwd")
    assert take_store_error(tmp_path) == ""


def test_processes_of_runs_have_their_patience_from_the_environment(monkeypatch):
    assert store_patience() == 600
    monkeypatch.setenv("ADVSWEEP_STORE_PATIENCE", "never")
    with pytest.raises(ConfigError, match="ADVSWEEP_STORE_PATIENCE: expected a duration above 0"):
        store_patience()
