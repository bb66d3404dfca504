"""The tasks that runs were trained on, built from the settings that their configs have.

Nothing is sampled. A task that cannot be built here has no problems and no floors.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Self

from advsweep.store import EvaluationRecord, RunRecord
from advsweep.tasks import TASKS
from advsweep.tasks.base import Split, Task, TaskSeed

if TYPE_CHECKING:
    from advsweep.tasks.base import Floor


class TaskSettings(NamedTuple):
    """The task in the config of a run.

    Attributes:
        name: its name.
        config: its settings as JSON.
        seed: the run's, if it draws the task (`task.seed=seed`); None if all seeds share it.
    """

    name: str
    config: str
    seed: int | None

    @classmethod
    def of(cls, run: RunRecord) -> Self:
        node = run.config.get("task", {})
        seed = run.seed if node.get("seed") == TaskSeed.RUN.value else None
        return cls(node.get("name", ""), json.dumps(node, sort_keys=True), seed)


@functools.lru_cache(maxsize=64)
def _build(settings: TaskSettings) -> Task | None:
    """Builds a run's task; None if it has no floors and no seed draws it."""
    kind = TASKS.get(settings.name)
    # Most tasks have no floors, and may need data or a program that is not here.
    if kind.floors is Task.floors and settings.seed is None:
        return None
    task = TASKS.build(json.loads(settings.config))
    return task if settings.seed is None else task.for_seed(settings.seed)


@functools.lru_cache(maxsize=64)
def floors_of(settings: TaskSettings) -> Mapping[str, Floor]:
    """Returns the floors of a run's task by name; none if they cannot be computed here."""
    try:
        task = _build(settings)
        return {} if task is None else task.floors()
    except Exception:  # noqa: BLE001, settings of another version, or a task of another package
        return {}


@functools.lru_cache(maxsize=64)
def _prompts(settings: TaskSettings, split: str) -> Mapping[str, str]:
    """Returns the prompts of a task's problems by id."""
    try:
        task = _build(settings)
        return {} if task is None else {p.id: p.prompt for p in task.problems(Split(split))}
    except Exception:  # noqa: BLE001, as above
        return {}


def has_problems(settings: TaskSettings, record: EvaluationRecord) -> bool:
    """Tells whether the problems of an evaluation are those of a run's task."""
    prompts = _prompts(settings, record.settings.get("split", Split.HELD_OUT.value))
    pairs = zip(record.problem_ids, record.prompts, strict=True)
    return all(prompts.get(problem) == prompt for problem, prompt in pairs)
