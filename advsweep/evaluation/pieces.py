"""Evaluations in pieces: what a killed process had counted is not sampled again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from advsweep.evaluation.evaluate import ProblemResult, count
from advsweep.private_files import make_private_folder, open_private

if TYPE_CHECKING:
    from advsweep.config.settings import EvaluationSettings
    from advsweep.tasks.base import Problem, Sampler, Task

SAMPLES = 1024
"""About how many samples a piece has; problems are not divided."""


def evaluate_in_pieces(
    sampler: Callable[[], Sampler],
    task: Task,
    settings: EvaluationSettings,
    problems: Sequence[Problem],
    folder: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ProblemResult]:
    """Evaluates as `evaluate` does, and keeps each piece in a folder as soon as it is counted.

    Pieces draw from seeds of their own, which follow from the evaluation's and their place: an
    evaluation that was interrupted comes to the counts of one that was not.

    Args:
        sampler: gives the weights; called only when they are needed, and once.
        folder: of this evaluation alone, by its identity; made when the first piece is kept.
        on_progress: called with how many problems are counted, and of how many.
    """
    made: Sampler | None = None
    results: list[ProblemResult] = []
    for number, piece in enumerate(_pieces(problems, settings.n)):
        on_progress(len(results), len(problems))
        file = folder / f"{number:05d}.json"
        if file.exists():
            results += _read(file, piece)
            continue
        made = made or sampler()
        counted = count(made, task, settings, piece, _seed(settings.seed, number))
        _write(file, counted)
        results += counted
    on_progress(len(results), len(problems))
    return results


def _pieces(problems: Sequence[Problem], n: int) -> Iterator[Sequence[Problem]]:
    size = max(1, SAMPLES // n)
    return (problems[start : start + size] for start in range(0, len(problems), size))


def _seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _write(file: Path, results: Sequence[ProblemResult]) -> None:
    """Writes a piece whole or not at all."""
    make_private_folder(file.parent)
    rows: list[dict[str, Any]] = [{**asdict(r), "problem": r.problem.id} for r in results]
    with open_private(part := file.with_suffix(".part"), "w", encoding="utf-8") as written:
        json.dump(rows, written)
        written.flush()
        os.fsync(written.fileno())
    part.replace(file)


def _read(file: Path, problems: Sequence[Problem]) -> list[ProblemResult]:
    rows = json.loads(file.read_text(encoding="utf-8"))
    assert [row["problem"] for row in rows] == [problem.id for problem in problems]
    return [
        ProblemResult(**{**row, "problem": problem})
        for row, problem in zip(rows, problems, strict=True)
    ]
