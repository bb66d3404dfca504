"""`advsweep eval` of runs, and what it refuses."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import FAKE


@pytest.mark.slow
def test_a_run_is_evaluated_by_another_protocol_and_task(advsweep):
    done = advsweep("run", *FAKE)
    assert done.returncode == 0, done.stderr
    other = advsweep("eval", "last", "-n", "32", "--set", "task.levels=[0,2]", "--format", "json")
    assert other.returncode == 0, other.stderr
    [record] = json.loads(other.stdout)
    assert (record["run"], record["step"], record["settings"]["n"]) == (1, 12, 32)
    assert {problem["level"] for problem in record["problems"]} == {0, 2}
    assert "32/40 problems" in other.stderr
    shown = json.loads(advsweep("show", "1", "--format", "json").stdout)
    assert record["identity"] in [e["identity"] for e in shown["evaluations"]]
    # The run's own evaluation is there already, and nothing is sampled.
    own = advsweep("eval", "last", "--format", "json")
    assert json.loads(own.stdout)[0]["settings"]["n"] == 16
    assert "problems" not in own.stderr
    for words, arguments in {
        "expected a field of the evaluation or the task": ["--set", "model.dtype=bfloat16"],
        "samples from the whole distribution": ["--set", "evaluation=greedy"],
        "backend 'fake' has a single sampler": ["--set", "generation=transformers"],
        "no checkpoint of step 7": ["--step", "7"],
    }.items():
        refused = advsweep("eval", "last", *arguments)
        assert refused.returncode == 2, refused
        assert words in refused.stderr


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("expected either a run or a sweep, or --model", []),
        ("expected --task NAME with --model", ["--model", "x"]),
        ("--step: valid only with a run", ["--model", "x", "--task", "gsm8k", "--step", "3"]),
        ("path: expected a folder with a model", ["--model", "./x", "--task", "countdown"]),
        ("no task is called 'gsm9k'", ["--model", "./x", "--task", "gsm9k"]),
        (
            "no evaluation is called",
            ["--model", "./x", "--task", "gsm8k", "--set", "evaluation=bold"],
        ),
        (
            "expected a key of evaluation, task, generation, model or backend",
            ["--model", ".", "--task", "gsm8k", "--set", "temperature=1"],
        ),
        ("n=1,2: expected KEY=VALUE", ["--model", ".", "--task", "gsm8k", "--set", "n=1,2"]),
        ("--task selects the task", ["--model", ".", "--task", "gsm8k", "--set", "task=math"]),
    ],
)
def test_refuses(refused, words, arguments):
    refused([words], "eval", *arguments)


def test_select_refuses_a_place_that_it_cannot_write_to(refused):
    refused(
        ["--output: expected a file in an existing folder"],
        *("select", "--model", ".", "--task", "countdown", "--output", "nowhere/levels.jsonl"),
    )
