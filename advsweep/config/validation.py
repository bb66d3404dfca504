"""Validation problems: those on which a run's checkpoint is chosen, and never reported."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from advsweep.errors import ConfigError
from advsweep.tasks import TASKS
from advsweep.tasks.base import Problem, Split, Task

if TYPE_CHECKING:
    from advsweep.config.settings import EvaluationSettings


def reported_problems(task: Task, settings: EvaluationSettings) -> list[Problem]:
    """Return the held-out problems that a run is compared on: all that are not for validation."""
    problems = task.problems(Split.HELD_OUT)
    kept = _share_of_levels(problems, settings.validation_share)
    return [problem for problem in problems if problem.id not in kept]


def validation_problems(task: Task, settings: EvaluationSettings) -> tuple[Task, list[Problem]]:
    """Return the problems that choose a run's checkpoint, with the task that scores them.

    Args:
        settings: with `select_on`.

    Raises:
        ConfigError: the task has no such settings, or its data cannot be read.
    """
    validation = settings.validation
    assert validation is not None
    if validation.task is None:
        problems = task.problems(Split.HELD_OUT)
        kept = _share_of_levels(problems, settings.validation_share)
        return task, [problem for problem in problems if problem.id in kept]
    other = _build(json.dumps({**task.plain(), **validation.task}, sort_keys=True))
    reported = {problem.id: problem for problem in task.problems(Split.HELD_OUT)}
    texts = {problem.text for problem in reported.values()}

    def is_reported(problem: Problem) -> bool:
        # With another prompt, a question has another text and the same id.
        same = reported.get(problem.id)
        asks_the_same = same is not None and same.reference == problem.reference
        return problem.text in texts or asks_the_same

    return other, [p for p in other.problems(Split.HELD_OUT) if not is_reported(p)]


def check_validation(task: Task, settings: EvaluationSettings) -> None:
    """Refuse validation problems that cannot choose a checkpoint, before anything starts.

    Raises:
        ConfigError: there are none besides the reported ones, or none of these is left.
    """
    validation = settings.validation
    if validation is None:
        return
    _, chosen = validation_problems(task, settings)
    reported = reported_problems(task, settings)
    if not chosen or not reported:
        raise ConfigError(
            f"evaluation.select_on: expected validation problems besides the reported ones, got "
            f"{len(chosen)} and {len(reported)} held-out problems of task '{task.label}'; take "
            "another share, or settings of the task with other problems"
        )


def _share_of_levels(problems: Sequence[Problem], share: float) -> Set[str]:
    """Return the ids of a share of the problems of each level, chosen by a hash of their ids.

    Problem sets with equally many problems of each level, such as those of several `task.seed`,
    are so divided into equally many.
    """
    if not share:
        return set()
    by_level: dict[int, list[Problem]] = {}
    for problem in problems:
        by_level.setdefault(problem.level, []).append(problem)
    ids: set[str] = set()
    for of_level in by_level.values():
        count = math.floor(share * len(of_level) + 0.5)
        ids |= {problem.id for problem in sorted(of_level, key=_hash)[:count]}
    return ids


def _hash(problem: Problem) -> str:
    return hashlib.sha256(f"validation {problem.id}".encode()).hexdigest()


@functools.lru_cache(maxsize=8)
def _build(node: str) -> Task:
    """Build a task from a config node in JSON; runs of a sweep share it."""
    return TASKS.build(json.loads(node), where="evaluation.select_on.task")
