"""Faults of real processes: whatever dies, nothing is lost, done twice or left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time

import pytest

from advsweep.store import Status, open_store
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute
from tests.sweep.helpers import log_of, measured, wait_until, workers

pytestmark = pytest.mark.slow


STEPS = "steps=40"
SLOW = ("executor=local", STEPS, "backend.step_seconds=0.05")
"""Processes that are long enough at it to be caught in the middle: two seconds."""


def parent(plan, url):
    # A shell that starts the tests in the background would have it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open_store(url) as store:
        sys.exit(execute(plan, store, jobs=2, policy=Policy(retries=0)).exit_code)


@pytest.fixture
def launch(store):
    """Executes a plan in a process of its own; what is left of it ends with the test."""
    parents: list[multiprocessing.process.BaseProcess] = []

    def start(plan):
        # A fork has everything imported already, which takes seconds otherwise.
        process = multiprocessing.get_context("fork").Process(target=parent, args=(plan, store.url))
        process.start()
        parents.append(process)
        return process

    yield start
    for process in parents:
        process.kill()
        process.join()
    wait_until(lambda: not workers(store))


def exit_code(process, seconds):
    process.join(timeout=seconds)
    return process.exitcode


def trained_past(store, step, runs):
    """Whether so many runs are being trained and have that many steps behind them."""

    def check():
        running = store.runs.select(status=Status.RUNNING)
        return sum(run.step >= step for run in running) >= runs

    return check


def test_killed_runs_and_killed_parents_change_nothing(plan, store, launch, undisturbed):
    process = launch(plan(*SLOW, "seed=0,1"))
    wait_until(trained_past(store, 8, runs=2))
    killed, left = store.runs.select(status=Status.RUNNING)
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    wait_until(lambda: store.runs.select(ids=[killed.id])[0].status is Status.FAILED)
    process.kill()
    wait_until(lambda: not workers(store), seconds=15)

    failed, stopped = store.runs.select(ids=[killed.id, left.id])
    assert failed.error == "killed by signal 9 (SIGKILL)"
    assert stopped.status is Status.INTERRUPTED
    assert stopped.error == "the process that started it is gone"
    assert stopped.step >= 8
    assert "interrupted: the process that started it is gone" in log_of(stopped)

    outcome = execute(plan(*SLOW, "seed=0,1", "executor=debug"), store)
    assert (outcome.done, outcome.exit_code) == (2, 0)
    assert measured(store) == undisturbed


def test_ctrl_c_stops_everything_cleanly(plan, store, launch):
    process = launch(plan(*SLOW, "steps=200", "seed=0,1,2", "evaluation.every=0"))
    wait_until(trained_past(store, 7, runs=2))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    assert exit_code(process, seconds=15) == 130
    assert not workers(store)
    *stopped, never = store.runs.select(newest_first=False)
    assert len(stopped) == 2
    for run in stopped:
        assert run.status is Status.INTERRUPTED
        # Each has a checkpoint of the very step at which it stopped.
        assert store.checkpoints.select(run.id)[-1].step == run.step >= 7
    assert never.status is Status.PENDING


def test_a_second_request_kills_what_hangs(plan, store, launch):
    process = launch(plan(*SLOW, "backend.step_seconds=0.6", "backend.hang_at=3"))
    wait_until(trained_past(store, 2, runs=1))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(1)
    assert process.is_alive()
    os.kill(process.pid, signal.SIGTERM)
    assert exit_code(process, seconds=15) == 130
    [run] = store.runs.select()
    assert run.status is Status.INTERRUPTED
    assert run.error == "killed by signal 9 (SIGKILL) while stopping"
