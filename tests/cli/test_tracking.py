"""`advsweep export --to TRACKER`, and commands with `tracking=`, as a user has them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from advsweep.store import open_store
from advsweep.sweep.executors.slurm import SlurmExecutor
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.watch import watch_events

ENDLESS = """
import atexit, time
from pathlib import Path
from dataclasses import dataclass
from typing import ClassVar
from advsweep.sweep.tracking.base import Tracking

@dataclass(kw_only=True)
class Endless(Tracking):
    name: ClassVar[str] = "endless"
    def open(self, record):
        atexit.register(time.sleep, 1000)
        Path("asked").touch()
        time.sleep(1000)
"""
EVALUATION = ["evaluation.n=16", "evaluation.k=[1,8]", "evaluation.every=6"]


@pytest.fixture
def two(fake_folder, tmp_path, monkeypatch):
    """The finished sweep, in the test's folder; it was not tracked."""
    shutil.copytree(fake_folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.mark.security
@pytest.mark.usefixtures("two")
def test_a_store_chooses_no_destination(advsweep, tmp_path):
    tracking = {"name": "tensorboard", "directory": str(tmp_path / "theirs")}
    with open_store(str(tmp_path / "advsweep.db")) as store:
        store.sweeps.add("two", {"tracking": tracking})
    done = advsweep("export", "1", "--to", "tensorboard")
    assert (done.returncode, done.stderr) == (0, "tensorboard: 1 sent\n")
    assert not (tmp_path / "theirs").exists()


@pytest.mark.usefixtures("two")
def test_what_cannot_be_sent_is_exit_code_1(advsweep, tmp_path):
    (tmp_path / "events").write_text("a file, and no folder")
    done = advsweep("export", "1", "--to", "tensorboard", "--set", "directory=events")
    assert done.returncode == 1
    assert done.stderr.startswith("tensorboard: 1 failed\n  run 1 failed: ")


@pytest.mark.slow
@pytest.mark.usefixtures("two")
def test_ctrl_c_ends_it_whatever_the_tracker_waits_for(install, tmp_path):
    points = {"advsweep.trackings": {"endless": "endless_tracker:Endless"}}
    site = install("endless-tracker", points, endless_tracker=ENDLESS)
    # The tests may have been started where the signal is ignored.
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heeding}; from advsweep.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "export", "two", "--to", "endless"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(site), *sys.path[1:]])},
    )
    try:
        while not (tmp_path / "asked").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
    finally:
        process.kill()


def test_runs_in_a_queue_are_left_to_export(tmp_path, capsys):
    plan = make_plan(["backend=fake", "tracking=tensorboard"], name="queued")
    plan = dataclasses.replace(plan, executor=SlurmExecutor())
    said = []
    with (
        open_store(str(tmp_path / "advsweep.db")) as store,
        watch_events(plan, store, lambda event: None, said.append),
    ):
        pass
    assert "`advsweep export queued --to tensorboard` sends finished runs" in said[0]
