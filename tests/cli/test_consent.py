"""Consent to run programs: given by the command line or the environment, by nothing that is stored.

The runs of these tests verify with code on the fake backend; a program that was run would have
connected to a port.
"""

from __future__ import annotations

import json
import socket

import pytest
from typer.testing import CliRunner, Result

from advsweep.cli.app import app
from advsweep.errors import ConfigError
from advsweep.store import Status, open_store
from advsweep.sweep.executors.processes import remote_environment
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.scheduler.runs import schedule_runs
from advsweep.sweep.worker.main import work_on
from advsweep.tasks.verifiers.base import RUN_CODE, run_code_allowed

pytestmark = pytest.mark.security

REFUSED = "--run-code or ADVSWEEP_RUN_CODE=1 allows it"

FAKE = ("backend=fake", "steps=2", "evaluation.n=2", "evaluation.k=[1]", "prompts_per_step=2")


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0), backlog=64) as opened:
        opened.setblocking(False)
        yield opened


def has_run(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.fixture
def task(tmp_path, listener):
    """Overrides for programs whose known solutions connect to a port when they are run."""
    address = listener.getsockname()
    connect = f"import socket\nsocket.create_connection({address!r}, 5).close()"
    program = f"{connect}\ndef f(x):\n    return x"
    rows = [
        {"question": f"{i}?", "tests": [f"assert f({i}) == {i}"], "code": program} for i in "123"
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {
        "data": tmp_path / "data.jsonl",
        "tests_column": "tests",
        "program_column": "code",
        "prompt": "code",
        "held_out": 1,
        "deadline": 60,
        "workers": 1,
        "verifier": "code",
        "verifier.isolation": "limits",
        "verifier.seconds": 30,
    }
    return ("task=file", *(f"task.{key}={value}" for key, value in fields.items()))


@pytest.fixture
def store(tmp_path, task):
    """A store with a pending run whose config allows programs, as in earlier versions."""
    plan = make_plan([*FAKE, *task, "seed=0"], name="old")
    for planned in plan.runs:
        planned.config["task"]["verifier"] |= {"enabled": True, "slow_is_wrong": False}
    with open_store(str(tmp_path / "old.db")) as store:
        schedule_runs(plan, store, force=False)
        yield store


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refuses(result: Result) -> bool:
    return isinstance(result.exception, ConfigError) and REFUSED in str(result.exception)


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_plan_is_refused_before_a_store_is_made(command, task, tmp_path):
    assert refuses(call(command, *FAKE, *task, "--store", tmp_path / "new.db"))
    assert not (tmp_path / "new.db").exists()


def test_what_a_store_says_is_no_consent(store, listener):
    assert store.runs.select()[0].config["task"]["verifier"]["enabled"]
    for command in (["retry", 1], ["retry", "old"], ["worker"], ["worker", "old"], ["eval", 1]):
        assert refuses(call(*command, "--store", store.url)), command
    assert store.runs.select()[0].status is Status.PENDING
    assert not has_run(listener)


def test_the_process_of_a_run_refuses_for_itself(store):
    assert work_on(store, [store.runs.select()[0].id], [], None) != 0
    [record] = store.runs.select()
    assert record.status is Status.FAILED
    assert REFUSED in (record.error or "")


@pytest.mark.slow
def test_the_command_line_gives_consent_to_the_processes_that_it_starts(store, listener):
    done = call("retry", 1, "--run-code", "--store", store.url)
    assert done.exit_code == 0, done.output
    assert store.runs.select()[0].status is Status.DONE
    assert has_run(listener)
    assert call("report", "old", "--store", store.url).exit_code == 0


def test_what_is_stored_can_be_looked_at(store):
    for command in (["show", 1], ["ls"], ["status"]):
        done = call(*command, "--store", store.url)
        assert done.exit_code == 0, done.output
    shown = json.loads(call("show", 1, "--format", "json", "--store", store.url).stdout)
    assert shown["config"]["task"]["verifier"]["enabled"] is True


def test_a_plan_can_be_looked_at_without_consent(task, tmp_path):
    done = call("sweep", "--dry-run", *FAKE, *task, "--store", tmp_path / "new.db")
    assert done.exit_code == 0, done.output
    assert REFUSED in done.stderr


def test_the_earlier_option_names_the_new_one(task):
    for command in (
        ["run", *FAKE, *task, "task.verifier.enabled=true"],
        ["eval", "--model", "m", "--task", "mbpp", "--set", "task.verifier.enabled=true"],
        ["describe", "mbpp", "--set", "verifier.enabled=false"],
    ):
        error = call(*command).exception
        assert isinstance(error, ConfigError)
        assert "verifier.enabled" in str(error)
        assert "--run-code" in str(error)


@pytest.mark.slow
def test_a_sweep_file_that_allows_programs_gives_no_consent(task, tmp_path):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nsweep:\n  common: {task.verifier.enabled: true}\n  seeds: 1\n"
    )
    arguments = ("+experiment=mine", "--config-dir", tmp_path / "conf", *FAKE, *task)
    assert refuses(call("sweep", *arguments, "--store", tmp_path / "new.db"))
    plan = make_plan([*FAKE, *task, "+experiment=mine"], config_dirs=[tmp_path / "conf"])
    assert "enabled" not in plan.runs[0].config["task"]["verifier"]


@pytest.mark.parametrize("command", ["run", "sweep", "worker", "retry", "eval", "select"])
def test_every_command_that_verifies_takes_consent(command):
    shown = call(command, "--help").output
    assert "--run-code " in shown


def test_consent_is_of_this_process_and_of_the_jobs_that_it_submits(monkeypatch):
    assert remote_environment(1, "sqlite://").get(RUN_CODE) != "1"
    call("run", "--run-code", "no_such_key=1")
    assert run_code_allowed()
    assert remote_environment(1, "sqlite://")[RUN_CODE] == "1"
    monkeypatch.setenv(RUN_CODE, "true")
    assert not run_code_allowed()
