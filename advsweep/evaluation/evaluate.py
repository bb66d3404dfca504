"""Sample answers to problems, verify them and count the correct ones.

Counts are kept per problem, so that any pass@k, split by level or bootstrap can be computed
later without the weights.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from advsweep.backends.identity import hash_json
from advsweep.components import Plain, identity_of
from advsweep.local_files import make_private_folder, replace_file
from advsweep.statistics import answer_entropy
from advsweep.store.evaluation_records import AnswerSample, ProblemCounts, shorten
from advsweep.tasks.base import Problem, Split

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.config.settings import EvaluationSettings
    from advsweep.tasks.base import Sampler, Task

# Raised when a fix changes what an evaluation counts; old evaluations are then repeated.
REVISION = 1

# The lowest solve rates of the levels 0 to 5; rates below the last are level 6.
#
# Source: AVSPO, App. A.1. Departures: our copy of the text lacks the comparison signs; a rate on a
# bound counts as the easier level, so that the levels are exhaustive.
LOWER_BOUNDS = (0.95, 0.8, 0.5, 0.3, 0.1, 0.01)

# Approximate number of samples in a piece; problems are not divided.
PIECE_SAMPLES = 1024


@dataclass(frozen=True)
class Questions:
    """Problems, and how answers to them are sampled and scored.

    Attributes:
        task: scores the answers.
        settings: how many answers of each problem are sampled, and how.
    """

    task: Task
    settings: EvaluationSettings
    problems: Sequence[Problem]


@dataclass(frozen=True)
class ProblemChoice:
    """Which problems of a task an evaluation answers.

    Attributes:
        number: how many of the split's problems; None for all.
        validates: the run's own task, if validation problems are answered in its place.
    """

    split: Split = Split.HELD_OUT
    number: int | None = None
    validates: Task | None = None


_HELD_OUT = ProblemChoice()


class ProblemResult(NamedTuple):
    """The counts of one problem, and the first of its answers, as the store keeps them."""

    counts: ProblemCounts
    first: AnswerSample


L = TypeVar("L", Problem, AnswerSample)


def spread_over_levels(problems: Sequence[L], number: int) -> list[L]:
    """Return at most `number` of some problems: as many of each level, spread over its list."""
    if number >= len(problems):
        return list(problems)
    by_level: dict[int, list[L]] = {}
    for problem in problems:
        by_level.setdefault(problem.level, []).append(problem)
    shares, extra = divmod(number, len(by_level))
    chosen: list[L] = []
    for index, level in enumerate(sorted(by_level)):
        of_level = by_level[level]
        # The first levels get one more each, until all are given out.
        count = shares + 1 if index < extra else shares
        count = min(count, len(of_level))
        chosen += [of_level[row * len(of_level) // count] for row in range(count)]
    return chosen


def count(sampler: Sampler, questions: Questions, seed: int) -> list[ProblemResult]:
    """Draw `settings.n` answers to each problem and count the correct ones."""
    task = questions.task
    problems = questions.problems
    n = questions.settings.n
    temperature = questions.settings.temperature
    completions = sampler.sample(problems, n, temperature=temperature, seed=seed)
    repeated = list(chain.from_iterable([problem] * n for problem in problems))
    texts = list(chain.from_iterable(completions.texts))
    rewards = completions.verdicts_by(task, problems)
    answers = task.answers(repeated, texts)
    token_entropy = completions.token_entropy
    kl_base = completions.kl_base
    results = []
    for row, problem in enumerate(problems):
        first = row * n
        counts = replace(
            _counts(problem, rewards[row], answers[first : first + n]),
            token_entropy=None if token_entropy is None else float(token_entropy[row]),
            kl_base=None if kl_base is None else float(kl_base[row]),
        )
        sample = _sample_of(problem, texts[first], answers[first], float(rewards[row, 0]))
        results.append(ProblemResult(counts, sample))
    return results


def _counts(
    problem: Problem, rewards: Float[np.ndarray, " answers"], answers: Sequence[str | None]
) -> ProblemCounts:
    """Return the counts of the answers to a problem.

    Args:
        rewards: NaN of an answer that could not be scored.
        answers: what the task has read; None of an unreadable answer.
    """
    scored = ~np.isnan(rewards)
    right = rewards == 1.0
    # Unreadable answers are one class.
    classes = Counter(answers)
    right_classes = Counter(np.array(answers, dtype=object)[right].tolist())
    right_entropy = None
    if right_classes:
        right_entropy = answer_entropy(list(right_classes.values()))
    return ProblemCounts(
        problem_id=problem.id,
        prompt=problem.prompt,
        level=problem.level,
        n=int(scored.sum()),
        c=int(right.sum()),
        distinct=len(classes) - (None in classes),
        unscorable=int((~scored).sum()),
        answer_entropy=answer_entropy(list(classes.values())),
        right_entropy=right_entropy,
        right_counts=sorted(right_classes.values(), reverse=True),
    )


def _sample_of(problem: Problem, text: str, answer: str | None, reward: float) -> AnswerSample:
    """Return an answer as the store keeps it."""
    return AnswerSample(
        problem_id=problem.id,
        prompt=problem.prompt,
        level=problem.level,
        answer=shorten(text),
        length=len(text),
        read=None if answer is None else shorten(answer),
        reward=None if math.isnan(reward) else reward,
    )


def evaluation_identity(
    subject: str,
    task: Task,
    settings: EvaluationSettings,
    choice: ProblemChoice = _HELD_OUT,
    sampler: str | None = None,
) -> str:
    """Return the hash of the weights, the problems and the sampling.

    Args:
        subject: names the weights, such as `RUN_IDENTITY@STEP`, `base:KEY` or `model:KEY`.
        sampler: the kind of sampler, by `Generation.sampler`; each rounds differently.
    """
    material: Plain = {
        "revision": REVISION,
        "subject": subject,
        "task": identity_of(task),
        "n": settings.n,
        "temperature": settings.temperature,
        "seed": settings.seed,
    }
    # Left out at their defaults: identities from before these settings existed stay valid.
    if settings.top_p < 1:
        material["top_p"] = settings.top_p
    if choice.split is not Split.HELD_OUT:
        material["split"] = choice.split.value
    if sampler is not None:
        material["sampler"] = sampler
    if choice.number is not None:
        material["problems"] = choice.number
    if settings.validation_share and choice.split is Split.HELD_OUT:
        material["validation_share"] = settings.validation_share
    if choice.validates is not None:
        material["validates"] = identity_of(choice.validates)
    return hash_json(material)


def solve_rate_levels(rates: Float[np.ndarray, " problems"]) -> Int[np.ndarray, " problems"]:
    """Return the levels of solve rates: 0 (nearly always solved) to 6 (nearly never)."""
    levels: Int[np.ndarray, " problems"] = np.sum(rates[:, None] < np.array(LOWER_BOUNDS), axis=1)
    return levels


def evaluate_in_pieces(
    sampler: Callable[[], Sampler],
    questions: Questions,
    folder: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ProblemResult]:
    """Evaluate problems in pieces, and keep each counted piece in a folder.

    Each piece has a seed that follows from the evaluation's seed and its position, so that an
    interrupted evaluation yields the same counts as an uninterrupted one.

    Args:
        sampler: loads the weights; called at most once, and only if they are needed.
        folder: takes the pieces of this evaluation alone; made with the first piece.
        on_progress: receives the number of counted problems, and of all.
    """
    loaded: Sampler | None = None
    results: list[ProblemResult] = []
    settings = questions.settings
    total = len(questions.problems)
    size = max(1, PIECE_SAMPLES // settings.n)
    for number, start in enumerate(range(0, total, size)):
        piece = replace(questions, problems=questions.problems[start : start + size])
        on_progress(len(results), total)
        file = folder / f"{number:05d}.json"
        counted = _read(file, piece.problems)
        if counted is None:
            loaded = loaded or sampler()
            # By the number of the piece, so that it does not matter which were drawn before.
            seed = int(np.random.SeedSequence([settings.seed, number]).generate_state(1)[0])
            counted = count(loaded, piece, seed)
            make_private_folder(folder)
            rows = [
                {"counts": asdict(result.counts), "first": asdict(result.first)}
                for result in counted
            ]
            # Whole or not at all, as the process may die while it writes.
            replace_file(file, json.dumps(rows))
        results += counted
    on_progress(len(results), total)
    return results


def _read(file: Path, problems: Sequence[Problem]) -> list[ProblemResult] | None:
    """Return a counted piece; None without one, and for one that another version wrote."""
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
        results = [
            ProblemResult(ProblemCounts(**row["counts"]), AnswerSample(**row["first"]))
            for row in rows
        ]
    except (FileNotFoundError, KeyError, TypeError):
        return None
    ids = [result.counts.problem_id for result in results]
    return results if ids == [problem.id for problem in problems] else None
