"""Sample answers to problems, verify them and count the correct ones.

Counts are kept per problem, so that any pass@k, split by level or bootstrap can be computed
later without the weights.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from advsweep.backends.base import hash_json
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
    """Draw `settings.n` answers to each of some problems and count the correct ones."""
    completions = sampler.sample(problems, settings.n, temperature=settings.temperature, seed=seed)
    repeated = [problem for problem in problems for _ in range(settings.n)]
    texts = [text for group in completions.texts for text in group]
    rewards = task.score(repeated, texts).reshape(len(problems), settings.n)
    answers = task.answers(repeated, texts)
    entropies, kl = completions.token_entropy, completions.kl_base
    results = []
    for i, problem in enumerate(problems):
        start = i * settings.n
        own, read = rewards[i], answers[start : start + settings.n]
        scored, right = ~np.isnan(own), own == 1.0
        # Unreadable answers are one class.
        every, of_right = Counter(read), Counter(np.array(read, dtype=object)[right].tolist())
        named: dict[str, Any] = {"problem_id": problem.id, "prompt": problem.prompt}
        named["level"] = problem.level
        counts = ProblemCounts(
            **named,
            n=int(scored.sum()),
            c=int(right.sum()),
            distinct=len(every) - (None in every),
            unscorable=int((~scored).sum()),
            answer_entropy=answer_entropy(list(every.values())),
            token_entropy=None if entropies is None else float(entropies[i]),
            right_entropy=answer_entropy(list(of_right.values())) if of_right else None,
            kl_base=None if kl is None else float(kl[i]),
            right_counts=sorted(of_right.values(), reverse=True),
        )
        first = AnswerSample(
            **named,
            answer=shorten(texts[start]),
            length=len(texts[start]),
            read=None if read[0] is None else shorten(read[0]),
            reward=float(own[0]) if scored[0] else None,
        )
        results.append(ProblemResult(counts, first))
    return results


def evaluation_identity(
    subject: str,
    task: Task,
    settings: EvaluationSettings,
    split: Split = Split.HELD_OUT,
    sampler: str | None = None,
    problems: int | None = None,
    validates: Task | None = None,
) -> str:
    """Return the hash of the weights, the problems and the sampling.

    Args:
        subject: names the weights, such as `RUN_IDENTITY@STEP`, `base:KEY` or `model:KEY`.
        split: the problems that are answered.
        sampler: the kind of sampler, by `Generation.sampler`; each rounds differently.
        problems: how many of the split's problems are answered; None for all.
        validates: the run's own task, if validation problems are answered in its place.
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
    if split is not Split.HELD_OUT:
        material["split"] = split.value
    if sampler is not None:
        material["sampler"] = sampler
    if problems is not None:
        material["problems"] = problems
    if settings.validation_share and split is Split.HELD_OUT:
        material["validation_share"] = settings.validation_share
    if validates is not None:
        material["validates"] = identity_of(validates)
    return hash_json(material)


def solve_rate_levels(rates: Float[np.ndarray, " problems"]) -> Int[np.ndarray, " problems"]:
    """Return the levels of solve rates: 0 (nearly always solved) to 6 (nearly never)."""
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
    """Evaluate problems in pieces, and keep each counted piece in a folder.

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
        counted = _read(file, piece)
        if counted is None:
            made = made or sampler()
            # By the number of the piece, so that it does not matter which were drawn before.
            seed = int(np.random.SeedSequence([settings.seed, number]).generate_state(1)[0])
            counted = count(made, task, settings, piece, seed)
            make_private_folder(folder)
            rows = [{"counts": asdict(own.counts), "first": asdict(own.first)} for own in counted]
            # Whole or not at all, as the process may die while it writes.
            replace_file(file, json.dumps(rows))
        results += counted
    on_progress(len(results), len(problems))
    return results


def _read(file: Path, problems: Sequence[Problem]) -> list[ProblemResult] | None:
    """Return a counted piece; None without one, and for one that another version wrote."""
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
        found = [
            ProblemResult(ProblemCounts(**row["counts"]), AnswerSample(**row["first"]))
            for row in rows
        ]
    except (FileNotFoundError, KeyError, TypeError):
        return None
    is_same = [own.counts.problem_id for own in found] == [problem.id for problem in problems]
    return found if is_same else None
