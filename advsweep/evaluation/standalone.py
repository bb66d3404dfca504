"""Evaluations that are asked for: of a checkpoint or a model, on any task, at any time."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from advsweep.backends.build import check_sampling
from advsweep.errors import ConfigError, SamplerError
from advsweep.evaluation import evaluate_in_pieces, evaluation_identity
from advsweep.evaluation.run_evaluator import counts_of, lock_of, settings_of, subject_of
from advsweep.store import NewEvaluation
from advsweep.store.evaluations import MODEL_SUBJECT
from advsweep.tasks.base import Split

if TYPE_CHECKING:
    from advsweep.backends.base import Backend, Run
    from advsweep.components import Component, Plain
    from advsweep.config.settings import EvaluationSettings, Generation
    from advsweep.store import EvaluationRecord, RunRecord, Store
    from advsweep.tasks.base import Sampler, Task


@dataclass(frozen=True)
class SamplingMethod:
    """One way to sample from weights.

    Attributes:
        sampler: has them answer a task's problems; called only when they are needed.
        name: of what samples, by `Generation.sampler`.
    """

    sampler: Callable[[Task, EvaluationSettings], Sampler]
    name: str | None = None


@dataclass(frozen=True)
class EvaluationSubject:
    """What is evaluated.

    Attributes:
        subject: names the weights in the evaluation's identity.
        ways: how they may be sampled from, the first choice first.
        run_id: the run that they are of; None for a model without a run.
        step: training steps that they have seen in that run.
        described: what the store is to keep beside the settings.
        answer_tokens: the most tokens of an answer to a task, by `Backend.answer_tokens`.
    """

    subject: str
    ways: Sequence[SamplingMethod]
    run_id: int | None = None
    step: int = 0
    described: Plain = field(default_factory=dict)
    answer_tokens: Callable[[Task], int | None] = lambda task: None


def model_subject(
    backend: Backend, model: Component, generations: Sequence[Generation], title: str
) -> EvaluationSubject:
    """A model that no run has trained.

    Args:
        generations: those that may sample from it, the first choice first; they differ in
            nothing but that.
        title: what listings and reports call it.

    Raises:
        ConfigError: the backend has no such model.
    """

    def way(generation: Generation) -> SamplingMethod:
        return SamplingMethod(
            lambda task, settings: backend.model_sampler(model, generation, task, settings),
            generation.sampler,
        )

    return EvaluationSubject(
        subject=f"{MODEL_SUBJECT}{backend.model_key(model, generations[0])}",
        ways=[way(generation) for generation in generations],
        described={"model": title},
        answer_tokens=functools.partial(backend.answer_tokens, generations[0]),
    )


def run_subject(
    run: Run, record: RunRecord, step: int, generations: Sequence[Generation] = ()
) -> EvaluationSubject:
    """The weights of a run after `step` steps; 0: its base model's.

    Args:
        generations: those that may sample from them, the first choice first; none: as the run
            itself does.
    """

    def way(generation: Generation | None) -> SamplingMethod:
        def sampler(task: Task, settings: EvaluationSettings) -> Sampler:
            check_sampling(run.backend, settings)
            run_so = replace(run, evaluation=settings)
            if generation is None:
                return run.backend.sampler(run_so, record.directory, step, task)
            return run.backend.sampler_by(generation, run_so, record.directory, step, task)

        return SamplingMethod(sampler, (generation or run.generation).sampler)

    ways = [way(generation) for generation in (generations or (None,))]
    return EvaluationSubject(
        subject_of(run, record.attempt, step),
        ways,
        record.id,
        step,
        answer_tokens=functools.partial(run.backend.answer_tokens, run.generation),
    )


def evaluate_subject(
    store: Store,
    weights: EvaluationSubject,
    task: Task,
    settings: EvaluationSettings,
    *,
    split: Split = Split.HELD_OUT,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_change: Callable[[str], None] = lambda why: None,
) -> EvaluationRecord:
    """The evaluation of some weights, made now as far as the store and an earlier try have not.

    One that is there counts, whichever of the ways it was made in; otherwise the first way is
    taken in which the weights can be sampled from. What is counted is kept in pieces until all
    are there, in the folder of all runs.

    Args:
        on_progress: called with how many problems are counted, and of how many.
        on_change: called with why a way was given up, before the next is tried.

    Raises:
        ConfigError: the task has no such problems, or the weights cannot answer them.
        SamplerError: the weights can be sampled from in none of the ways.
    """
    task.check()
    task.check_consent()
    problems = task.problems(split)
    if not problems:
        what = split.value.replace("_", "-")
        raise ConfigError(f"task: expected {what} problems, which '{task.label}' has none of")
    asked = _Asked(store, weights, task, settings, split, on_progress)
    made = (way for way in weights.ways if store.evaluations.has(asked.identity(way)))
    *others, last = [way] if (way := next(made, None)) else weights.ways
    for way in others:
        try:
            return asked.make(way)
        except SamplerError as error:
            on_change(str(error))
    return asked.make(last)


@dataclass(frozen=True)
class _Asked:
    """An evaluation that may be made in several ways."""

    store: Store
    weights: EvaluationSubject
    task: Task
    settings: EvaluationSettings
    split: Split
    on_progress: Callable[[int, int], None]

    def identity(self, way: SamplingMethod) -> str:
        return evaluation_identity(
            self.weights.subject, self.task, self.settings, self.split, way.name
        )

    def make(self, way: SamplingMethod) -> EvaluationRecord:
        store, weights, identity = self.store, self.weights, self.identity(way)
        with lock_of(store, identity):
            if not store.evaluations.has(identity):
                folder = store.runs_directory / ".evaluations" / identity[:16]
                results = evaluate_in_pieces(
                    lambda: way.sampler(self.task, self.settings),
                    self.task,
                    self.settings,
                    self.task.problems(self.split),
                    folder,
                    self.on_progress,
                )
                asked = {} if self.split is Split.HELD_OUT else {"split": self.split.value}
                store.evaluations.add(
                    NewEvaluation(
                        identity=identity,
                        subject=weights.subject,
                        run_id=weights.run_id,
                        step=weights.step,
                        task=self.task.label,
                        settings={
                            **settings_of(
                                self.settings,
                                way.name,
                                self.task,
                                weights.answer_tokens(self.task),
                            ),
                            **weights.described,
                            **asked,
                        },
                        problems=[counts_of(result) for result in results],
                    )
                )
                shutil.rmtree(folder, ignore_errors=True)
            elif weights.run_id is not None:
                store.evaluations.link(weights.run_id, identity, weights.step)
        return replace(store.evaluations.find(identity), run_id=weights.run_id, step=weights.step)
