"""Sweeps of every kind, trained from Python: their stages, and what they say."""

from __future__ import annotations

import pytest

from advsweep.store import Status
from advsweep.sweep.events import RunEvent, SweepResult
from advsweep.sweep.strategies import PlainSweep, RacedSweep, TunedSweep, plan_sweep, train_sweep
from tests.sweep.test_tuning import BANDIT, SWEEP, sweep_writer

RACE = {"margin": 0.05, "most": 8}


@pytest.fixture
def write(tmp_path):
    return sweep_writer(tmp_path, BANDIT, SWEEP)


def test_a_sweep_file_says_which_kind_of_sweep_it_is(write):
    assert type(plan_sweep([write(tune=None)])) is PlainSweep
    assert type(plan_sweep([write()])) is TunedSweep
    assert type(plan_sweep([write(tune=None, seeds=None, race=RACE)])) is RacedSweep
    tuned_race = plan_sweep([write(seeds=None, race=RACE)])
    assert type(tuned_race) is TunedSweep
    assert tuned_race.plan.race is not None


def test_a_python_caller_trains_a_tuned_sweep_and_is_told_what_happens(write, store):
    sweep = plan_sweep([write(tune={"values": [2, 4], "extend": 0, "seeds": 1}, controls=None)])
    texts: list[str] = []
    started: list[int] = []

    def on_event(event):
        if isinstance(event, RunEvent) and event.kind.value == "started":
            started.append(event.run.id)

    trained = train_sweep(sweep, store, on_text=texts.append, on_event=on_event)
    assert texts == [
        "sweep fair: 4 tuning runs (2 arms x 2 values of optimizer.lr x 1 seed); then 4 test runs",
        "values of optimizer.lr: 2, 4",
        trained.tuning.text,
    ]
    assert (trained.exit_code, trained.result.done, len(started)) == (0, 4, 8)
    assert (trained.plan.name, trained.race, trained.remarks) == ("fair", None, [])
    assert {run.status for run in store.runs.select()} == {Status.DONE}
    chosen = {arm.name: arm.chosen for arm in trained.tuning.arms}
    rates = {(r.estimator, r.config["optimizer"]["lr"]) for r in store.runs.select(sweep="fair")}
    assert rates == set(chosen.items())
    assert trained.plain() == {"tune": trained.tuning.plain()}
    # What is done is not done again: only the test runs are looked at.
    again: list[str] = []
    assert train_sweep(sweep, store, on_text=again.append).result.skipped == 4
    assert again == [texts[0], texts[2]]


def test_a_preview_has_the_stage_that_comes_next(write, store):
    sweep = plan_sweep([write(tune={"values": [2, 4], "extend": 1, "seeds": 1}, controls=None)])
    before = sweep.preview(None)
    assert before.stage.plan.name == "fair-tuning"
    counts = {key: before.counts[key] for key in before.counts if key != "tune"}
    assert counts == {"tuning_runs": 4, "most_tuning_runs": 6, "test_runs": 4}
    assert before.texts[0].startswith("sweep fair: 4 tuning runs")
    train_sweep(sweep, store)
    after = sweep.preview(store)
    assert (after.stage.plan.name, after.stage.is_part) == ("fair", True)
    assert after.tuning == store.sweeps.tuning("fair")


def result(**changes):
    nothing = SweepResult(run_ids=[], done=0, skipped=0, failed={}, unfinished=0, stopped=False)
    return SweepResult(**{**vars(nothing), **changes})


@pytest.mark.parametrize("race", [None, RACE])
def test_a_tuning_that_a_queue_has_goes_on_later(write, store, race):
    seeds = None if race else 2
    sweep = plan_sweep([write(race=race, seeds=seeds, controls=None)])
    stages = []

    def submit(stage):
        stages.append(stage)
        return result(submitted=len(stage.plan.runs))

    trained = sweep.execute(store, submit, lambda text: None)
    assert [stage.plan.name for stage in stages] == ["fair-tuning"]
    assert trained.plan is stages[0].plan
    assert trained.remarks == [
        "Start the same sweep again once these runs are done: it chooses and goes on."
    ]


def test_a_race_trains_round_after_round_and_says_how_it_stands(write, store):
    sweep = plan_sweep([write(tune=None, seeds=None, race=RACE, controls=None)])
    stages = []

    def submit(stage):
        stages.append(stage)
        return result(queued=1)

    trained = sweep.execute(store, submit, lambda text: None)
    assert [stage.text for stage in stages] == [trained.race.title]
    assert stages[0].is_part
    assert trained.remarks == [
        "Start the same sweep again once these runs are done: the race goes on."
    ]
    assert trained.plain() == {"race": trained.race.plain()}


def test_without_a_value_for_an_arm_a_sweep_has_not_succeeded(write, store):
    tune = {"values": [2, 4], "extend": 0, "seeds": 1}
    quick = {"prompts_per_step": 8, "steps": 2, "task": {"held_out_per_level": 2}}
    fake = {"defaults": [{"override /executor": "debug"}, {"override /backend": "fake"}]}
    blocks = [{"estimator": "grpo"}, {"estimator": "rloo", "backend.nan_at": 2}]
    sweep = plan_sweep(
        [write({**fake, **quick}, tune=tune, controls=None, blocks=blocks)], fetch=False
    )
    texts: list[str] = []
    trained = train_sweep(sweep, store, on_text=texts.append)
    assert (trained.result.exit_code, trained.exit_code) == (0, 1)
    [remark] = trained.remarks
    assert remark == texts[-1]
    assert remark.startswith("no value of optimizer.lr could be chosen for ")
    assert "`advsweep status fair-tuning` says why" in remark
