"""The fake backend: it learns, answers problems, and fails as it is told.

`test_contract.py` holds it to what every backend must do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advsweep.backends.base import Run
from advsweep.backends.checkpoints import Checkpoints
from advsweep.errors import TrainingError
from advsweep.tasks.base import Split
from advsweep.tasks.countdown import Countdown

MakeRun = Callable[..., Run]


def test_it_follows_estimator_and_objective(
    small_run: MakeRun, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn(name: str, **changes: Any) -> dict[int, dict[str, float]]:
        quick = {"prompts_per_step": 64, "group_size": 8, "backend": {"learning_rate": 2.0}}
        run = small_run("fake", steps=60, task={"levels": list(range(7))}, **quick, **changes)
        points: dict[int, dict[str, float]] = train(run, tmp_path / name).points
        return points

    free = learn("free")
    assert free[60]["reward/mean"] > free[1]["reward/mean"] + 0.2
    assert free[60]["entropy/token"] < free[1]["entropy/token"] - 0.1
    # Pushing only failures down (mass 0 on successes) learns more slowly than both.
    half = learn("half", estimator={"name": "grpo_n"})
    assert half[60]["mass/success"] == 0
    assert half[60]["reward/mean"] < free[60]["reward/mean"]
    held = learn("held", objective={"kl_coef": 1.0})
    assert held[60]["loss/kl"] > 0
    assert held[60]["reward/mean"] < free[60]["reward/mean"]
    kept = learn("kept", objective={"entropy_coef": 0.5})
    assert kept[60]["entropy/token"] > free[60]["entropy/token"]
    plain = learn("plain", estimator={"name": "dr_grpo"})[1]
    monkeypatch.setattr(Countdown, "is_shaped", True)
    monkeypatch.setattr(Countdown, "rewards", lambda self, texts, outcomes, _: 3 * outcomes - 1)
    shaped = learn("shaped", estimator={"name": "dr_grpo"})[1]
    assert shaped["reward/mean"] == pytest.approx(3 * plain["reward/mean"] - 1)
    assert shaped["mass/success"] == pytest.approx(3 * plain["mass/success"])
    assert shaped["prompts/fully_unsolved"] == plain["prompts/fully_unsolved"] > 0


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
    np.testing.assert_allclose(by_level, entropies[:, None].repeat(20, axis=1), atol=0.04)


def test_a_step_can_fail(small_run: MakeRun, train: Any, tmp_path: Path) -> None:
    run = small_run("fake", backend={"fail_at": 4})
    with pytest.raises(RuntimeError, match="step 4 fails"):
        train(run, tmp_path)
    assert Checkpoints(tmp_path, run.identity).steps() == [2]
    with pytest.raises(TrainingError, match=r"step 3: .*finite.* loss of nan"):
        train(small_run("fake", backend={"nan_at": 3}), tmp_path / "nan")
