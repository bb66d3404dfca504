"""A sweep whose tracker works, hangs or fails: it ends complete, and says so once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from advsweep.store import RunRecord, Status
from advsweep.sweep.events import EventKind, RunEvent
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.tracking.base import Rows, Track, Tracking
from advsweep.sweep.tracking.client import sweep_trackings, tracker_client

LOGGED: list[tuple[int, str]] = []
RELEASED = threading.Event()


@dataclass(kw_only=True)
class Odd(Tracking):
    """A tracker that works, or does not."""

    name: ClassVar[str] = "odd"

    how: str = "works"

    def open(self, record: RunRecord) -> Track:
        if self.how == "hangs":
            RELEASED.wait()
        if self.how == "raises":
            raise RuntimeError("no server")
        if self.how == "exits":
            raise SystemExit(3)
        return OddTrack(record.id)


class OddTrack(Track):
    def __init__(self, run: int) -> None:
        self._run = run

    def log(self, rows: Rows) -> None:
        LOGGED.extend((self._run, str(step)) for step, _ in rows)

    def close(self, record: RunRecord, summaries: Mapping[str, float]) -> None:
        LOGGED.append((self._run, record.status.value))


@pytest.fixture(autouse=True)
def _fresh():
    LOGGED.clear()
    RELEASED.clear()
    yield
    RELEASED.set()


def feed_with(plan, store, tracking):
    """The outcome of the plan, and what was said."""
    said: list[str] = []
    with tracker_client(store, lambda run: [tracking], said.append) as feed:
        outcome = execute(plan, store, on_event=feed)
    return outcome, [line for line in said if "sending what is left" not in line]


def test_a_tracker_gets_every_step_and_every_end(plan, store):
    outcome, said = feed_with(plan("seed=0,1", name="two"), store, Odd(patience=200))
    assert (outcome.done, said) == (2, [])
    for run_id in outcome.run_ids:
        own = [what for run, what in LOGGED if run == run_id]
        assert own == [*map(str, range(21)), "done"]


@pytest.mark.parametrize(
    ("how", "patience", "words"),
    [
        ("hangs", 0.5, "not all was sent within 0.5 s"),
        ("raises", 200, "RuntimeError: no server"),
        ("exits", 200, "SystemExit: 3"),
    ],
)
def test_a_tracker_that_hangs_or_fails_leaves_the_sweep_alone(plan, store, how, patience, words):
    tracking = Odd(how=how, patience=patience)
    outcome, said = feed_with(plan("seed=0,1", name="two"), store, tracking)
    assert outcome.done == 2
    [line] = said
    assert words in line
    assert f"2 of 2 runs are left: `advsweep export two --to odd --set how={how}" in line


def test_a_run_that_is_retried_goes_on(plan, store):
    [run_id] = execute(plan("backend.fail_at=15"), store).run_ids
    [run] = store.runs.select(ids=[run_id])
    assert run.status is Status.FAILED
    with tracker_client(store, lambda run: [Odd(patience=200)], lambda line: None) as feed:
        for _ in range(2):
            feed(RunEvent(EventKind.STARTED, run))
            feed(RunEvent(EventKind.FAILED, run))
    assert LOGGED.count((run_id, "failed")) == 1


PLUGIN = """
import atexit, threading
from dataclasses import dataclass
from typing import ClassVar
from advsweep.sweep.tracking.base import Tracking

@dataclass(kw_only=True)
class Endless(Tracking):
    name: ClassVar[str] = "endless"
    def open(self, record):
        atexit.register(threading.Event().wait)
        threading.Event().wait()
"""


def test_the_exit_of_a_command_waits_for_no_library(install, tmp_path, monkeypatch):
    points = {"advsweep.trackings": {"endless": "endless_tracker:Endless"}}
    site = install("endless-tracker", points, endless_tracker=PLUGIN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *sys.path[1:]]))
    program = "from advsweep.cli import main; main()"
    arguments = ["run", "backend=fake", "steps=2", "tracking=endless", "tracking.patience=0.5"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, "--format=json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "not all was sent within 0.5 s" in done.stderr


def test_a_store_that_is_not_trusted_chooses_no_tracker(plan, store):
    [run_id] = execute(plan("tracking=wandb", "tracking.entity=them", name="shown"), store).run_ids
    [run] = store.runs.select(ids=[run_id])
    said: list[str] = []
    trackings = sweep_trackings(store, said.append, trusted=False)
    assert trackings(run) == trackings(run) == []
    [line] = said
    assert "a store does not choose trackers" in line


@pytest.mark.slow
def test_what_a_sweep_was_last_started_with_is_what_counts(plan, store):
    planned = plan("tracking=tensorboard", "tracking.directory=there", name="shown")
    [run_id] = execute(planned, store).run_ids
    execute(plan(name="plain"), store)
    store.sweeps.add("strange", {"tracking": {"name": "nowhere"}})
    store.runs.add([_again(store, run_id)], "strange")
    [run] = store.runs.select(ids=[run_id])
    assert run.sweeps == ("plain", "shown", "strange")
    said: list[str] = []
    trackings = sweep_trackings(store, said.append, trusted=True)
    assert trackings(run) == trackings(run) == [planned.tracking]
    chosen, line = said
    assert chosen.startswith("the store chooses tracking for sweep shown: ")
    assert '"directory": "there"' in chosen
    assert line.startswith("sweep strange is not tracked here: tracking: no tracking is called")
    execute(plan(name="shown"), store)
    assert sweep_trackings(store, said.append, trusted=True)(run) == []


def _again(store, run_id):
    from advsweep.store import NewRun

    [run] = store.runs.select(ids=[run_id])
    names = ("identity", "config_hash", "seed", "config", "steps", "estimator", "backend")
    return NewRun(**{name: getattr(run, name) for name in names})
