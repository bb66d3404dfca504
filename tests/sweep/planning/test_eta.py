"""Estimates: where a plan's runs stand, and how long the rest should take."""

from __future__ import annotations

import pytest

from advsweep import names
from advsweep.backends.build import build_run
from advsweep.store import Owner, Status
from advsweep.sweep.planning.eta import estimate
from advsweep.sweep.planning.resume import plan_again
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.worker.environment import describe_environment, new_run

# Seconds of a start, a step, and an evaluation with one sample of each problem.
MEASURED = {
    names.FIRST_START_SECONDS: 3.0,
    names.TRAINING_SECONDS: 0.5,
    names.EVALUATION_SECONDS: 0.25,
}


def record(store, plan):
    """The plan's runs, in the store and not begun."""
    return store.runs.add([new_run(p.run, p.config) for p in plan.runs])


def finish(store, run_id, step, status, measured=MEASURED):
    store.leases.claim(run_id, Owner.current())
    store.leases.heartbeat(run_id, step=step)
    store.metrics.set_summaries(run_id, measured)
    store.runs.set_environment(run_id, describe_environment())
    store.leases.finish(run_id, status)


def test_without_a_store_all_is_missing_and_nothing_tells_the_time(plan):
    left = estimate(plan("seed=0,1"), None, slots=2)
    assert (left.states, left.steps, left.seconds) == ({"missing": 2}, 40, None)
    assert (left.runs_without_estimate, left.measured, left.gpu_hours) == (2, 0, None)


def test_time_is_made_of_the_parts_that_a_run_of_the_kind_has_measured(plan, store):
    [first] = record(store, plan("seed=0"))
    finish(store, first, 20, Status.DONE)
    words = ("estimator=grpo,fade", "seed=0,1", "evaluation.n=8", "evaluation.every=5")
    arms = plan(*words, "executor=local")
    left = estimate(arms, store, slots=2)
    assert (left.states, left.steps, left.measured) == ({"unevaluated": 1, "missing": 3}, 60, 1)
    # 20 steps and 4 evaluations, after steps 5, 10, 15 and 20: 10 s and 4 x 8 x .25 = 8 s. The
    # first of them evaluates the base, 8 x .25 = 2 s, and each of two workers starts, 3 s. The
    # run that is done is evaluated anew at its start and end, 16 x .25 = 4 s.
    assert [run["seconds_left"] for run in left.runs] == [3 + 4, 3 + 18 + 2, 18, 18]
    # Worker A: 7 s, then from 7 to 25 and, as the base is ready at 5 s, without waiting. Worker B:
    # until 23 s, then until 41 s.
    assert left.seconds == 41
    assert left.remaining.parts == {
        "start": 6,
        "pretraining": 0,
        "training": 30,
        "evaluation": 4 + 2 + 24,
    }


def test_other_kinds_and_other_machines_tell_nothing(plan, store):
    [first] = record(store, plan("seed=0"))
    finish(store, first, 20, Status.DONE)
    mixed = estimate(plan("group_size=8,4", "seed=1"), store, slots=2)
    assert [run["seconds_left"] is None for run in mixed.runs] == [False, True]
    # A part of a time is no estimate of the whole.
    assert (mixed.seconds, mixed.runs_without_estimate) == (None, 1)
    assert estimate(plan("seed=1"), store, slots=1).seconds is not None
    store.runs.set_environment(first, {**describe_environment(), "cpu": "another"})
    assert estimate(plan("seed=1"), store, slots=1).seconds is None


def test_each_state_of_the_store_is_told(plan, store, tmp_path):
    ids = record(store, plan("seed=0,1,2,3"))
    for run_id, status in zip(ids, (Status.DONE, Status.FAILED, Status.INTERRUPTED), strict=False):
        finish(store, run_id, 20 if status is Status.DONE else 15, status)
    store.leases.claim(ids[1], Owner.current())
    # Its process was killed five steps after its checkpoint.
    store.checkpoints.add(ids[1], 10, tmp_path / "step-10")
    store.leases.finish(ids[1], Status.FAILED)
    store.leases.claim(ids[3], Owner("here", 1, None))
    store.leases.heartbeat(ids[3], step=8)
    left = estimate(plan("seed=0,1,2,3,4"), store, slots=1)
    assert [(r["id"], r["status"], r["step"], r["steps_left"]) for r in left.runs] == [
        (ids[0], "done", 20, 0),
        (ids[1], "failed", 15, 10),
        (ids[2], "interrupted", 15, 5),
        (ids[3], "running", 8, 12),
        (None, "missing", 0, 20),
    ]
    forced = estimate(plan("seed=0"), store, slots=1, force=True)
    assert (forced.states, forced.steps) == ({"done": 1}, 20)


@pytest.mark.parametrize("node", ["standard", {"name": "standard", "every": 0}])
def test_a_stored_config_may_leave_out_what_has_a_default(plan, store, node):
    [planned] = plan("seed=0").runs
    config = {**planned.config, "evaluation": node}
    [run_id] = store.runs.add([new_run(build_run(config), config)])
    finish(store, run_id, 10, Status.INTERRUPTED)
    left = estimate(plan_again(store.runs.select(ids=[run_id])), store, slots=1)
    # 3 s of a start, 10 steps of .5 s, and 128 samples after the last step and of the base.
    assert left.seconds == 3 + 5 + 2 * 128 * 0.25


def test_a_program_that_reports_more_steps_than_planned_has_none_left(plan, store):
    [run_id] = record(store, plan("seed=0"))
    finish(store, run_id, 25, Status.INTERRUPTED)
    left = estimate(plan("seed=0"), store, slots=1)
    assert (left.steps, left.seconds) == (0, 0)


def test_a_training_that_is_evaluated_in_two_ways_is_trained_once(plan, store):
    both = plan("evaluation.n=8,16")
    assert [run["steps_left"] for run in estimate(both, store, slots=1).runs] == [20, 0]
    execute(plan("evaluation.n=8"), store)
    left = estimate(both, store, slots=1)
    assert ([run["status"] for run in left.runs], left.steps) == (["done", "unevaluated"], 0)
    execute(both, store)
    assert estimate(both, store, slots=1).states == {"done": 2}


def test_a_run_measures_its_parts_and_they_add_up_to_its_time(plan, store):
    execute(plan("seed=0", "backend.step_seconds=0.05", "evaluation.every=10"), store)
    [run] = store.runs.select()
    took = store.metrics.summaries([run.id])[run.id]
    assert took[names.TRAINING_SECONDS] >= 0.05
    # Three evaluations: before, after ten steps, and after the last.
    evaluated = 3 * run.config["evaluation"]["n"] * took[names.EVALUATION_SECONDS]
    parts = 20 * took[names.TRAINING_SECONDS] + evaluated
    assert parts < took["time/run"]
    assert parts + took[names.START_SECONDS] > 0.9 * took["time/run"]
    again = estimate(plan("seed=1", "backend.step_seconds=0.05", "evaluation.every=10"), store, 1)
    # Runs of one task share their base, whose evaluation is there.
    expected = parts - run.config["evaluation"]["n"] * took[names.EVALUATION_SECONDS]
    assert again.seconds == pytest.approx(took[names.START_SECONDS] + expected)


def test_the_pretraining_of_bases_that_the_cache_lacks_is_counted(store, monkeypatch, tmp_path):
    from advsweep.backends.tiny import pretraining
    from advsweep.sweep.planning.plan import make_plan

    monkeypatch.setenv("ADVSWEEP_CACHE", str(tmp_path / "cache"))
    words = ["model.layers=1", "model.width=8", "model.heads=1", "model.kv_heads=1", "steps=10"]
    words += ["model.pretraining_steps=4", "evaluation.n=2", "evaluation.k=[1]"]
    words += ["evaluation.every=0", "seed=0,1"]
    plan = make_plan([*words, "estimator=grpo,psr"])
    first = plan.runs[0]
    [run_id] = store.runs.add([new_run(first.run, first.config)])
    measured = {**MEASURED, names.PRETRAINING_SECONDS: 2.0}
    finish(store, run_id, 10, Status.DONE, measured)
    left = estimate(plan, store, slots=1)
    # A base for each seed: 4 updates of 2 s. Of seed 0 the done run has made it, but not here.
    assert left.remaining.parts["pretraining"] == 16
    pretraining.base_weights(first.run.model.for_seed(0), first.run.task)
    assert estimate(plan, store, slots=1).remaining.parts["pretraining"] == 8
