"""The fake backend: it learns, answers problems, and fails as it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advsweep.backends.base import Run
from advsweep.backends.checkpoints import Checkpoints
from advsweep.errors import CheckpointError, ConfigError, TrainingError
from advsweep.tasks.base import Split
from advsweep.tasks.countdown import Countdown

MakeRun = Callable[..., Run]


def learn(small_run: MakeRun, train: Any, directory: Path, **changes: Any) -> Any:
    quick = {"learning_rate": 2.0}
    run = small_run(
        "fake",
        prompts_per_step=64,
        group_size=8,
        steps=60,
        backend=quick,
        task={"levels": list(range(7))},
        **changes,
    )
    return train(run, directory)


def test_rewards_rise_and_entropy_falls(small_run: MakeRun, train: Any, tmp_path: Path) -> None:
    points = learn(small_run, train, tmp_path).points
    assert points[60]["reward/mean"] > points[1]["reward/mean"] + 0.2
    assert points[60]["entropy/token"] < points[1]["entropy/token"] - 0.1


def test_learning_follows_the_estimator(small_run: MakeRun, train: Any, tmp_path: Path) -> None:
    """Pushing only failures down (mass 0 on successes) learns more slowly than both."""
    both = learn(small_run, train, tmp_path / "both").points[60]
    half = learn(small_run, train, tmp_path / "half", estimator={"name": "grpo_n"}).points[60]
    assert half["mass/success"] == 0
    assert half["reward/mean"] < both["reward/mean"]


def test_a_strong_kl_penalty_holds_on_to_the_base(
    small_run: MakeRun, train: Any, tmp_path: Path
) -> None:
    free = learn(small_run, train, tmp_path / "free").points
    held = learn(small_run, train, tmp_path / "held", objective={"kl_coef": 1.0}).points
    assert held[60]["loss/kl"] > 0
    assert held[60]["reward/mean"] < free[60]["reward/mean"]


def test_an_entropy_bonus_keeps_entropy(small_run: MakeRun, train: Any, tmp_path: Path) -> None:
    free = learn(small_run, train, tmp_path / "free").points
    held = learn(small_run, train, tmp_path / "held", objective={"entropy_coef": 0.5}).points
    assert held[60]["entropy/token"] > free[60]["entropy/token"]


def test_it_trains_on_shaped_rewards_and_counts_outcomes(
    small_run: MakeRun, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = learn(small_run, train, tmp_path / "plain", estimator={"name": "dr_grpo"}).points[1]
    monkeypatch.setattr(Countdown, "is_shaped", True)
    monkeypatch.setattr(Countdown, "rewards", lambda self, texts, outcomes, _: 3 * outcomes - 1)
    shaped = learn(small_run, train, tmp_path / "shaped", estimator={"name": "dr_grpo"}).points[1]
    assert shaped["reward/mean"] == pytest.approx(3 * plain["reward/mean"] - 1)
    assert shaped["mass/success"] == pytest.approx(3 * plain["mass/success"])
    assert shaped["prompts/fully_unsolved"] == plain["prompts/fully_unsolved"] > 0
    assert shaped["entropy/token_sampled"] == plain["entropy/token_sampled"]


def test_the_sampler_solves_as_often_as_the_table_says(small_run: MakeRun, tmp_path: Path) -> None:
    run = small_run("fake", task={"levels": list(range(7)), "held_out_per_level": 20})
    problems = run.task.problems(Split.HELD_OUT)
    completions = run.backend.sampler(run, tmp_path, 0).sample(
        problems, 200, temperature=1.0, seed=0
    )
    repeated = [problem for problem in problems for _ in range(200)]
    texts = [text for group in completions.texts for text in group]
    rewards = run.task.score(repeated, texts).reshape(7, -1).mean(axis=1)
    # Log-odds 1, .5, ..., -2 over the seven levels; 4000 samples each: sd at most .008.
    np.testing.assert_allclose(rewards, 1 / (1 + np.exp(np.linspace(-1, 2, 7))), atol=0.04)
    entropies = -rewards * np.log(rewards) - (1 - rewards) * np.log(1 - rewards)
    assert completions.token_entropy is not None
    by_level = completions.token_entropy.reshape(7, -1)
    np.testing.assert_allclose(by_level, by_level[:, :1].repeat(20, axis=1))
    np.testing.assert_allclose(by_level[:, 0], entropies, atol=0.04)


def test_a_step_can_fail(small_run: MakeRun, train: Any, tmp_path: Path) -> None:
    run = small_run("fake", backend={"fail_at": 4})
    with pytest.raises(RuntimeError, match="step 4 fails"):
        train(run, tmp_path)
    assert Checkpoints(tmp_path, run.identity).steps() == [2]


def test_a_loss_can_be_no_number(small_run: MakeRun, train: Any, tmp_path: Path) -> None:
    run = small_run("fake", backend={"nan_at": 3})
    with pytest.raises(TrainingError, match=r"step 3: .*finite.* loss of nan"):
        train(run, tmp_path)


CHILD = """
import json, sys
from pathlib import Path
from advsweep.backends.build import build_run

class Silent:
    def __getattr__(self, name):
        return lambda *args: name == "metrics" and print(args[0], flush=True)

run = build_run(json.loads(sys.argv[1]))
run.backend.train(run, Path(sys.argv[2]), Silent())
"""


def child(config: dict[str, Any], directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(config), str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.slow
def test_a_step_can_end_the_process(small_config: Callable[..., Any], tmp_path: Path) -> None:
    with child(small_config("fake", backend={"exit_at": 4}), tmp_path) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 70
    assert out.split() == ["1", "2", "3"]


@pytest.mark.slow
def test_a_step_can_hang(small_config: Callable[..., Any], tmp_path: Path) -> None:
    with child(small_config("fake", backend={"hang_at": 2}), tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "1"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        process.kill()


def test_steps_can_be_slow(small_run: MakeRun, train: Any, tmp_path: Path) -> None:
    run = small_run("fake", steps=2, backend={"step_seconds": 0.01})
    assert len(train(run, tmp_path).points) == 2


def test_faults_are_part_of_the_identity(small_run: MakeRun) -> None:
    assert small_run("fake").identity != small_run("fake", backend={"fail_at": 1}).identity


def test_there_is_nothing_to_export(small_run: MakeRun, tmp_path: Path) -> None:
    run = small_run("fake")
    with pytest.raises(ConfigError, match="backend: 'fake' trains a table of solve rates"):
        run.backend.export(run, tmp_path, 0, tmp_path / "out")


def test_a_missing_checkpoint_is_named(small_run: MakeRun, tmp_path: Path) -> None:
    run = small_run("fake")
    with pytest.raises(CheckpointError, match="no checkpoint of step 3"):
        run.backend.sampler(run, tmp_path, 3)
