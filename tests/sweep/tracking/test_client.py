"""A sweep whose tracker works, hangs, fails or dies: it ends complete, and says so once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from advsweep.store import Status
from advsweep.sweep.events import EventKind, RunEvent
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.tracking.base import Tracking
from advsweep.sweep.tracking.client import LOG, sweep_trackings, tracker_client

GROUP = "advsweep.trackings"
PLUGIN = """
import json, os, signal, time
from dataclasses import dataclass
from typing import ClassVar
from advsweep.sweep.tracking.base import Track, Tracking

@dataclass(kw_only=True)
class Odd(Tracking):
    name: ClassVar[str] = "odd"
    how: str = "works"
    def destination(self, runs): return self.how
    def open(self, record, sent):
        if self.how == "sleeps": time.sleep(1000)
        if self.how == "raises": raise RuntimeError("no server")
        if self.how == "exits": raise SystemExit(3)
        if self.how == "dies": os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "stops": os.kill(os.getpid(), signal.SIGSTOP)
        return OddTrack(record)

class OddTrack(Track):
    def __init__(self, record):
        print("what libraries print")
        self.file = open("odd.txt", "a")
        self.run = record.id
    def log(self, step, values): print(self.run, step, sorted(values), file=self.file)
    def close(self, record, summaries):
        print(self.run, record.status.value, file=self.file)
        self.file.close()
"""


@dataclass(kw_only=True)
class Odd(Tracking):
    """What this process knows of the plugin, which the other one loads."""

    name: ClassVar[str] = "odd"

    how: str = "works"

    def destination(self, runs: Path) -> str:
        raise AssertionError("nothing is sent from here")

    def open(self, record: Any, sent: Any) -> Any:
        raise AssertionError("nothing is sent from here")


@pytest.fixture
def plugin(install, monkeypatch, tmp_path):
    """Has the processes that feed trackers find the plugin; they write into the test's folder."""
    site = install("odd-tracker", {GROUP: {"odd": "odd_tracker:Odd"}}, odd_tracker=PLUGIN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *sys.path[1:]]))
    monkeypatch.chdir(tmp_path)


def feed_with(plan, store, tracking):
    """The outcome of the plan, and what was said."""
    said: list[str] = []
    with tracker_client(store, lambda run: [tracking], said.append) as feed:
        outcome = execute(plan, store, on_event=feed)
    return outcome, [line for line in said if "sending what is left" not in line]


@pytest.mark.usefixtures("plugin")
def test_a_tracker_gets_every_step_and_every_end(plan, store, tmp_path):
    # Longer than a loaded machine takes to start the process.
    outcome, said = feed_with(plan("seed=0,1", name="two"), store, Odd(patience=200))
    assert (outcome.done, said) == (2, [])
    lines = (tmp_path / "odd.txt").read_text().splitlines()
    for run_id in outcome.run_ids:
        own = [line.split()[1] for line in lines if line.split()[0] == str(run_id)]
        assert own == [*map(str, range(21)), "done"]
    assert (store.runs_directory / LOG).read_text() == "what libraries print\n" * 2


@pytest.mark.parametrize(
    ("how", "patience", "words"),
    [
        ("sleeps", 0.5, ["not all was sent within 0.5 s", "1 of 1 runs are left"]),
        ("stops", 0.5, ["not all was sent within 0.5 s", "1 of 1 runs are left"]),
        ("dies", 200, ["its process ended with signal 9", "1 of 1 runs are left"]),
        ("exits", 200, ["its process ended with exit code 3", "1 of 1 runs are left"]),
    ],
)
@pytest.mark.usefixtures("plugin")
@pytest.mark.slow
def test_a_tracker_that_hangs_or_dies_leaves_the_sweep_alone(plan, store, how, patience, words):
    outcome, said = feed_with(plan(name="one"), store, Odd(how=how, patience=patience))
    assert outcome.done == 1
    [line] = said
    assert all(word in line for word in [*words, f"`advsweep sync odd one -o how={how}"]), line


@pytest.mark.usefixtures("plugin")
def test_a_tracker_that_raises_is_spoken_of_once(plan, store):
    outcome, said = feed_with(plan(name="one"), store, Odd(how="raises", patience=200))
    assert outcome.done == 1
    failed, left = said
    assert "odd: RuntimeError: no server; the runs go on" in failed
    assert "not all could be sent; 1 of 1 runs are left" in left


def test_a_process_that_cannot_be_started_is_spoken_of_once(plan, store, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    outcome, said = feed_with(plan(name="one"), store, Odd())
    assert outcome.done == 1
    [line] = said
    assert "its process could not be started" in line


@pytest.mark.usefixtures("plugin")
@pytest.mark.slow
def test_a_run_that_is_retried_goes_on(plan, store, tmp_path):
    """Its process is started, and ends, twice."""
    [run_id] = execute(plan("backend.fail_at=15"), store).run_ids
    [run] = store.runs.select(ids=[run_id])
    assert run.status is Status.FAILED
    with tracker_client(store, lambda run: [Odd(patience=200)], lambda line: None) as feed:
        for _ in range(2):
            feed(RunEvent(EventKind.STARTED, run))
            feed(RunEvent(EventKind.FAILED, run))
    lines = (tmp_path / "odd.txt").read_text().split("\n")
    assert lines.count(f"{run_id} failed") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("plugin")
def test_a_process_that_lost_its_parent_ends_whatever_its_tracker_does(plan, store):
    [run_id] = execute(plan(), store).run_ids
    process = subprocess.Popen(
        [sys.executable, "-m", "advsweep.sweep.tracking.process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"ADVSWEEP_STORE": store.url},
    )
    order = {"run": run_id, "tracking": Odd(how="sleeps", patience=0).plain()}
    process.communicate(json.dumps(order).encode() + b"\n", timeout=240)
    assert process.returncode == -signal.SIGALRM


@pytest.mark.slow
def test_a_full_pipe_is_not_waited_for(plan, store, monkeypatch, tmp_path):
    """The process reads nothing, and there is more to tell it than a pipe holds."""
    deaf = tmp_path / "deaf"
    deaf.write_text("#!/bin/sh\nexec sleep 1000\n")
    deaf.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(deaf))
    [run_id] = execute(plan(), store).run_ids
    [run] = store.runs.select(ids=[run_id])
    said: list[str] = []
    with tracker_client(store, lambda run: [Odd(patience=0.2)], said.append) as feed:
        for _ in range(3000):
            feed(RunEvent(EventKind.STARTED, run))
            feed(RunEvent(EventKind.DONE, run))
    [line] = said
    assert "not all was sent within 0.2 s" in line


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
