"""Evaluations that are asked for: of a checkpoint or a model, on any task, at any time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from advsweep.backends.run import check_sampling
from advsweep.errors import ConfigError
from advsweep.evaluation import evaluate_in_pieces, evaluation_identity
from advsweep.store import NewEvaluation
from advsweep.store.evaluations import MODEL_SUBJECT
from advsweep.sweep.evaluations import counts_of, lock_of, subject_of
from advsweep.tasks.base import Split

if TYPE_CHECKING:
    from advsweep.backends.base import Backend
    from advsweep.backends.run import Run
    from advsweep.components import Component, Plain
    from advsweep.config.settings import EvaluationSettings, Generation
    from advsweep.store import EvaluationRecord, RunRecord, Store
    from advsweep.tasks.base import Sampler, Task


@dataclass(frozen=True)
class Weights:
    """What is evaluated.

    Attributes:
        subject: names the weights in the evaluation's identity.
        sampler: has them answer a task's problems; called only when they are needed.
        run_id: the run that they are of; None for a model without a run.
        step: training steps that they have seen in that run.
        described: what the store is to keep beside the settings.
    """

    subject: str
    sampler: Callable[[Task, EvaluationSettings], Sampler]
    run_id: int | None = None
    step: int = 0
    described: Plain = field(default_factory=dict)


def weights_of_model(
    backend: Backend, model: Component, generation: Generation, title: str
) -> Weights:
    """A model that no run has trained.

    Args:
        title: what listings and reports call it.

    Raises:
        ConfigError: the backend has no such model.
    """
    return Weights(
        subject=f"{MODEL_SUBJECT}{backend.model_key(model, generation)}",
        sampler=lambda task, settings: backend.model_sampler(model, generation, task, settings),
        described={"model": title},
    )


def weights_of_run(run: Run, record: RunRecord, step: int) -> Weights:
    """The weights of a run after `step` steps; 0: its base model's."""

    def sampler(task: Task, settings: EvaluationSettings) -> Sampler:
        check_sampling(run.backend, settings)
        run_so = replace(run, evaluation=settings)
        return run.backend.sampler(run_so, record.directory, step, task)

    return Weights(subject_of(run, record.attempt, step), sampler, record.id, step)


def evaluate_weights(
    store: Store,
    weights: Weights,
    task: Task,
    settings: EvaluationSettings,
    *,
    split: Split = Split.HELD_OUT,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> EvaluationRecord:
    """The evaluation of some weights, made now as far as the store and an earlier try have not.

    What is counted is kept in pieces until all are there, in the folder of all runs.

    Args:
        on_progress: called with how many problems are counted, and of how many.

    Raises:
        ConfigError: the task has no such problems, or the weights cannot answer them.
    """
    task.check()
    problems = task.problems(split)
    if not problems:
        what = split.value.replace("_", "-")
        raise ConfigError(f"task: expected {what} problems, which '{task.label}' has none of")
    identity = evaluation_identity(weights.subject, task, settings, split)
    with lock_of(store, identity):
        if not store.has_evaluation(identity):
            folder = store.runs_directory / ".evaluations" / identity[:16]
            results = evaluate_in_pieces(
                lambda: weights.sampler(task, settings),
                task,
                settings,
                problems,
                folder,
                on_progress,
            )
            asked = {} if split is Split.HELD_OUT else {"split": split.value}
            store.add_evaluation(
                NewEvaluation(
                    identity=identity,
                    subject=weights.subject,
                    run_id=weights.run_id,
                    step=weights.step,
                    task=task.label,
                    settings={**settings.plain(), **weights.described, **asked},
                    problems=[counts_of(result) for result in results],
                )
            )
            shutil.rmtree(folder, ignore_errors=True)
        elif weights.run_id is not None:
            store.link_evaluation(weights.run_id, identity, weights.step)
    return replace(store.evaluation(identity), run_id=weights.run_id, step=weights.step)
