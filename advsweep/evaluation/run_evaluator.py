"""Evaluations of a run: each is made once, and those of a base model are shared by its runs."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from filelock import FileLock

from advsweep.evaluation.evaluate import (
    REVISION,
    ProblemResult,
    count,
    evaluate,
    evaluation_identity,
    some_problems,
    spread_over_levels,
)
from advsweep.local_files import FILE_MODE, make_private_folder
from advsweep.store import AnswerSample, NewEvaluation, ProblemCounts
from advsweep.store.samples import MAX_SAMPLES
from advsweep.tasks.base import Split

if TYPE_CHECKING:
    from advsweep.backends.base import CountedProblem, Run
    from advsweep.components import Plain
    from advsweep.config.settings import EvaluationSettings
    from advsweep.store import EvaluationRecord, Store
    from advsweep.tasks.base import Sampler, Task


_OF_OTHERS = ("at", "n_between", "train_problems")
"""Settings that say which other evaluations a run has."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates one run by the settings of its `evaluation` node.

    Attributes:
        attempt: of the run; a repeated training is evaluated anew.
    """

    store: Store
    run: Run
    run_id: int
    attempt: int

    def identity(self, step: int, split: Split = Split.HELD_OUT) -> str:
        """Returns the identity of the evaluation after `step` steps on problems of a split."""
        run = self.run
        return evaluation_identity(
            self._subject(step),
            run.task,
            self._settings(step),
            split,
            sampler=run.generation.sampler,
            problems=None if split is Split.HELD_OUT else run.evaluation.train_problems,
        )

    @property
    def _splits(self) -> list[Split]:
        """The splits whose problems are evaluated."""
        return [Split.HELD_OUT, *([Split.TRAIN] if self.run.evaluation.train_problems else [])]

    def _settings(self, step: int) -> EvaluationSettings:
        settings = self.run.evaluation
        return settings if step in (0, self.run.steps) else settings.between()

    def missing(self) -> list[int]:
        """Returns the steps of a completed training, first and last, without an evaluation.

        A calibration is not evaluated, nor is a run that a program apart from advsweep trains.
        """
        if self.run.optimizer.calibrates or self.run.backend.external:
            return []
        steps = (0, self.run.steps)
        linked = self.store.evaluations.identities(self.run_id)
        return [
            step
            for step in steps
            if any(self.identity(step, split) not in linked for split in self._splits)
        ]

    def ensure(self, step: int, sampler: Callable[[], Sampler]) -> EvaluationRecord:
        """Returns the evaluation after `step` steps; makes it if the store has none.

        The evaluation on training problems is made as well, if there is to be one.

        Args:
            sampler: loads the weights; called at most once, and only if they are needed.
        """
        sampler = functools.cache(sampler)
        for split in self._splits:
            if step == 0:
                # Runs that start together share a base model: one evaluates it, the others wait.
                with lock_of(self.store, self.identity(step, split)):
                    self._make(split, step, sampler)
            else:
                self._make(split, step, sampler)
        identity = self.identity(step)
        [evaluation] = self.store.evaluations.select([self.run_id], identity=identity)
        return evaluation

    def record(self, step: int, task: str, problems: Sequence[CountedProblem]) -> EvaluationRecord:
        """Records an evaluation that the training made itself; returns it.

        One of the same step is there already if the training was resumed before it: that stays.
        """
        subject = self._subject(step)
        material = {"revision": REVISION, "subject": subject, "counted": task}
        identity = hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()
        least = min(problem.n for problem in problems)
        self.store.evaluations.add(
            NewEvaluation(
                identity=identity,
                subject=subject,
                run_id=self.run_id,
                step=step,
                task=task,
                settings={
                    "n": least,
                    "k": [k for k in self.run.evaluation.k if k <= least] or [1],
                    "counted_by": self.run.backend.name,
                },
                problems=[
                    ProblemCounts(
                        problem_id=problem.problem,
                        prompt=problem.prompt,
                        level=problem.level,
                        n=problem.n,
                        c=problem.correct,
                        distinct=0,
                        unscorable=0,
                        # Unknown, as the answers are.
                        answer_entropy=math.nan,
                    )
                    for problem in problems
                ],
            )
        )
        [evaluation] = self.store.evaluations.select([self.run_id], identity=identity)
        return evaluation

    def _make(self, split: Split, step: int, sampler: Callable[[], Sampler]) -> None:
        identity = self.identity(step, split)
        if self.store.evaluations.has(identity):
            self.store.evaluations.link(self.run_id, identity, step)
            return
        run, own = self.run, self._settings(step)
        described: Plain = {}
        if split is Split.HELD_OUT:
            results = evaluate(sampler(), run.task, own)
        else:
            problems = some_problems(run.task, split, run.evaluation.train_problems)
            results = count(sampler(), run.task, own, problems, own.seed)
            described["split"] = split.value
        settings = settings_of(
            own,
            run.generation.sampler,
            run.task,
            run.backend.answer_tokens(run.generation, run.task),
        )
        self.store.evaluations.add(
            NewEvaluation(
                identity=identity,
                subject=self._subject(step),
                run_id=self.run_id,
                step=step,
                task=run.task.label,
                settings={**settings, **described},
                problems=counts_of(results),
            ),
            samples_of(results),
        )

    def _subject(self, step: int) -> str:
        return subject_of(self.run, self.attempt, step)


def subject_of(run: Run, attempt: int, step: int) -> str:
    """Returns the name that evaluations give the weights of a run after `step` steps."""
    if step == 0:
        return f"base:{run.backend.base_key(run)}"
    again = f".{attempt}" if attempt > 1 else ""
    return f"{run.identity}{again}@{step}"


def lock_of(store: Store, identity: str) -> FileLock:
    """Returns the lock to hold while an evaluation is made that other processes may need."""
    locks = store.runs_directory / ".locks"
    make_private_folder(locks)
    return FileLock(locks / f"evaluation-{identity[:16]}.lock", mode=FILE_MODE)


def settings_of(
    settings: EvaluationSettings, sampler: str | None, task: Task, tokens: int | None
) -> Plain:
    """Returns the settings of an evaluation as the store keeps them.

    Args:
        sampler: the kind of sampler, by `Generation.sampler`.
        tokens: the maximum length of an answer, by `Backend.answer_tokens`.
    """
    protocol = task.protocol()
    # Only dataset tasks have a protocol. The answers of generated tasks have a fixed length, and
    # their stored settings must not change.
    if protocol and tokens is not None:
        protocol["max_tokens"] = tokens
    own = {k: v for k, v in settings.plain().items() if k not in _OF_OTHERS}
    return own | ({} if sampler is None else {"sampler": sampler}) | protocol


def counts_of(results: Sequence[ProblemResult]) -> list[ProblemCounts]:
    """Returns results as the store keeps them."""
    return [
        ProblemCounts(
            problem_id=result.problem.id,
            prompt=result.problem.prompt,
            level=result.problem.level,
            n=result.n,
            c=result.c,
            distinct=result.distinct,
            unscorable=result.unscorable,
            answer_entropy=result.answer_entropy,
            token_entropy=result.token_entropy,
            right_entropy=result.right_entropy,
            kl_base=result.kl_base,
            right_counts=result.right_counts,
        )
        for result in results
    ]


def samples_of(results: Sequence[ProblemResult]) -> list[AnswerSample]:
    """Returns the first answers to some problems, spread over the levels, as the store keeps them.

    They do not depend on the weights: evaluations of the same problems keep answers to the same.
    """
    first = {result.problem.id: result.first for result in results}
    return [
        AnswerSample(problem_id=problem.id, prompt=problem.prompt, level=problem.level, **answer)
        for problem in spread_over_levels([r.problem for r in results], MAX_SAMPLES)
        if (answer := first[problem.id]) is not None
    ]
