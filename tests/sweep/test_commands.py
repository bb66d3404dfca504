"""Sweeps whose runs are commands: planned, executed, killed, resumed and reported."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from typing import Any

import pytest

from advsweep.backends.command import template as consent
from advsweep.errors import ConfigError
from advsweep.store import Status, open_store
from advsweep.sweep.executors.debug import DebugExecutor
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.planning.resume import plan_again
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.pull import pull_runs
from advsweep.sweep.scheduler.runs import schedule_runs
from tests.backends.command.conftest import TEMPLATE, TRAINER, processes_with

BASE: dict[str, Any] = {
    **TEMPLATE,
    "parameters": {"mode": "", "delay": 0},
    "evaluations": {"file": "{directory}/evaluations.jsonl", "task": "sums"},
}


@pytest.fixture
def template(tmp_path, monkeypatch):
    monkeypatch.setenv(consent.COMMANDS, "{}")

    def make(name="mine.yaml", **changes):
        content = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
        file = tmp_path / name
        file.write_text(json.dumps(content))  # JSON is YAML
        return file

    return make


def planned(file, *overrides, executor="debug"):
    fixed = ["backend=command", f"backend.template={file}", f"executor={executor}", "steps=6"]
    return make_plan([*fixed, *overrides])


@pytest.mark.security
def test_a_restarted_run_needs_the_store_to_be_trusted(template, store, monkeypatch):
    result = execute(
        planned(template(), "backend.parameters.mode=exits"),
        store,
        jobs=1,
        policy=Policy(retries=0),
    )
    monkeypatch.setenv(consent.COMMANDS, "{}")
    records = store.runs.select(ids=list(result.run_ids))
    # Already to compare its program with the planned one, files would be read that a store names.
    with pytest.raises(ConfigError, match="--trust-store"):
        plan_again(records)
    consent.allow_stored_templates()
    plan_again(records).check()


def test_a_worker_without_the_program_ends_and_leaves_the_runs(
    template, store, monkeypatch, tmp_path
):
    """What one machine lacks is no fault of the runs: a machine that has it trains them later."""
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.chdir(there)
    plan = planned(template(), "seed=0,1")
    schedule_runs(plan, store, force=False)
    monkeypatch.chdir(tmp_path)
    there.rename(tmp_path / "elsewhere")
    consent.allow_stored_templates()
    message = f"run 1: its command starts in {there}, and this machine has no such folder"
    with pytest.raises(ConfigError, match=message):
        pull_runs(store, None, DebugExecutor())
    assert [run.status for run in store.runs.select()] == [Status.PENDING] * 2
    (tmp_path / "elsewhere").rename(there)
    assert pull_runs(store, None, DebugExecutor()).done == 2


def test_four_runs_survive_a_worker_in_the_wrong_folder_and_are_trained_in_the_right_one(
    template, store, monkeypatch, tmp_path
):
    """The programs of a sweep, on a machine that has them elsewhere."""
    there = tmp_path / "there"
    there.mkdir()
    shutil.copy(TRAINER, there / "trainer.py")
    file = template(
        "there/mine.yaml",
        command=[*TEMPLATE["command"][:3], "trainer.py", *TEMPLATE["command"][4:]],
    )
    monkeypatch.chdir(there)
    schedule_runs(planned(file, "seed=0,1,2,3"), store, force=False)
    monkeypatch.setenv(consent.COMMANDS, "{}")
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    there.rename(elsewhere)
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder, message in (("", "or name its folder with --folder DIR"), (empty, "that was plan")):
        consent.allow_stored_templates(str(folder))
        with pytest.raises(ConfigError, match=message):
            pull_runs(store, None, DebugExecutor())
        assert [run.status for run in store.runs.select()] == [Status.PENDING] * 4
    consent.allow_stored_templates(str(elsewhere))
    assert pull_runs(store, None, DebugExecutor()).done == 4


def test_a_worker_without_the_first_program_leaves_the_runs(template, store):
    file = template(command=["no-such-program", *TEMPLATE["command"][1:]])
    schedule_runs(planned(file, "seed=0"), store, force=False)
    with pytest.raises(ConfigError, match="starts the program 'no-such-program', and this machi"):
        pull_runs(store, None, DebugExecutor())
    assert [run.status for run in store.runs.select()] == [Status.PENDING]


def test_an_early_stop_ends_the_command(template, store):
    """The rule stops a run whose first three steps had over 0.01 collapsed groups."""
    plan = planned(
        template(),
        *("backend.parameters.delay=0.2", "stopping=acr", "steps=40"),
        *("stopping.first=3", "stopping.threshold=0.01"),
    )
    result = execute(plan, store, jobs=1)
    assert list(result.pruned) == list(result.run_ids)
    [record] = store.runs.select(ids=list(result.run_ids))
    assert record.status is Status.PRUNED
    assert record.step < 40


def parent(file, overrides, url):
    plan = planned(file, *overrides, executor="local")
    with open_store(url) as store:
        sys.exit(execute(plan, store, jobs=2, policy=Policy(retries=0)).exit_code)


def commands(store):
    """The living processes that write below the folder of runs."""
    return processes_with(str(store.runs_directory), "trainer.py")


def curves(store):
    found = {}
    for record in store.runs.select():
        names = ("reward/mean", "collapse/acr", "pass@1")
        own = {name: store.metrics.series([record.id], name)[record.id] for name in names}
        found[record.estimator, record.seed] = {
            name: [steps.tolist(), values.tolist()] for name, (steps, values) in own.items()
        }
    return found


@pytest.mark.slow
def test_a_killed_sweep_goes_on_as_if_nothing_had_been(template, store, tmp_path):
    file = template()
    wanted = ("estimator=grpo,dr_grpo", "seed=0,1", "steps=12", "backend.parameters.delay=0.2")
    context = multiprocessing.get_context("fork")
    process = context.Process(target=parent, args=(file, wanted, store.url))
    process.start()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if any(record.step >= 3 for record in store.runs.select()):
            break
        time.sleep(0.1)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    while commands(store) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not commands(store)
    assert not all(record.status is Status.DONE for record in store.runs.select())
    again = context.Process(target=parent, args=(file, wanted, store.url))
    again.start()
    again.join(200)
    assert again.exitcode == 0
    logs = [(r.directory / "log.txt").read_text() for r in store.runs.select()]
    assert any("resuming after step" in log for log in logs)
    with open_store(str(tmp_path / "whole.db")) as whole:
        result = execute(planned(file, *wanted[:3], "backend.parameters.delay=0.2"), whole, jobs=1)
        assert result.done == 4
        assert curves(store) == curves(whole)
