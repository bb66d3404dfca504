"""Floors of evaluated tasks: what an answerer without skill achieves on the same problems.

The task computes them (`Task.floors`) from the settings that a run's config has; nothing is
sampled. A task that cannot be built here has no floors, and neither have problems that are not
those of the evaluation, such as those of another revision.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from advsweep.report.data.evaluations import TaskEvaluations
from advsweep.tasks import TASKS
from advsweep.tasks.base import Split, Task

if TYPE_CHECKING:
    from advsweep.store import EvaluationRecord
    from advsweep.tasks.floors import Floor


def find_floors(task: TaskEvaluations, record: EvaluationRecord) -> Mapping[str, Floor]:
    """Returns the floors of an evaluation's problems by name; none if there are none."""
    for config in task.configs:
        floors, prompts = _read(config)
        if floors and _has_all(prompts, record):
            return floors
    return {}


def find_common_floors(
    task: TaskEvaluations,
) -> tuple[EvaluationRecord, Mapping[str, Floor]] | None:
    """Returns a final evaluation, and the floors of the problems that all of them have.

    None if there are no floors, or if the runs were evaluated on different problems.
    """
    records = list(task.final.values())
    if len({record.problem_ids for record in records}) != 1:
        return None
    floors = find_floors(task, records[0])
    return (records[0], floors) if floors else None


def _has_all(prompts: Mapping[str, str], record: EvaluationRecord) -> bool:
    pairs = zip(record.problem_ids, record.prompts, strict=True)
    return all(prompts.get(problem) == prompt for problem, prompt in pairs)


@functools.lru_cache(maxsize=32)
def _read(config: str) -> tuple[Mapping[str, Floor], Mapping[str, str]]:
    """Returns a task's floors, and the prompts of its held-out problems by id."""
    try:
        settings = json.loads(config)
        # Most tasks have no floors, and may need data or a program that is not here.
        if TASKS.get(settings["name"]).floors is Task.floors:
            return {}, {}
        task = TASKS.build(settings)
        prompts = {problem.id: problem.prompt for problem in task.problems(Split.HELD_OUT)}
        return task.floors(), prompts
    except Exception:  # noqa: BLE001, settings of another version, or a task of another package
        return {}, {}
