"""Evaluations on request: of a checkpoint or a model, on any task, at any time."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from advsweep.backends.build import check_sampling
from advsweep.config.validation import reported_problems
from advsweep.errors import ConfigError, SamplerError
from advsweep.evaluation.evaluate import (
    ProblemChoice,
    Questions,
    evaluate_in_pieces,
    evaluation_identity,
)
from advsweep.evaluation.run_evaluator import add_evaluation, lock_of, settings_of, subject_of
from advsweep.store import NewEvaluation
from advsweep.store.evaluations import MODEL_SUBJECT
from advsweep.tasks.base import Split

if TYPE_CHECKING:
    from advsweep.backends.base import Backend, Run
    from advsweep.components import Component, Plain
    from advsweep.config.settings import EvaluationSettings, Generation
    from advsweep.store import EvaluationRecord, RunRecord, Store
    from advsweep.tasks.base import Problem, Sampler, Task


# Makes a sampler of some weights for a task; called only if it is needed.
Method = Callable[["Task", "EvaluationSettings"], "Sampler"]


@dataclass(frozen=True)
class EvaluationSubject:
    """The weights to evaluate.

    Attributes:
        subject: names the weights in the evaluation's identity.
        methods: how they may be sampled by the kind of sampler, the preferred first.
        run_id: the run of the weights; None for a model without a run.
        step: training steps of the weights in that run.
        described: what the store keeps in addition to the settings.
        answer_limits: those of answers to a task, by `Backend.answer_limits`.
    """

    subject: str
    methods: Mapping[str | None, Method]
    run_id: int | None = None
    step: int = 0
    described: Plain = field(default_factory=dict)
    answer_limits: Callable[[Task], Plain] = lambda task: {}


def model_subject(
    backend: Backend, model: Component, generations: Sequence[Generation], title: str
) -> EvaluationSubject:
    """Return a model that no run has trained.

    Args:
        generations: the settings that may sample from it, the preferred ones first; they differ
            in the kind of sampler alone.
        title: the model's name in listings and reports.

    Raises:
        ConfigError: the backend has no such model.
    """
    methods: dict[str | None, Method] = {}
    for generation in generations:
        methods[generation.sampler] = functools.partial(backend.model_sampler, model, generation)
    return EvaluationSubject(
        subject=f"{MODEL_SUBJECT}{backend.model_key(model, generations[0])}",
        methods=methods,
        described={"model": title},
        answer_limits=functools.partial(backend.answer_limits, generations[0]),
    )


def run_subject(
    run: Run, record: RunRecord, step: int, generations: Sequence[Generation] = ()
) -> EvaluationSubject:
    """Return the weights of a run after `step` steps; 0: its base model's.

    Args:
        generations: the settings that may sample from them, the preferred ones first; the run's
            own if there are none.
    """

    def sampler(generation: Generation | None, task: Task, settings: EvaluationSettings) -> Sampler:
        check_sampling(run.backend, settings)
        changed = replace(run, evaluation=settings)
        if generation is None:
            return run.backend.sampler(changed, record.directory, step, task)
        return run.backend.sampler_by(generation, changed, record.directory, step, task)

    methods: dict[str | None, Method] = {}
    if generations:
        for generation in generations:
            methods[generation.sampler] = functools.partial(sampler, generation)
    else:
        methods[run.generation.sampler] = functools.partial(sampler, None)
    return EvaluationSubject(
        subject_of(run, record.attempt, step),
        methods,
        record.id,
        step,
        answer_limits=functools.partial(run.backend.answer_limits, run.generation),
    )


def evaluate_subject(
    store: Store,
    subject: EvaluationSubject,
    task: Task,
    settings: EvaluationSettings,
    *,
    split: Split = Split.HELD_OUT,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_change: Callable[[str], None] = lambda why: None,
) -> EvaluationRecord:
    """Return the evaluation of some weights; make what the store and earlier tries lack.

    An existing evaluation counts, by whichever method it was made. Otherwise the first method
    is used that can sample from the weights. Finished pieces are kept in the folder of all runs
    until the evaluation is complete.

    Args:
        on_progress: receives the number of counted problems, and of all.
        on_change: receives the reason why a method was given up, before the next is tried.

    Raises:
        ConfigError: the task has no such problems, or the weights cannot answer them.
        SamplerError: no method can sample from the weights.
    """
    task.check()
    task.check_consent()
    questions = Questions(task, settings, _problems(task, settings, split))

    def identity_of(method: str | None) -> str:
        return evaluation_identity(subject.subject, task, settings, ProblemChoice(split), method)

    def ensure(method: str | None) -> EvaluationRecord:
        identity = identity_of(method)
        # Two commands may ask for the same weights; the second finds what the first has made.
        with lock_of(store, identity):
            if not store.evaluations.has(identity):
                folder = store.runs_directory / ".evaluations" / identity[:16]
                load = functools.partial(subject.methods[method], task, settings)
                results = evaluate_in_pieces(load, questions, folder, on_progress)
                limits = subject.answer_limits(task)
                stored = settings_of(settings, method, task, limits, split.value)
                evaluation = NewEvaluation(
                    identity=identity,
                    subject=subject.subject,
                    run_id=subject.run_id,
                    step=subject.step,
                    task=task.label,
                    settings=stored | subject.described,
                    problems=[result.counts for result in results],
                )
                add_evaluation(store, evaluation, results)
                # Only now: until the store has the whole, the pieces are all there is.
                shutil.rmtree(folder, ignore_errors=True)
            elif subject.run_id is not None:
                store.evaluations.link(subject.run_id, identity, subject.step)
        return store.evaluations.find(identity, run_id=subject.run_id, step=subject.step)

    # Methods round differently, so that each has an identity; any that exists is good enough.
    for method in subject.methods:
        if store.evaluations.has(identity_of(method)):
            return ensure(method)
    *others, last = subject.methods
    for method in others:
        try:
            return ensure(method)
        except SamplerError as error:
            on_change(str(error))
    return ensure(last)


def _problems(task: Task, settings: EvaluationSettings, split: Split) -> Sequence[Problem]:
    """Return the problems to answer.

    Raises:
        ConfigError: the task has none.
    """
    problems = task.problems(split)
    if not problems:
        what = split.value.replace("_", "-")
        raise ConfigError(f"task: expected {what} problems, which '{task.label}' has none of")
    if split is Split.HELD_OUT:
        return reported_problems(task, settings)
    return problems
