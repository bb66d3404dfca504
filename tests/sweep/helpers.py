"""What tests of running sweeps share: what was measured, who is alive, and waiting."""

from __future__ import annotations

import os
import signal
import time

import advsweep_fake as fake

from advsweep.store.owners import process_started
from advsweep.sweep.events import RunEvent
from advsweep.sweep.scheduler.execute import execute


def points_of(store, run_id):
    """What a run measured; times differ from one training to the next."""
    return [p for p in store.metrics.points(run_id) if not p[0].startswith(("time/", "memory/"))]


def measured(store):
    """What the run of each seed measured."""
    return {run.seed: points_of(store, run.id) for run in store.runs.select()}


def kinds(events):
    return [event.kind.value for event in events if isinstance(event, RunEvent)]


def run(plan, store, **options):
    """The result of executing a plan, and its events."""
    events = []
    return execute(plan, store, on_event=events.append, **options), events


def in_step(monkeypatch, step, happens, seed=0):
    """Makes something happen at the start of a step of one seed, once."""
    plain, once = fake._Trainer.step, iter([True])

    def disturbed(trainer, now):
        if (trainer._run.seed, now) == (seed, step) and next(once, False):
            happens()
        return plain(trainer, now)

    monkeypatch.setattr(fake._Trainer, "step", disturbed)


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def workers(store):
    """The processes that have, or had, a run and are still there."""
    pids = [run.pid for run in store.runs.select() if run.pid not in (None, os.getpid())]
    return [pid for pid in pids if pid is not None and process_started(pid) is not None]


def log_of(run):
    return (run.directory / "log.txt").read_text(encoding="utf-8")
