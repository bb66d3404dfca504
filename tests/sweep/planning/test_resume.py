"""What a store keeps of how runs were to be executed, and changes to that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advsweep.errors import ConfigError
from advsweep.store import Store
from advsweep.sweep.executors.debug import DebugExecutor
from advsweep.sweep.executors.local import LocalExecutor
from advsweep.sweep.planning.resume import (
    DEFAULTS,
    allowed_settings,
    changed_settings,
    plan_again,
    recorded_settings,
)
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.runs import schedule_runs


def test_runs_are_started_again_with_the_settings_of_their_sweep(plan, store: Store) -> None:
    execute(plan("seed=0,1", "resources.cpus=2", "backend.fail_at=7", name="two"), store)
    records = store.runs.select()
    settings = recorded_settings(records[0], store.sweeps.select())
    again = plan_again(records, settings)
    assert isinstance(again.executor, DebugExecutor)
    assert again.executor.resources.cpus == 2
    assert again.stopping is None
    assert list(execute(again, store).failed) == [2, 1]


def test_of_several_sweeps_the_last_counts(plan, store: Store) -> None:
    for cpus, name in ((2, "a"), (3, "b")):
        schedule_runs(plan(f"resources.cpus={cpus}", name=name), store, force=False)
    [run] = store.runs.select()
    sweeps = store.sweeps.select()
    assert recorded_settings(run, sweeps)["resources"]["cpus"] == 3
    assert recorded_settings(run, sweeps[:1])["resources"]["cpus"] == 2
    # One of an earlier version has none recorded, and the run may be of none at all.
    old = [replace(sweep, spec={"overrides": []}) for sweep in sweeps]
    assert recorded_settings(run, old) == recorded_settings(run, []) == DEFAULTS


def test_the_same_sweep_with_other_settings_is_recorded_with_those(plan, store: Store) -> None:
    for cpus in (2, 3):
        schedule_runs(plan(f"resources.cpus={cpus}", name="a"), store, force=False)
    settings = recorded_settings(store.runs.select()[0], store.sweeps.select())
    assert settings["resources"]["cpus"] == 3


def test_settings_are_changed_as_a_command_line_says() -> None:
    recorded = {"executor": {"name": "slurm", "minutes": 60}, "resources": {"name": "default"}}
    changed = changed_settings(recorded, ["executor.partition=gpu", "resources.gpus=2"])
    assert changed["executor"] == {"name": "slurm", "minutes": 60, "partition": "gpu"}
    assert changed["resources"] == {"name": "default", "gpus": 2}
    other = changed_settings(recorded, ["executor=local", "executor.jobs=2"])
    assert other["executor"] == {"name": "local", "jobs": 2}
    assert recorded["executor"] == {"name": "slurm", "minutes": 60}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "estimator=fade",
            "estimator=fade: expected a key of executor or resources or stopping or tr",
        ),
        ("executor=slrm", "no executor is called 'slrm'; did you mean 'slurm'"),
        ("executor.name=ray", "choose by executor=NAME"),
        ("~executor", "expected executor=VALUE with one value"),
        ("resources.cpus=two", "resources.cpus: expected an int"),
        ("executor.minutes=5", "executor.minutes: local has no parameter 'minutes'"),
    ],
)
def test_changes_that_do_not_fit_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        plan_again([], changed_settings(DEFAULTS, [override]))


def test_a_plan_of_runs_again_changes_no_rule(plan, store: Store) -> None:
    sweep = plan("stopping=median", "backend.fail_at=3", name="ruled")
    execute(sweep, store)
    execute(plan_again(store.runs.select(), {**DEFAULTS, "executor": {"name": "debug"}}), store)
    assert store.runs.select()[0].stopping == sweep.stopping.rule()


SLURM = {"name": "slurm", "cluster": "local", "setup": ["touch owned"]}
RAY = {"name": "ray", "address": "them:6379"}
WANDB = {"name": "wandb", "entity": "them"}


@pytest.mark.security
@pytest.mark.parametrize("executor", [SLURM, RAY, {"name": "gone"}])
def test_a_store_does_not_choose_an_executor_or_a_tracker(executor) -> None:
    recorded = {**DEFAULTS, "executor": executor, "tracking": WANDB}
    with pytest.raises(ConfigError, match=r"store does not choose .* or --trust-store"):
        allowed_settings(recorded, ["executor.jobs=2"], trusted=False)
    name = executor["name"]
    allowed = allowed_settings(recorded, [f"executor={name}"], trusted=False)
    assert (allowed["executor"], allowed["tracking"]) == (DEFAULTS["executor"], None)
    assert allowed_settings(recorded, [], trusted=True) == recorded


def test_nothing_of_a_stored_executor_gets_into_a_chosen_one() -> None:
    allowed = allowed_settings({**DEFAULTS, "executor": SLURM}, ["executor=slurm"], trusted=False)
    changed = changed_settings(allowed, ["executor=slurm", "executor.partition=gpu"])
    assert changed["executor"] == {"name": "slurm", "partition": "gpu"}
    local = {**DEFAULTS, "executor": {"name": "local", "jobs": 900, "preload": True}}
    assert allowed_settings(local, [], trusted=False)["executor"] == {"name": "local"}


@pytest.mark.parametrize(
    "spec",
    [
        {"settings": {"resources": {"name": "default", "cpus": "${oc.env:SECRET}"}}},
        {"settings": {"resources": {"name": "default", "${oc.env:SECRET}": 1}}},
        {"settings": {"executor": {"name": "slurm", "setup": ["${oc.env:SECRET}"]}}},
        {"settings": {"executor": "slurm"}},
        {"settings": ["executor"]},
        {"tracking": {"name": "wandb", "project": "${oc.env:SECRET}"}},
        {"tracking": 7},
    ],
)
def test_stored_settings_that_are_no_plain_nodes_are_refused(
    plan, store: Store, monkeypatch, spec
) -> None:
    monkeypatch.setenv("SECRET", "2")
    schedule_runs(plan(name="a"), store, force=False)
    store.sweeps.add("a", spec)
    with pytest.raises(ConfigError, match=r"expected (a mapping|plain values|settings)"):
        allowed_settings(
            recorded_settings(store.runs.select()[0], store.sweeps.select()), [], trusted=True
        )


def test_what_was_recorded_may_be_of_an_executor_that_is_gone() -> None:
    with pytest.raises(ConfigError, match="executor: no executor is called 'mine'"):
        plan_again([], {**DEFAULTS, "executor": {"name": "mine"}})
    assert isinstance(plan_again([]).executor, LocalExecutor)
