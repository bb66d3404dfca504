"""`advsweep hidden-states`: what it prints of a run, and what it refuses."""

from __future__ import annotations

import json

import pytest

SMALL = [
    "steps=2",
    "prompts_per_step=8",
    "model.layers=1",
    "model.width=32",
    "model.mlp_width=32",
    "model.pretraining_steps=60",
    "evaluation.n=2",
    "evaluation.k=[1]",
]


@pytest.mark.slow
def test_a_run_in_every_format_and_what_is_refused(advsweep):
    done = advsweep("run", *SMALL)
    assert done.returncode == 0, done.stderr
    whole = advsweep("hidden-states", "last", "--prompts", "4", "--format", "json")
    assert whole.returncode == 0, whole.stderr
    [row] = json.loads(whole.stdout)
    assert (row["run"], row["step"]) == (1, 2)
    assert row["rollouts_correct"] + row["rollouts_failed"] == 4 * 8
    assert 0 < row["along"] < 1
    table = advsweep("hidden-states", "last", "--prompts", "4")
    assert table.stdout.splitlines()[0].split()[:4] == ["run", "estimator", "seed", "step"]
    base = advsweep("hidden-states", "1", "--step", "0", "--direction", "weights")
    assert base.returncode == 2
    assert base.stderr == (
        "advsweep: --direction weights: expected a step above 0, as the base is unchanged\n"
    )


@pytest.mark.parametrize(
    ("words", "arguments"),
    [("there is no store at", ["1"]), ("there is no store at", ["1", "--step", "3"])],
)
def test_without_a_store(refused, words, arguments):
    refused([words], "hidden-states", *arguments)
