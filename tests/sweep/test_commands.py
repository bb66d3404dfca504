"""Sweeps whose runs are commands: planned, executed, killed, resumed and reported."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advsweep.backends.command import consent
from advsweep.errors import ConfigError
from advsweep.store import Failure, Status, Store, open_store
from advsweep.sweep.planning.plan import Plan, make_plan
from advsweep.sweep.planning.resume import plan_again
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute
from tests.backends.command.conftest import TEMPLATE, processes_with

MakeTemplate = Callable[..., Path]

BASE: dict[str, Any] = {
    **TEMPLATE,
    "parameters": {"mode": "", "delay": 0},
    "evaluations": {"file": "{directory}/evaluations.jsonl", "task": "sums"},
}


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTemplate:
    monkeypatch.setenv(consent.COMMANDS, "{}")

    def make(name: str = "mine.yaml", **changes: Any) -> Path:
        content = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
        file = tmp_path / name
        file.write_text(json.dumps(content))  # JSON is YAML
        return file

    return make


def planned(file: Path, *overrides: str, executor: str = "debug") -> Plan:
    fixed = ["backend=command", f"backend.template={file}", f"executor={executor}", "steps=6"]
    return make_plan([*fixed, *overrides])


@pytest.mark.slow
def test_a_sweep_of_a_command_is_reported(
    template: MakeTemplate,
    store: Store,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from advsweep.cli import main as cli

    file = template()
    texts = ["backend=command", f"backend.template={file}", "steps=6", "estimator=grpo,dr_grpo"]
    plan = planned(file, "estimator=grpo,dr_grpo", "seed=0,1")
    assert [p.run.seed for p in plan.runs] == [0, 1, 0, 1]
    assert not plan.warnings
    outcome = execute(plan, store, jobs=1)
    assert outcome.done == 4
    ids = list(outcome.run_ids)
    assert set(store.metrics.series(ids, "reward/mean")[ids[0]][0].tolist()) == {1, 2, 3, 4, 5, 6}
    [evaluation] = [e for e in store.evaluations.select([ids[0]]) if e.step == 6]
    assert (evaluation.task, evaluation.n.tolist(), evaluation.c.tolist()) == (
        "sums",
        [4, 4],
        [1, 1],
    )
    assert [c.step for c in store.checkpoints.select(ids[0])] == [2, 4, 6]
    columns = ["--columns", "reward/mean,collapse/acr,pass@1"]
    for more in ([], columns):
        monkeypatch.setattr(sys, "argv", ["advsweep", "report", "--store", store.url, *more])
        with pytest.raises(SystemExit) as ended:
            cli()
        assert not ended.value.code
        shown = capsys.readouterr().out
        assert "dr_grpo" in shown
        assert "nan" not in shown
    # 1 of 4 samples of each problem is right after step 6.
    assert shown.count("0.25") >= 2
    for command in (["eval", str(ids[0])], ["export", str(ids[0])], ["weights", str(ids[0])]):
        monkeypatch.setattr(sys, "argv", ["advsweep", *command, "--store", store.url])
        with pytest.raises(SystemExit) as ended:
            cli()
        assert ended.value.code == 2
        assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["advsweep", "sweep", "--dry-run", *texts])
    with pytest.raises(SystemExit) as ended:
        cli()
    assert not ended.value.code
    # Done before: nothing is started again.
    assert execute(plan, store, jobs=1).skipped == 4


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optimizer.lr=1e-5", r"optimizer\.lr: expected a key that reaches the command"),
        ("task=gsm8k", "task: expected a key that reaches the command"),
        ("estimator.delta=0.5", r"estimator\.delta"),
        ("backend.parameters.mod=x", "did you mean 'mode'"),
        ("backend.content.command=x", "got its content"),
    ],
)
def test_what_reaches_nothing_is_refused(template: MakeTemplate, override: str, words: str) -> None:
    estimator = "estimator=asym_grpo"
    with pytest.raises(ConfigError, match=words):
        planned(template(), estimator, override)


def test_a_template_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"backend\.template: expected a file"):
        make_plan(["backend=command"])
    with pytest.raises(ConfigError, match="one of torchrun, trl_script, verl"):
        make_plan(["backend=command", "backend.template=missing.yaml"])


@pytest.mark.slow
def test_failures_have_classes(template: MakeTemplate, store: Store) -> None:
    modes = {"exits": Failure.ERROR, "memory": Failure.OOM, "killed": Failure.KILLED}
    plan = planned(template(), f"backend.parameters.mode={','.join(modes)}")
    outcome = execute(plan, store, jobs=1, policy=Policy(retries=0))
    records = store.runs.select(ids=list(outcome.run_ids))
    found = {r.config["backend"]["parameters"]["mode"]: r.failure for r in records}
    assert found == modes


def test_a_restarted_run_needs_the_store_to_be_trusted(
    template: MakeTemplate, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = execute(
        planned(template(), "backend.parameters.mode=exits"),
        store,
        jobs=1,
        policy=Policy(retries=0),
    )
    monkeypatch.setenv(consent.COMMANDS, "{}")
    again = plan_again(store.runs.select(ids=list(outcome.run_ids)))
    with pytest.raises(ConfigError, match="--trust-store"):
        again.check()
    consent.allow_stored_templates()
    again.check()


def test_an_early_stop_ends_the_command(template: MakeTemplate, store: Store) -> None:
    """The rule stops a run whose first three steps had over 0.01 collapsed groups."""
    plan = planned(
        template(),
        *("backend.parameters.delay=0.2", "stopping=acr", "steps=40"),
        *("stopping.first=3", "stopping.threshold=0.01", "stopping.runs=0"),
    )
    outcome = execute(plan, store, jobs=1)
    assert list(outcome.pruned) == list(outcome.run_ids)
    [record] = store.runs.select(ids=list(outcome.run_ids))
    assert record.status is Status.PRUNED
    assert record.step < 40


def parent(file: Path, overrides: tuple[str, ...], url: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    plan = planned(file, *overrides, executor="local")
    with open_store(url) as store:
        sys.exit(execute(plan, store, jobs=2, policy=Policy(retries=0)).exit_code)


def commands(store: Store) -> list[int]:
    """The living processes that write below the folder of runs."""
    return processes_with(str(store.runs_directory), "trainer.py")


def curves(store: Store) -> dict[tuple[str, int], dict[str, list[list[float]]]]:
    found = {}
    for record in store.runs.select():
        names = ("reward/mean", "collapse/acr", "pass@1")
        own = {name: store.metrics.series([record.id], name)[record.id] for name in names}
        found[record.estimator, record.seed] = {
            name: [steps.tolist(), values.tolist()] for name, (steps, values) in own.items()
        }
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_sweep_goes_on_as_if_nothing_had_been(
    template: MakeTemplate, store: Store, tmp_path: Path, how: signal.Signals
) -> None:
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
    os.kill(process.pid, how)
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
        outcome = execute(planned(file, *wanted[:3], "backend.parameters.delay=0.2"), whole, jobs=1)
        assert outcome.done == 4
        assert curves(store) == curves(whole)
