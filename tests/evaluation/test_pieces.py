"""Evaluations in pieces: interrupted anywhere, they come to the counts of one that was not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from advsweep.config.settings import EvaluationSettings
from advsweep.evaluation.evaluate import Questions, evaluate_in_pieces
from advsweep.tasks import TASKS
from advsweep.tasks.base import Completions, Problem, Split

SETTINGS = EvaluationSettings(n=4, k=(1,), seed=3)


class KilledError(Exception):
    """Stands for the death of the process."""


@dataclass
class Solver:
    """Gives known solutions at random by its seed; dies at one of its calls."""

    die_at: int | None = None
    asked: list[list[str]] = field(default_factory=list)

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        if len(self.asked) == self.die_at:
            raise KilledError
        self.asked.append([problem.id for problem in problems])
        solved = np.random.default_rng(seed).random((len(problems), n)) < 0.5
        return Completions(
            [
                [problem.reference["solution"] if right else "" for right in row]
                for problem, row in zip(problems, solved.tolist(), strict=True)
            ]
        )


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    module = sys.modules["advsweep.evaluation.evaluate"]  # a function has its name, too
    monkeypatch.setattr(module, "PIECE_SAMPLES", 12)  # three problems of four samples


@pytest.fixture(scope="module")
def task():
    return TASKS.build({"name": "countdown", "levels": [0], "held_out_per_level": 8})


def _evaluate(task, solver: Solver, folder: Path):
    questions = Questions(task, SETTINGS, task.problems(Split.HELD_OUT))
    return evaluate_in_pieces(lambda: solver, questions, folder)


def test_an_interrupted_evaluation_goes_on_where_it_was(task, tmp_path):
    ids = [problem.id for problem in task.problems(Split.HELD_OUT)]
    undisturbed = Solver()
    expected = _evaluate(task, undisturbed, tmp_path / "whole")
    assert undisturbed.asked == [ids[:3], ids[3:6], ids[6:]]
    # Pieces do not repeat each other's draws.
    assert len({tuple(r.counts.c for r in expected[i : i + 3]) for i in (0, 3)}) == 2
    with pytest.raises(KilledError):
        _evaluate(task, Solver(die_at=2), tmp_path / "broken")
    # What was being written when the process died is no piece.
    (tmp_path / "broken" / "00002.part").write_text("[{")
    resumed = Solver()
    assert _evaluate(task, resumed, tmp_path / "broken") == expected
    assert resumed.asked == [ids[6:]]


def test_weights_are_not_loaded_when_nothing_is_left(task, tmp_path):
    expected = _evaluate(task, Solver(), tmp_path)
    questions = Questions(task, SETTINGS, task.problems(Split.HELD_OUT))
    again = evaluate_in_pieces(lambda: pytest.fail("loaded"), questions, tmp_path)
    assert again == expected
