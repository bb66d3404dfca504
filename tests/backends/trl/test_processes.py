"""Runs that several processes train together, on the CPU with gloo."""

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from advsweep.backends.trl.ranks import HelperFailure, Ranks
from advsweep.backends.trl.training import Training
from advsweep.errors import ConfigError, NoMemoryError, ProcessKilledError, TrainingError
from advsweep.failures import Failure, classify

# TRL shuffles the rows of each process by itself, so that updates have the rollouts of those of one
# process only if there is one minibatch.
WHOLE = {"minibatches": 1, "device_batch": 12}


@pytest.fixture
def pair(small_run):
    """Builds a run in one process and in two, with the same rollouts."""

    def build(**changes):
        settings = {**WHOLE, **changes.pop("backend", {})}
        # Half of a step's 48 rollouts: what the second process draws.
        alone = small_run("trl", **changes, backend={**settings, "rollout_batch": 24})
        together = small_run("trl", **changes, backend={**settings, "processes": 2})
        assert alone.identity == together.identity
        return alone, together

    return build


def assert_equal(points, others):
    """Assert equal points, but for rounding."""
    assert list(points) == list(others)
    for step, values in points.items():
        assert others[step] == pytest.approx(values, rel=1e-5, abs=1e-6), step


def children(pid="self"):
    """Return the processes that one has started and that still live."""
    listed = Path(f"/proc/{pid}/task/{os.getpid() if pid == 'self' else pid}/children").read_text()
    return {int(child) for child in listed.split()}


def test_two_processes_train_as_one_though_one_is_killed(pair, train, tmp_path):
    alone, together = pair()
    one = train(alone, tmp_path / "one")

    others = children()

    def kill(step):
        if step == 3:
            [helper] = children() - others
            os.kill(helper, signal.SIGKILL)

    recorder = None
    with pytest.raises(ProcessKilledError, match=r"process 1 of the run was ended by SIGKILL; a"):
        recorder = train(together, tmp_path / "two", on_metrics=kill)
    assert recorder is None
    # What has ended leaves no process, and nothing that another run would find.
    assert children() == others
    assert "WORLD_SIZE" not in os.environ

    two = train(together, tmp_path / "two")
    assert two.resumptions == [2]
    assert_equal({step: one.lasting[step] for step in (3, 4, 5)}, two.lasting)
    assert [step for step, _ in two.checkpoints] == [2, 4, 5]
    # The weights after a step answer alike; those of step 2 are from before the kill.
    assert two.evaluated == [2, 4, 5]
    for step, answers in two.evaluations.items():
        assert answers.texts == one.evaluations[step].texts


@pytest.mark.parametrize(
    "changes",
    [
        # The estimator has a memory, and the policy draws several times, of any number of prompts.
        {"estimator": {"name": "ha_dw"}, "rollout": {"name": "dynamic_sampling"}},
        # Statistics of the whole batch and of a minibatch, greedy rollouts, noise in the verdicts,
        # a reference, and updates of older rollouts.
        {
            "estimator": {"name": "reinforce_pp"},
            "rollout": {"name": "greedy"},
            "control": {"name": "noise", "false_positives": 0.2},
            "objective": {"name": "clipped", "kl_coef": 0.05, "top_entropy_quantile": 0.5},
            "backend": {"inner_epochs": 2, "entropy_change": True, "skip_zero_advantages": False},
        },
        # The first process has the reference, which it renews after each step.
        {
            "estimator": {"name": "aapo"},
            "rollout": {"name": "reference", "update_every": 1, "on": "verdict"},
        },
    ],
    ids=["memory", "batch", "reference"],
)
def test_what_needs_all_groups_has_them(pair, train, tmp_path, changes):
    alone, together = pair(steps=2, **changes)
    one = train(alone, tmp_path / "one")
    two = train(together, tmp_path / "two")
    assert_equal(one.lasting, two.lasting)


def test_a_run_that_other_processes_cannot_build(parity_run, train, tmp_path):
    run = parity_run(backend={**WHOLE, "processes": 2})
    with pytest.raises(ConfigError, match=r"^task: no task is called 'parity'"):
        train(run, tmp_path)


def test_helpers_wait_for_the_evaluation_before_the_first_step():
    first, helper = multiprocessing.Pipe()
    training = Training.__new__(Training)
    training.ranks = Ranks(1, 2, [helper])
    training.trainer = SimpleNamespace(meter=None)
    training._loop = None
    first.send_bytes(pickle.dumps(None))
    training.begin()
    assert not helper.poll()


TRAINS_FOR_EVER = """
import json, sys
from pathlib import Path
from advsweep.backends.build import build_run
from advsweep.backends.reporter import SilentReporter

class Reporter(SilentReporter):
    def metrics(self, step, values):
        print(step, flush=True)

run = build_run(json.loads(sys.argv[1]))
run.backend.train(run, Path(sys.argv[2]), Reporter())
"""


def test_a_first_process_that_is_killed_leaves_none(small_config, tmp_path):
    config = small_config("trl", steps=10_000, backend={**WHOLE, "processes": 2})
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINS_FOR_EVER, json.dumps(config), str(tmp_path)],
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout.readline() == b"1\n"
        [helper] = children(process.pid)
        process.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{helper}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("error", "kind", "failure"),
    [
        (NoMemoryError("too little"), NoMemoryError, Failure.OOM),
        (ConfigError("model: no"), ConfigError, Failure.ERROR),
        (KeyError("a"), TrainingError, Failure.ERROR),
    ],
)
def test_the_error_of_a_helper_is_that_of_the_run(error, kind, failure):
    received = pickle.loads(pickle.dumps(HelperFailure(1, error))).error()
    assert type(received) is kind
    assert str(error) in str(received)
    assert classify(received) is failure


def test_parts_of_equal_length():
    for items, expected in [
        ("aabbccdd", ["aabb", "ccdd"]),
        ("aabbcc", ["aabb", "cccc"]),
        ("aa", ["aa", "aa"]),
    ]:
        parts = [Ranks(rank, 2).part_of(items, unit=2) for rank in range(2)]
        assert ["".join(part) for part in parts] == expected
    assert Ranks().part_of("abc") == ["a", "b", "c"]
