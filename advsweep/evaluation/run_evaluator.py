"""Evaluations of a run: each is made once, and those of a base model are shared by its runs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from filelock import FileLock

from advsweep.backends.identity import hash_json
from advsweep.backends.work_clock import Work, WorkClock
from advsweep.config.validation import reported_problems, validation_problems
from advsweep.evaluation.evaluate import (
    REVISION,
    ProblemChoice,
    ProblemResult,
    Questions,
    count,
    evaluation_identity,
    spread_over_levels,
)
from advsweep.local_files import FILE_MODE, make_private_folder
from advsweep.store import NewEvaluation, ProblemCounts
from advsweep.store.evaluation_records import MAX_SAMPLES
from advsweep.store.evaluations import HELD_OUT
from advsweep.tasks.base import Split

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.backends.reporter import CountedProblem
    from advsweep.components import Plain
    from advsweep.config.settings import EvaluationSettings
    from advsweep.store import EvaluationRecord, Store
    from advsweep.tasks.base import Problem, Sampler, Task


# Settings that say which other evaluations a run has.
_OF_OTHERS = ("at", "n_between", "train_problems", "select_on")

# The `split` of evaluations on the problems that choose a run's checkpoint.
VALIDATION = "validation"


@dataclass(frozen=True)
class _Part:
    """One of the evaluations after a step.

    Attributes:
        split: which problems it is on, as its stored settings name them.
        task: scores the answers.
        problems: makes the problems; called only if they are evaluated.
    """

    split: str
    task: Task
    problems: Callable[[], Sequence[Problem]]
    settings: EvaluationSettings
    identity: str


@dataclass(frozen=True)
class Evaluator:
    """Evaluates one run by the settings of its `evaluation` node.

    Attributes:
        attempt: of the run; a repeated training is evaluated anew.
        clock: measures the evaluations that are made.
    """

    store: Store
    run: Run
    run_id: int
    attempt: int
    clock: WorkClock = field(default_factory=WorkClock, compare=False)

    def _identity(
        self, step: int, settings: EvaluationSettings, task: Task, choice: ProblemChoice
    ) -> str:
        """Return the identity of an evaluation after `step` steps; see `evaluation_identity`."""
        subject = subject_of(self.run, self.attempt, step)
        return evaluation_identity(subject, task, settings, choice, self.run.generation.sampler)

    def _parts(self, step: int) -> Iterator[_Part]:
        """Yield the evaluations after `step` steps; each is to be made before the next is taken.

        The score on validation problems decides how many samples the others have.
        """
        if self.run.evaluation.validation is not None:
            yield self._validation(step)
        yield self._reported(step)
        settings = self._settings(step)
        if settings.train_problems:
            yield self._of_training(step, settings)

    def _reported(self, step: int) -> _Part:
        task = self.run.task
        settings = self._settings(step)
        make = functools.partial(reported_problems, task, settings)
        identity = self._identity(step, settings, task, ProblemChoice())
        return _Part(HELD_OUT, task, make, settings, identity)

    def _of_training(self, step: int, settings: EvaluationSettings) -> _Part:
        task = self.run.task
        number = settings.train_problems
        choice = ProblemChoice(Split.TRAIN, number)
        identity = self._identity(step, settings, task, choice)

        def problems() -> Sequence[Problem]:
            return spread_over_levels(task.problems(Split.TRAIN), number)

        return _Part(Split.TRAIN.value, task, problems, settings, identity)

    def _validation(self, step: int) -> _Part:
        settings = self.run.evaluation.of_validation()
        task, problems = validation_problems(self.run.task, settings)
        choice = ProblemChoice(validates=self.run.task)
        identity = self._identity(step, settings, task, choice)
        return _Part(VALIDATION, task, lambda: problems, settings, identity)

    def _settings(self, step: int) -> EvaluationSettings:
        """Return how reported problems are sampled; a step that may be selected is as an end."""
        settings = self.run.evaluation
        if step in (0, self.run.steps):
            return settings
        scores = self.validation_scores()
        earlier = (score for other, score in scores.items() if other < step)
        is_best = step in scores and scores[step] > max(earlier, default=-math.inf)
        return settings if is_best else settings.between()

    def validation_scores(self) -> dict[int, float]:
        """Return pass@1 on validation problems after each step that has it; empty without any."""
        if self.run.evaluation.validation is None:
            return {}
        scores = {}
        for evaluation in self.store.evaluations.select([self.run_id], split=VALIDATION):
            step = evaluation.step
            if evaluation.identity == self._validation(step).identity:
                scores[step] = evaluation.scores([1])["pass@1"]
        return scores

    def selected_step(self) -> int | None:
        """Return the first step with the best pass@1 on validation problems.

        None until all evaluations of the schedule are made.
        """
        scores = self.validation_scores()
        if not scores.keys() >= set(self.run.evaluation.schedule(self.run.steps)):
            return None
        # A step whose answers could not be scored is never the best. Of equal ones the first is:
        # a later checkpoint has cost more.
        return max(sorted(scores), key=lambda step: (not math.isnan(scores[step]), scores[step]))

    def has_base(self) -> bool:
        """Return whether the store has the evaluations of the base model that the run needs."""
        return all(self.store.evaluations.has(part.identity) for part in self._parts(0))

    def missing(self) -> list[int]:
        """Return the steps of a completed training, first and last, without an evaluation.

        A calibration is not evaluated, nor is a run that a program apart from advsweep trains.
        """
        if self.run.optimizer.calibrates or self.run.backend.external:
            return []
        linked = self.store.evaluations.identities(self.run_id)
        missing = []
        for step in (0, self.run.steps):
            if any(part.identity not in linked for part in self._parts(step)):
                missing.append(step)
        return missing

    def ensure(self, step: int, sampler: Callable[[], Sampler]) -> EvaluationRecord:
        """Return the evaluation after `step` steps; make it if the store has none.

        The evaluations on validation and training problems are made as well, if there are to be
        any.

        Args:
            sampler: loads the weights; called at most once, and only if they are needed.
        """
        # Loading weights may take minutes, and most evaluations of step 0 exist already.
        sampler = functools.cache(sampler)
        for part in self._parts(step):
            # Runs that start together share a base model: one evaluates it, the others wait.
            shared = lock_of(self.store, part.identity) if step == 0 else nullcontext()
            with self.clock.doing(Work.WAITING), shared:
                self._make(part, step, sampler)
        identity = self._reported(step).identity
        return self.store.evaluations.find(identity, run_id=self.run_id, step=step)

    def record(self, step: int, task: str, problems: Sequence[CountedProblem]) -> EvaluationRecord:
        """Record an evaluation that the training made itself, and return it.

        One of the same step is there already if the training was resumed before it: that stays.
        """
        subject = subject_of(self.run, self.attempt, step)
        identity = hash_json({"revision": REVISION, "subject": subject, "counted": task})
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
                    )
                    for problem in problems
                ],
            )
        )
        return self.store.evaluations.find(identity, run_id=self.run_id, step=step)

    def _make(self, part: _Part, step: int, sampler: Callable[[], Sampler]) -> None:
        # Identities are of content: another run's evaluation of the same weights is this one.
        if self.store.evaluations.has(part.identity):
            self.store.evaluations.link(self.run_id, part.identity, step)
            return
        # The samples of reported problems alone are counted: their time is that of all parts.
        units = part.settings.n if part.split == HELD_OUT else 0
        with self.clock.doing(Work.EVALUATION, units):
            self._answer(part, step, sampler)

    def _answer(self, part: _Part, step: int, sampler: Callable[[], Sampler]) -> None:
        """Sample the answers to the problems of an evaluation, and record them."""
        run = self.run
        questions = Questions(part.task, part.settings, part.problems())
        results = count(sampler(), questions, part.settings.seed)
        limits = run.backend.answer_limits(run.generation, part.task)
        evaluation = NewEvaluation(
            identity=part.identity,
            subject=subject_of(run, self.attempt, step),
            run_id=self.run_id,
            step=step,
            task=part.task.label,
            settings=settings_of(
                part.settings, run.generation.sampler, part.task, limits, part.split
            ),
            problems=[result.counts for result in results],
        )
        add_evaluation(self.store, evaluation, results)


def add_evaluation(
    store: Store, evaluation: NewEvaluation, results: Sequence[ProblemResult]
) -> None:
    """Add an evaluation to the store, with the first answers to some of its problems.

    These problems are spread over the levels and do not depend on the weights: evaluations of the
    same problems keep answers to the same.
    """
    samples = spread_over_levels([result.first for result in results], MAX_SAMPLES)
    store.evaluations.add(evaluation, samples)


def subject_of(run: Run, attempt: int, step: int) -> str:
    """Return the name that evaluations give the weights of a run after `step` steps."""
    if step == 0:
        return f"base:{run.backend.base_key(run)}"
    again = f".{attempt}" if attempt > 1 else ""
    return f"{run.identity}{again}@{step}"


def lock_of(store: Store, identity: str) -> FileLock:
    """Return the lock to hold while an evaluation is made that other processes may need."""
    locks = store.runs_directory / ".locks"
    make_private_folder(locks)
    return FileLock(locks / f"evaluation-{identity[:16]}.lock", mode=FILE_MODE)


def settings_of(
    settings: EvaluationSettings, sampler: str | None, task: Task, limits: Plain, split: str
) -> Plain:
    """Return the settings of an evaluation as the store keeps them.

    Args:
        sampler: the kind of sampler, by `Generation.sampler`.
        limits: those of an answer, by `Backend.answer_limits`.
        split: which problems are answered; the store leaves `HELD_OUT` out.
    """
    protocol = task.protocol()
    # Only dataset tasks have a protocol. The answers of generated tasks have a fixed length, and
    # their stored settings must not change.
    if protocol:
        protocol |= limits
    stored = {name: value for name, value in settings.plain().items() if name not in _OF_OTHERS}
    if sampler is not None:
        stored["sampler"] = sampler
    stored |= protocol
    if split != HELD_OUT:
        stored["split"] = split
    return stored
