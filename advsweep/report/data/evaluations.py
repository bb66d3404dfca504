"""The evaluations of a table: those made alike on each task, with bases and floors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from advsweep.errors import ReportError
from advsweep.report.data.run_tasks import TaskSettings
from advsweep.store import EvaluationRecord

if TYPE_CHECKING:
    from advsweep.tasks.base import Floor

V = TypeVar("V")


@dataclass(frozen=True)
class TaskEvaluations:
    """Evaluations on one task, all made alike unless mixed protocols were accepted.

    Attributes:
        protocol: how they were made; of mixed protocols one.
        final: each run's evaluation after its last step.
        base: each run's evaluation before its first step.
        along: all evaluations of each run, in the order of their steps.
        selected: each run's evaluation at the step that validation problems chose, if it is among
            those `along`.
        models: evaluations of models without a run, by the same protocol.
        settings: the task of each run in its config; none of runs that were trained on others.
    """

    protocol: Mapping[str, Any]
    final: Mapping[int, EvaluationRecord]
    base: Mapping[int, EvaluationRecord] = field(default_factory=dict)
    along: Mapping[int, Sequence[EvaluationRecord]] = field(default_factory=dict)
    models: Sequence[EvaluationRecord] = ()
    settings: Mapping[int, TaskSettings] = field(default_factory=dict)
    selected: Mapping[int, EvaluationRecord] = field(default_factory=dict)

    def without(self, run_ids: Collection[int]) -> TaskEvaluations:
        """Return the evaluations of the other runs."""
        left_out = frozenset(run_ids)
        return replace(
            self,
            final=_leave_out(self.final, left_out),
            base=_leave_out(self.base, left_out),
            along=_leave_out(self.along, left_out),
            settings=_leave_out(self.settings, left_out),
            selected=_leave_out(self.selected, left_out),
        )

    def floors(self, record: EvaluationRecord) -> Mapping[str, Floor]:
        """Return the floors of an evaluation's problems by name; none without any.

        The task computes them (`Task.floors`) from the settings that a run's config has.
        """
        own = self.settings.get(record.run_id or 0)
        if own is not None:
            return own.floors_of(record)
        for settings in dict.fromkeys(self.settings.values()):
            floors = settings.floors_of(record)
            if floors:
                return floors
        return {}

    def common_floors(self) -> dict[int | None, tuple[EvaluationRecord, Mapping[str, Floor]]]:
        """Return a final evaluation and its floors for each seed that draws its problems.

        If all seeds share the problems, they are under None. Empty if there are no floors, or if
        runs that share a task were evaluated on different problems.
        """
        by_seed: dict[int | None, list[EvaluationRecord]] = {}
        for run_id, record in self.final.items():
            seed = self.settings[run_id].seed if run_id in self.settings else None
            by_seed.setdefault(seed, []).append(record)
        common: dict[int | None, tuple[EvaluationRecord, Mapping[str, Floor]]] = {}
        for seed, records in by_seed.items():
            floors = self.floors(records[0])
            if not floors or len({record.problem_ids for record in records}) > 1:
                return {}
            common[seed] = records[0], floors
        return common


def _leave_out(records: Mapping[int, V], run_ids: Collection[int]) -> dict[int, V]:
    """Return what belongs to other runs."""
    return {run_id: record for run_id, record in records.items() if run_id not in run_ids}


@dataclass(frozen=True)
class EvaluationsByTask:
    """The evaluations of a table, by task.

    Attributes:
        main: the task of columns that name none; None if nothing was evaluated, or if mixed
            protocols were accepted of runs that were trained on different tasks.
        differing: for each task whose evaluations were not made alike, the reason.
        train: the evaluations on training problems, by task; tasks whose evaluations were not made
            alike are left out.
    """

    tasks: Mapping[str, TaskEvaluations]
    main: str | None
    differing: Mapping[str, str] = field(default_factory=dict)
    train: Mapping[str, TaskEvaluations] = field(default_factory=dict)

    @property
    def others(self) -> list[str]:
        """The tasks other than the main one, sorted."""
        return sorted(set(self.tasks) - {self.main})

    def without(self, run_ids: Collection[int]) -> EvaluationsByTask:
        """Return the evaluations of the other runs."""
        if not run_ids:
            return self
        return replace(
            self,
            tasks={name: task.without(run_ids) for name, task in self.tasks.items()},
            train={name: task.without(run_ids) for name, task in self.train.items()},
        )

    @property
    def final(self) -> list[EvaluationRecord]:
        """The final evaluations on all tasks."""
        return [record for task in self.tasks.values() for record in task.final.values()]

    def of(self, task: str | None, *, train: bool = False) -> TaskEvaluations | None:
        """Return the evaluations on a task, by default the main one; None if there are none.

        Args:
            train: on its training problems.

        Raises:
            ReportError: they were not made alike.
        """
        name = self.main if task is None else task
        if name is None:
            return None
        if train:
            return self.train.get(name)
        if name in self.differing:
            raise ReportError(self.differing[name])
        return self.tasks.get(name)
