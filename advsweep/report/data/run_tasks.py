"""The task of a run, as far as its evaluations need it: its problems and its floors."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Self

from advsweep.names import POOL
from advsweep.store import EvaluationRecord, RunRecord
from advsweep.tasks import TASKS
from advsweep.tasks.base import Split, Task

if TYPE_CHECKING:
    from advsweep.tasks.base import Floor


class TaskSettings(NamedTuple):
    """The task in the config of a run.

    Attributes:
        name: the task's name; empty without a task.
        config: its settings as JSON.
        seed: the run's, if it draws the task (`task.seed=seed`); None if all seeds share it.
    """

    name: str
    config: str
    seed: int | None

    @classmethod
    def of(cls, run: RunRecord) -> Self:
        """Return the task in the config of a run."""
        node = run.config.get("task", {})
        seed = run.seed if node.get("seed") == "seed" else None
        return cls(node.get("name", ""), json.dumps(node, sort_keys=True), seed)

    def has_problems_of(self, record: EvaluationRecord) -> bool:
        """Tell whether the problems of an evaluation are those of the task."""
        _, prompts = _read_task(self, _split_of(record))
        pairs = zip(record.problem_ids, record.prompts, strict=True)
        return all(prompts.get(problem) == prompt for problem, prompt in pairs)

    def floors_of(self, record: EvaluationRecord) -> Mapping[str, Floor]:
        """Return the floors of an evaluation's problems by name; none without any."""
        if POOL in record.settings:
            return {}  # of data, which need not be here
        floors, _ = _read_task(self, _split_of(record))
        return floors if floors and self.has_problems_of(record) else {}


def _split_of(record: EvaluationRecord) -> str:
    return str(record.settings.get("split", Split.HELD_OUT.value))


@functools.lru_cache(maxsize=64)
def _read_task(settings: TaskSettings, split: str) -> tuple[Mapping[str, Floor], Mapping[str, str]]:
    """Return the floors of a task and the prompts of its problems by id; nothing is sampled.

    Most tasks have neither floors nor a draw of the seed's, and may need data or a program that
    is not here: they are not built.
    """
    try:
        kind = TASKS.get(settings.name)
        if kind.floors is Task.floors and settings.seed is None:
            return {}, {}
        task = TASKS.build(json.loads(settings.config))
        task = task if settings.seed is None else task.for_seed(settings.seed)
        prompts = {p.id: p.prompt for p in task.problems(Split(split))}
    except Exception:  # noqa: BLE001, settings of another version, or a task of another package
        return {}, {}
    try:
        return task.floors(), prompts
    except Exception:  # noqa: BLE001, as above; its problems are known all the same
        return {}, prompts
