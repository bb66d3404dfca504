"""Tuned sweeps: what they plan, choose and train, interrupted or not."""

from __future__ import annotations

import pytest
import yaml

from advsweep.errors import ConfigError
from advsweep.store import Status, open_store
from advsweep.store.tuning_records import TUNE_KEY
from advsweep.sweep.events import EventKind, RunEvent
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.tuning import execute_tuning, plan_tuning

BANDIT = {
    "steps": 8,
    "group_size": 4,
    "prompts_per_step": 16,
    "evaluation": {"every": 0, "n": 8, "k": [1]},
    "defaults": [
        {f"override /{group}": name}
        for group, name in {
            "executor": "debug",
            "backend": "bandit",
            "model": "table",
            "task": "bandit",
            "optimizer": "sgd",
        }.items()
    ],
}
SWEEP = {
    "name": "fair",
    "seeds": 2,
    "tune": {"values": [2, 4, 16], "extend": 1, "seeds": 2},
    "controls": ["aa"],
    "blocks": [{"estimator": ["grpo", "rloo"]}],
}


def sweep_writer(folder, settings, node):
    """Writes a sweep file of the bandit; settings and keys of its `sweep` node may be changed."""

    def make(file=None, **changes):
        sweep = {key: value for key, value in {**node, **changes}.items() if value is not None}
        path = folder / "sweep.yaml"
        path.write_text(yaml.safe_dump({**settings, **(file or {}), "sweep": sweep}))
        return str(path)

    return make


@pytest.fixture
def write(tmp_path):
    return sweep_writer(tmp_path, BANDIT, SWEEP)


def planned(*overrides):
    tuning = plan_tuning(overrides)
    assert tuning is not None
    return tuning


def trained(tuning, store, on_event=lambda event: None):
    """Trains all of a tuned sweep."""

    def run(plan):
        return execute(plan, store, 2, on_event)

    record, _ = execute_tuning(tuning, store, run)
    if record.is_complete:
        assert run(tuning.plan_test(record)).exit_code == 0
    return record


def settings(plan):
    runs = [p.run for p in plan.runs]
    return [
        (r.estimator.name, r.control.name, r.optimizer.lr, r.seed, r.task.plain()["seed"])
        for r in runs
    ]


@pytest.mark.slow
def test_tuning_runs_have_seeds_and_problems_of_their_own(write):
    tuning = planned(write())
    assert settings(tuning.plan(tuning.grid)) == [
        (name, "none", rate, seed, 1000)
        for name in ("grpo", "rloo")
        for rate in (2, 4, 16)
        for seed in (1000, 1001)
    ]
    assert [each[:2] + each[3:] for each in settings(tuning.test)] == [
        (name, control, seed, 0)
        for name, control in (("grpo", "none"), ("rloo", "none"), ("grpo", "aa"))
        for seed in (0, 1)
    ]
    assert (tuning.extra_runs, list(tuning.test.warnings)) == (4, [])


@pytest.mark.slow
def test_each_arm_is_tested_at_the_value_it_chose(write, store):
    tuning = planned(write())
    record = trained(tuning, store)
    chosen = {}
    for arm in record.arms:
        scores = {each.value: each.score for each in arm.grid}
        best = max(score for score in scores.values() if score is not None)
        chosen[arm.name] = min(value for value, score in scores.items() if score == best)
        assert arm.chosen == chosen[arm.name]
        # From 2, 4, 16 beyond the edge: 1 or 64.
        assert set(scores) - {2, 4, 16} == ({1} if best == scores[2] else {64})
    done = store.runs.select(sweep="fair", newest_first=False)
    assert [(run.estimator, run.config["optimizer"]["lr"], run.seed) for run in done] == [
        (name, chosen[name.split()[0]], seed)
        for name in ("grpo", "rloo", "grpo (A/A)")
        for seed in (0, 1)
    ]
    assert len(store.runs.select(sweep="fair-tuning")) == 2 * 4 * 2
    assert store.sweeps.tuning("fair") == record


class StoppedError(Exception):
    """Stands for the death of the command."""


@pytest.mark.slow
@pytest.mark.parametrize("after", [14, 18])
def test_an_interrupted_sweep_comes_to_the_same_end(write, store, tmp_path, after):
    """Killed among the values that the grid grows by, and in the test runs."""
    tuning = planned(write())
    starts = 0

    def dying(event):
        nonlocal starts
        if isinstance(event, RunEvent) and event.kind is EventKind.STARTED:
            starts += 1
            if starts == after:
                raise StoppedError

    with pytest.raises(StoppedError):
        trained(tuning, store, dying)
    record = trained(planned(write()), store)
    with open_store(str(tmp_path / "whole.db")) as other:
        assert trained(planned(write()), other) == record
        whole, resumed = (
            {r.identity: r.scores() for r in s.evaluations.select([x.id for x in s.runs.select()])}
            for s in (other, store)
        )
    assert whole == resumed
    assert {run.status for run in store.runs.select()} == {Status.DONE}
    # Nothing is left to do.
    assert trained(planned(write()), store) == record
    assert len(store.runs.select()) == 2 * 4 * 2 + 6


@pytest.mark.slow
def test_what_the_store_says_was_chosen_is_not_read(write, store):
    tuning = planned(write())
    record = trained(tuning, store)
    forged = record.plain()
    for arm in forged["arms"]:
        arm |= {"chosen": 1e9, "grid": [{"value": 1e9, "state": "done", "scores": [1.0]}]}
    store.sweeps.add("fair", {TUNE_KEY: forged})
    assert tuning.read(store) == record
    rates = {p.run.optimizer.lr for p in tuning.plan_test(tuning.read(store)).runs}
    assert rates == {arm.chosen for arm in record.arms}


@pytest.mark.slow
def test_arms_without_a_choice_are_tried_again_and_not_tested(write, store):
    fake = {"defaults": [{"override /executor": "debug"}, {"override /backend": "fake"}]}
    tune = {"key": "backend.nan_at", "values": [2, 3], "seeds": 1}
    tuning = planned(write({**fake, "task": {"held_out_per_level": 2}}, tune=tune, controls=None))
    executed = []

    def run(plan):
        executed.append(len(plan.runs))
        return execute(plan, store, 1)

    for _ in range(2):
        record, _ = execute_tuning(tuning, store, run)
        assert record.is_complete
        assert [arm.chosen for arm in record.arms] == [None, None]
        assert [arm.choice for arm in record.arms] == ["none", "none"]
    # All values once in each call.
    assert executed == [4, 4]
    with pytest.raises(ConfigError, match=r"sweep.tune: expected tuning runs that are done"):
        tuning.plan_test(record)


@pytest.mark.slow
def test_an_unknown_metric_is_refused_once_runs_show_which_there_are(write, store):
    tuning = planned(write(tune={"values": [2, 4], "metric": "pass@2", "seeds": 1}))
    with pytest.raises(ConfigError, match=r"sweep.tune.metric: .* no metric 'pass@2'; .*pass@1"):
        trained(tuning, store)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tune": {"key": "estimator.delta", "values": [0.3, 0.5]}},
            "estimator.delta: grpo has no parameter 'delta'",
        ),
        ({"tune": {"values": [1]}}, "sweep.tune.values: expected two or more different values"),
        (
            {"tune": {"values": [1, 2], "seeds": [5, 1]}},
            "sweep.tune.seeds: expected other seeds than those of the test runs, got 1 in both",
        ),
        (
            {"blocks": [{"estimator": "grpo", "optimizer.lr": [1, 2]}]},
            "sweep.tune.key: expected a key that nothing else sets, got 'optimizer.lr', which",
        ),
        (
            {"controls": ["placebo"], "common": {"task": "toy"}},
            "control: 'placebo' changes a verifier's verdicts",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(write, changes, message):
    with pytest.raises(ConfigError) as refused:
        plan_tuning([write(**changes)])
    assert message in str(refused.value)
