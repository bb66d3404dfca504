"""Samples answers to problems, verifies them and counts the correct ones.

Counts are kept per problem, so that any pass@k, split by level or bootstrap can be computed
later without the weights.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from advsweep.components import Plain
from advsweep.config.validation import reported_problems
from advsweep.local_files import make_private_folder, replace_file
from advsweep.statistics import answer_entropy
from advsweep.store.evaluation_records import shorten
from advsweep.tasks.base import Problem, Split

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.config.settings import EvaluationSettings
    from advsweep.tasks.base import Sampler, Task

REVISION = 1
"""Raised when a fix changes what an evaluation counts; old evaluations are then repeated."""

LOWER_BOUNDS = (0.95, 0.8, 0.5, 0.3, 0.1, 0.01)
"""The lowest solve rates of the levels 0 to 5; rates below the last are level 6.

Source: AVSPO, App. A.1. Departures: our copy of the text lacks the comparison signs; a rate on
a bound counts as the easier level, so that the levels are exhaustive.
"""

PIECE_SAMPLES = 1024
"""Approximate number of samples in a piece; problems are not divided."""


@dataclass(frozen=True)
class ProblemResult:
    """The counts of one problem.

    Attributes:
        n: samples that could be scored.
        c: correct ones among them.
        distinct: different canonical answers; unreadable ones are not counted.
        unscorable: samples that the verifier could not judge; they are not in `n`.
        answer_entropy: entropy of the answers' empirical distribution, in nats; unreadable
            answers are one class.
        token_entropy: mean exact entropy per generated token, in nats; None if the sampler
            does not compute it.
        right_entropy: entropy of the right answers' empirical distribution, in nats; None if no
            answer is right.
        kl_base: KL of an answer from the base model, as `Completions` has it.
        right_counts: how often each distinct right answer came, the most frequent first; None for
            a piece that an older version wrote.
        first: the first of the answers, with keys as the arguments of `AnswerSample`; None for a
            piece that an older version wrote.
    """

    problem: Problem
    n: int
    c: int
    distinct: int
    unscorable: int
    answer_entropy: float
    token_entropy: float | None
    right_entropy: float | None = None
    kl_base: float | None = None
    right_counts: Sequence[int] | None = None
    first: Plain | None = None


def evaluate(sampler: Sampler, task: Task, settings: EvaluationSettings) -> list[ProblemResult]:
    """Draw `settings.n` answers to each reported problem and count the correct ones."""
    return count(sampler, task, settings, reported_problems(task, settings), settings.seed)


def some_problems(task: Task, split: Split, number: int) -> list[Problem]:
    """Returns at most `number` problems of a split: as many of each level, spread over its list."""
    return spread_over_levels(task.problems(split), number)


def spread_over_levels(problems: Sequence[Problem], number: int) -> list[Problem]:
    """Returns at most `number` of some problems: as many of each level, spread over its list."""
    if number >= len(problems):
        return list(problems)
    by_level: dict[int, list[Problem]] = {}
    for problem in problems:
        by_level.setdefault(problem.level, []).append(problem)
    shares, extra = divmod(number, len(by_level))
    chosen: list[Problem] = []
    for place, (_, own) in enumerate(sorted(by_level.items())):
        count = min(shares + (place < extra), len(own))
        chosen += [own[index * len(own) // count] for index in range(count)]
    return chosen


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
    entropies, kl = completions.token_entropy, completions.kl_base
    return [
        _count(
            problem,
            texts[i * settings.n],
            rewards[i],
            answers[i * settings.n : (i + 1) * settings.n],
            None if entropies is None else float(entropies[i]),
            None if kl is None else float(kl[i]),
        )
        for i, problem in enumerate(problems)
    ]


def _count(
    problem: Problem,
    first: str,
    rewards: np.ndarray,
    answers: Sequence[str | None],
    token_entropy: float | None,
    kl_base: float | None = None,
) -> ProblemResult:
    counts = Counter(answers)
    scored, right = ~np.isnan(rewards), rewards == 1.0
    of_right = Counter(answer for answer, is_right in zip(answers, right, strict=True) if is_right)
    return ProblemResult(
        problem=problem,
        n=int(scored.sum()),
        c=int(right.sum()),
        distinct=len(counts) - (None in counts),
        unscorable=int((~scored).sum()),
        answer_entropy=answer_entropy(list(counts.values())),
        token_entropy=token_entropy,
        right_entropy=answer_entropy(list(of_right.values())) if of_right else None,
        kl_base=kl_base,
        right_counts=sorted(of_right.values(), reverse=True),
        first={
            "answer": shorten(first),
            "length": len(first),
            "read": None if answers[0] is None else shorten(answers[0]),
            "reward": float(rewards[0]) if scored[0] else None,
        },
    )


def evaluation_identity(
    subject: str,
    task: Task,
    settings: EvaluationSettings,
    split: Split = Split.HELD_OUT,
    sampler: str | None = None,
    problems: int | None = None,
    validates: Task | None = None,
) -> str:
    """Returns the hash of the weights, the problems and the sampling.

    Args:
        subject: names the weights, such as `RUN_IDENTITY@STEP`, `base:KEY` or `model:KEY`.
        split: the problems that are answered.
        sampler: the kind of sampler, by `Generation.sampler`; each rounds differently.
        problems: how many of the split's problems are answered, by `some_problems`; None for all.
        validates: the run's own task, if validation problems are answered in its place.
    """
    material: Plain = {
        "revision": REVISION,
        "subject": subject,
        "task": task.identity(),
        "n": settings.n,
        "temperature": settings.temperature,
        "seed": settings.seed,
    }
    # Left out at their defaults: identities from before these settings existed stay valid.
    if settings.top_p < 1:
        material["top_p"] = settings.top_p
    if split is not Split.HELD_OUT:
        material["split"] = split.value
    if sampler is not None:
        material["sampler"] = sampler
    if problems is not None:
        material["problems"] = problems
    if settings.validation_share and split is Split.HELD_OUT:
        material["validation_share"] = settings.validation_share
    if validates is not None:
        material["validates"] = validates.identity()
    return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()


def solve_rate_levels(rates: Float[np.ndarray, " problems"]) -> Int[np.ndarray, " problems"]:
    """Returns the levels of solve rates: 0 (nearly always solved) to 6 (nearly never)."""
    levels: Int[np.ndarray, " problems"] = np.sum(rates[:, None] < np.array(LOWER_BOUNDS), axis=1)
    return levels


def evaluate_in_pieces(
    sampler: Callable[[], Sampler],
    task: Task,
    settings: EvaluationSettings,
    problems: Sequence[Problem],
    folder: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ProblemResult]:
    """Evaluates problems in pieces, and keeps each counted piece in a folder.

    Each piece has a seed that follows from the evaluation's seed and its position, so that an
    interrupted evaluation yields the same counts as an uninterrupted one.

    Args:
        sampler: loads the weights; called at most once, and only if they are needed.
        folder: takes the pieces of this evaluation alone; made with the first piece.
        on_progress: receives the number of counted problems, and of all.
    """
    made: Sampler | None = None
    results: list[ProblemResult] = []
    size = max(1, PIECE_SAMPLES // settings.n)
    for number, start in enumerate(range(0, len(problems), size)):
        piece = problems[start : start + size]
        on_progress(len(results), len(problems))
        file = folder / f"{number:05d}.json"
        if file.exists():
            results += _read(file, piece)
            continue
        made = made or sampler()
        seed = int(np.random.SeedSequence([settings.seed, number]).generate_state(1)[0])
        counted = count(made, task, settings, piece, seed)
        _write(file, counted)
        results += counted
    on_progress(len(results), len(problems))
    return results


def _write(file: Path, results: Sequence[ProblemResult]) -> None:
    make_private_folder(file.parent)
    rows: list[dict[str, Any]] = [{**asdict(r), "problem": r.problem.id} for r in results]
    replace_file(file, json.dumps(rows))


def _read(file: Path, problems: Sequence[Problem]) -> list[ProblemResult]:
    rows = json.loads(file.read_text(encoding="utf-8"))
    assert [row["problem"] for row in rows] == [problem.id for problem in problems]
    return [
        ProblemResult(**{**row, "problem": problem})
        for row, problem in zip(rows, problems, strict=True)
    ]
