"""What a store keeps of how runs were to be executed, and changes to that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advsweep.errors import ConfigError
from advsweep.sweep.executors.local import LocalExecutor
from advsweep.sweep.planning.resume import (
    DEFAULTS,
    changed_settings,
    plan_again,
    recorded_setting,
    settings_again,
)
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.runs import schedule_runs

DEBUG = ["executor=debug"]


def test_runs_are_started_again_with_the_resources_of_their_sweep(plan, store):
    execute(plan("seed=0,1", "resources.cpus=2", "backend.fail_at=7", name="two"), store)
    records = store.runs.select()
    settings = settings_again(records[0], store.sweeps.select(), DEBUG)
    again = plan_again(records, changed_settings(settings, DEBUG))
    assert again.executor.resources.cpus == 2
    assert again.stopping is None
    assert list(execute(again, store).failed) == [2, 1]


def test_of_several_sweeps_the_last_counts(plan, store):
    for cpus, name in ((2, "a"), (3, "a"), (4, "b")):
        schedule_runs(plan(f"resources.cpus={cpus}", name=name), store, force=False)
    [run] = store.runs.select()
    sweeps = store.sweeps.select()
    assert recorded_setting(run, sweeps, "resources")["cpus"] == 4
    assert recorded_setting(run, sweeps[:1], "resources")["cpus"] == 3
    # One of an earlier version has none recorded, and the run may be of none at all.
    old = [replace(sweep, spec={"overrides": []}) for sweep in sweeps]
    assert settings_again(run, old, []) == settings_again(run, [], []) == DEFAULTS


def test_settings_are_changed_as_a_command_line_says():
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
def test_changes_that_do_not_fit_are_refused(override, message):
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        plan_again([], changed_settings(DEFAULTS, [override]))


def test_a_plan_of_runs_again_changes_no_rule(plan, store):
    sweep = plan("stopping=acr", "backend.fail_at=3", name="ruled")
    execute(sweep, store)
    execute(plan_again(store.runs.select(), {**DEFAULTS, "executor": {"name": "debug"}}), store)
    assert store.runs.select()[0].stopping == sweep.stopping.rule()


SLURM = {"name": "slurm", "cluster": "local", "setup": ["touch owned"]}
RAY = {"name": "ray", "address": "them:6379"}


@pytest.mark.security
@pytest.mark.parametrize("executor", [SLURM, RAY, {"name": "gone"}])
def test_a_store_does_not_choose_an_executor(plan, store, executor):
    schedule_runs(plan(name="a"), store, force=False)
    store.sweeps.add("a", {"settings": {"executor": executor}, "tracking": {"name": "wandb"}})
    [run], sweeps = store.runs.select(), store.sweeps.select()
    with pytest.raises(ConfigError, match="store does not choose"):
        settings_again(run, sweeps, ["executor.jobs=2"])
    assert settings_again(run, sweeps, [f"executor={executor['name']}"]) == DEFAULTS


@pytest.mark.security
@pytest.mark.parametrize(
    "settings",
    [
        {"resources": {"name": "default", "cpus": "${oc.env:SECRET}"}},
        {"resources": {"name": "default", "${oc.env:SECRET}": 1}},
        {"executor": {"name": "slurm", "setup": ["${oc.env:SECRET}"]}},
        {"executor": "slurm"},
        ["executor"],
    ],
)
def test_stored_settings_that_are_no_plain_nodes_are_refused(plan, store, settings):
    schedule_runs(plan(name="a"), store, force=False)
    store.sweeps.add("a", {"settings": settings})
    with pytest.raises(ConfigError, match=r"expected (a mapping|plain values)"):
        settings_again(store.runs.select()[0], store.sweeps.select(), ["executor=slurm"])


def test_the_default_is_this_machine():
    assert isinstance(plan_again([]).executor, LocalExecutor)
