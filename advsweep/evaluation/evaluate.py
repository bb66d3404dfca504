"""Samples answers to held-out problems, verifies them and counts.

Counts are kept per problem, so that any pass@k, any split by level and any bootstrap can be
made later without the weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from advsweep.components import Plain
from advsweep.config.settings import EvaluationSettings
from advsweep.local_files import make_private_folder, open_private
from advsweep.statistics import answer_entropy
from advsweep.tasks.base import Problem, Sampler, Split, Task

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.config.settings import EvaluationSettings
    from advsweep.tasks.base import Problem, Sampler, Task

REVISION = 1
"""Raised when a fix changes what an evaluation counts; old evaluations are then made again."""


@dataclass(frozen=True)
class ProblemResult:
    """What n samples of one problem came to.

    Attributes:
        n: samples that could be scored.
        c: correct ones among them.
        distinct: different canonical answers; unreadable ones are not counted.
        unscorable: samples that the verifier could not judge; they are not in `n`.
        answer_entropy: entropy of the answers' empirical distribution, in nats, unreadable
            answers being one class of their own.
        token_entropy: mean exact entropy per generated token, in nats; None where the
            sampler cannot tell.
    """

    problem: Problem
    n: int
    c: int
    distinct: int
    unscorable: int
    answer_entropy: float
    token_entropy: float | None


def evaluate(sampler: Sampler, task: Task, settings: EvaluationSettings) -> list[ProblemResult]:
    """Draws `settings.n` answers to each held-out problem and counts the correct ones."""
    return count(sampler, task, settings, task.problems(Split.HELD_OUT), settings.seed)


def count(
    sampler: Sampler,
    task: Task,
    settings: EvaluationSettings,
    problems: Sequence[Problem],
    seed: int,
) -> list[ProblemResult]:
    """Draws `settings.n` answers to each of some problems and counts the correct ones."""
    completions = sampler.sample(problems, settings.n, temperature=settings.temperature, seed=seed)
    repeated = [problem for problem in problems for _ in range(settings.n)]
    texts = [text for group in completions.texts for text in group]
    rewards = task.score(repeated, texts).reshape(len(problems), settings.n)
    answers = task.answers(repeated, texts)
    entropies = completions.token_entropy
    return [
        _count(
            problem,
            rewards[i],
            answers[i * settings.n : (i + 1) * settings.n],
            None if entropies is None else float(entropies[i]),
        )
        for i, problem in enumerate(problems)
    ]


def _count(
    problem: Problem,
    rewards: np.ndarray,
    answers: Sequence[str | None],
    token_entropy: float | None,
) -> ProblemResult:
    counts = Counter(answers)
    scored = ~np.isnan(rewards)
    return ProblemResult(
        problem=problem,
        n=int(scored.sum()),
        c=int((rewards[scored] == 1.0).sum()),
        distinct=len(counts) - (None in counts),
        unscorable=int((~scored).sum()),
        answer_entropy=answer_entropy(list(counts.values())),
        token_entropy=token_entropy,
    )


def evaluation_identity(
    subject: str,
    task: Task,
    settings: EvaluationSettings,
    split: Split = Split.HELD_OUT,
    sampler: str | None = None,
) -> str:
    """What makes two evaluations the same: the weights, the problems and the sampling.

    Args:
        subject: names the weights, such as `RUN_IDENTITY@STEP`, `base:KEY` or `model:KEY`.
        split: the problems that are answered.
        sampler: what samples, by `Generation.sampler`: others round otherwise.
    """
    material: Plain = {
        "revision": REVISION,
        "subject": subject,
        "task": task.identity(),
        "n": settings.n,
        "temperature": settings.temperature,
        "seed": settings.seed,
    }
    # What came later is no part of evaluations that do without it.
    if settings.top_p < 1:
        material["top_p"] = settings.top_p
    if split is not Split.HELD_OUT:
        material["split"] = split.value
    if sampler is not None:
        material["sampler"] = sampler
    return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()


LOWER_BOUNDS = (0.95, 0.8, 0.5, 0.3, 0.1, 0.01)
"""The least solve rates of the levels 0 to 5; below the last is level 6.

Source: AVSPO, App. A.1. Departures: the signs of comparison are not in the text we have; a rate
on a bound is taken for the easier level, so that the levels are exhaustive.
"""


def solve_rate_levels(rates: Float[np.ndarray, " problems"]) -> Int[np.ndarray, " problems"]:
    """The levels 0 (nearly always solved) to 6 (nearly never) of some solve rates."""
    levels: Int[np.ndarray, " problems"] = np.sum(rates[:, None] < np.array(LOWER_BOUNDS), axis=1)
    return levels


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
