"""Samples answers to held-out problems, verifies them and counts.

Counts are kept per problem, so that any pass@k, any split by level and any bootstrap can be
made later without the weights.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advsweep.components import Plain
from advsweep.config.settings import EvaluationSettings
from advsweep.statistics import answer_entropy
from advsweep.tasks.base import Problem, Sampler, Split, Task

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
