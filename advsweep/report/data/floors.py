"""Floors of evaluated tasks: what an answerer without skill achieves on the same problems.

The task computes them (`Task.floors`) from the settings that a run's config has; nothing is
sampled. Problems that are not those of the evaluation, such as those of another revision, have no
floors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from advsweep.report.data.evaluations import TaskEvaluations
from advsweep.report.data.own_tasks import floors_of, has_problems

if TYPE_CHECKING:
    from advsweep.store import EvaluationRecord
    from advsweep.tasks.base import Floor

EvaluatedFloors = tuple["EvaluationRecord", Mapping[str, "Floor"]]
"""An evaluation, and the floors of its problems by name."""


def find_floors(task: TaskEvaluations, record: EvaluationRecord) -> Mapping[str, Floor]:
    """Returns the floors of an evaluation's problems by name; none if there are none."""
    own = task.settings.get(record.run_id or 0)
    for settings in [own] if own is not None else dict.fromkeys(task.settings.values()):
        floors = floors_of(settings)
        if floors and has_problems(settings, record):
            return floors
    return {}


def find_common_floors(task: TaskEvaluations) -> dict[int | None, EvaluatedFloors]:
    """Returns a final evaluation and its floors for each seed that draws its problems.

    If all seeds share the problems, they are under None. Empty if there are no floors, or if runs
    that share a task were evaluated on different problems.
    """
    by_seed: dict[int | None, list[EvaluationRecord]] = {}
    for run_id, record in task.final.items():
        seed = task.settings[run_id].seed if run_id in task.settings else None
        by_seed.setdefault(seed, []).append(record)
    found = {seed: (own[0], find_floors(task, own[0])) for seed, own in by_seed.items()}
    alike = all(len({record.problem_ids for record in own}) == 1 for own in by_seed.values())
    return found if alike and all(floors for _, floors in found.values()) else {}
