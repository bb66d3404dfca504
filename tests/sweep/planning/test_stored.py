"""The time that stored runs have left, whatever their records hold: a store may be another's."""

from __future__ import annotations

import math

import pytest

from advsweep import names
from advsweep.store import NewRun, Owner, Status
from advsweep.sweep.planning.stored import time_of_stored
from advsweep.sweep.worker.environment import describe_environment

# Seconds of a step, of an evaluation with one sample of each problem, and of an update.
MEASURED = {
    names.TRAINING_SECONDS: 0.5,
    names.EVALUATION_SECONDS: 0.25,
    names.PRETRAINING_SECONDS: 0.125,
}
CONFIG = {
    "estimator": {"name": "grpo"},
    "task": {"name": "countdown", "seed": 0},
    "model": {"name": "tiny", "pretraining_steps": 16},
    "backend": {"name": "tiny"},
    "optimizer": {"name": "adam"},
    "evaluation": {"n": 8, "every": 10},
}

# 20 steps; 16 samples after steps 10 and 20; 8 of the base, and its 16 updates.
TRAINING = 20 * 0.5
EVALUATIONS = 16 * 0.25
BASE = 8 * 0.25 + 16 * 0.125


@pytest.fixture
def seconds_left(store):
    """Claims a run, and returns the seconds that it has left by what it measured itself."""

    def read(changes=None, *, environment=None, measured=MEASURED, step=0, stage=None):
        new = NewRun(
            identity=f"{len(store.runs.select()):064x}",
            config_hash="a" * 64,
            seed=0,
            config={**CONFIG, **(changes or {})},
            steps=20,
            estimator="grpo",
            backend="tiny",
        )
        [run_id] = store.runs.add([new])
        store.leases.claim(run_id, Owner.current())
        store.runs.set_environment(run_id, environment or describe_environment())
        store.metrics.set_summaries(run_id, measured)
        store.leases.heartbeat(run_id, step=step, stage=stage)
        running = store.runs.select(status=Status.RUNNING)
        return time_of_stored(store, None, running).seconds

    return read


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, TRAINING + EVALUATIONS + BASE),
        ({"optimizer": "adam"}, TRAINING + EVALUATIONS + BASE),
        ({"task": "countdown"}, TRAINING + EVALUATIONS + BASE),
        ({"model": {"pretraining_steps": 10**400}}, TRAINING + EVALUATIONS + 2),
        ({"model": {"pretraining_steps": -16}}, TRAINING + EVALUATIONS + 2),
        ({"model": ["tiny"]}, TRAINING + EVALUATIONS + 2),
        ({"evaluation": "standard"}, TRAINING),
        ({"evaluation": {"n": 10**400, "every": 1}}, TRAINING),
        ({"evaluation": {"n": -8, "every": 1}}, TRAINING),
        ({"evaluation": {"n": 8, "every": -1}}, TRAINING),
        ({"evaluation": {"n": 8, "every": 10, "n_between": "few"}}, TRAINING),
        ({"evaluation": {"n": 8, "every": 10, "at": [[5]]}}, TRAINING),
    ],
)
def test_a_config_counts_as_far_as_it_is_in_numbers(seconds_left, changes, seconds):
    assert seconds_left(changes) == seconds


@pytest.mark.parametrize(
    ("stage", "seconds"),
    [
        ("pretraining 4/16", 12 * 0.125),
        ("pretraining 16/4", 0),
        ("pretraining 4/0", 0),
        (f"pretraining {'9' * 5000}/1", 16 * 0.125),
    ],
    ids=["part", "beyond", "of none", "of thousands of digits"],
)
def test_a_stage_is_a_share_of_the_pretraining(seconds_left, stage, seconds):
    assert seconds_left(stage=stage) == TRAINING + EVALUATIONS + 8 * 0.25 + seconds


@pytest.mark.parametrize("processor", ["x86", [1], None])
def test_a_processor_that_is_no_mapping_is_one_without_facts(seconds_left, processor):
    environment = {**describe_environment(), names.PROCESSOR: processor}
    assert seconds_left(environment=environment) == TRAINING + EVALUATIONS + BASE


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.5])
def test_what_is_no_time_is_no_measurement(seconds_left, wrong):
    assert seconds_left(measured={**MEASURED, names.TRAINING_SECONDS: wrong}) is None
    assert seconds_left(step=10) is not None


def test_a_run_beyond_its_last_step_has_nothing_left(seconds_left):
    assert seconds_left(step=25) == 0
