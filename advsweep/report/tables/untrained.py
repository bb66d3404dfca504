"""Rows that no run trained: base models and models that were evaluated without a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from advsweep.report.data.bases import BaseFamily, group_bases
from advsweep.report.data.columns import Column
from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations
from advsweep.report.data.grouping import Group, common_group
from advsweep.report.data.measure import scores
from advsweep.report.tables.rows import MOST_SINGLE, make_cell, with_problems
from advsweep.report.tables.types import Row, RowKind
from advsweep.store import EvaluationRecord, RunRecord

BASE = "base"

_SHORT = 8  # characters of a hash


@dataclass(frozen=True)
class UntrainedModels:
    """The models of a row that no run trained.

    Attributes:
        members: the models, as the evaluations are looked up: one of each seed, or a single one.
        seeds: the seeds of the members; none for a single model.
    """

    group: Group
    kind: RowKind
    members: Sequence[str]
    seeds: tuple[int, ...] = ()

    @classmethod
    def of_family(cls, family: BaseFamily, group: Group) -> UntrainedModels:
        return cls(group, RowKind.BASE, family.members, family.seeds)


def base_rows(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
    evaluated: EvaluationsByTask,
    columns: Sequence[Column],
    label: str,
) -> list[Row]:
    """Makes a row of the base models that replicate each other, one for each seed.

    A base that all seeds share makes a row without seeds.

    Args:
        label: the key that holds the name `base`.
    """
    users = {run.id: group for group, members in groups for run in members}
    families = group_bases((run for _, members in groups for run in members), evaluated)
    named = _base_groups([[users[i] for i in family.run_ids] for family in families], label)
    alike = [
        {**group, BASE: short_name(family.members[0])} if named.count(group) > 1 else group
        for family, group in zip(families, named, strict=True)
    ]
    return untrained_rows(
        [
            UntrainedModels.of_family(family, group)
            for family, group in zip(families, alike, strict=True)
        ],
        evaluated,
        columns,
        base_evaluations,
    )


def base_evaluations(task: TaskEvaluations) -> dict[str, EvaluationRecord]:
    """Returns the evaluations of the runs' base models on a task, by subject."""
    return {record.subject: record for record in task.base.values()}


def short_name(subject: str) -> str:
    """Returns the start of the hash in the subject of an evaluation."""
    return subject.partition(":")[2][:_SHORT]


def model_rows(evaluated: EvaluationsByTask, columns: Sequence[Column], label: str) -> list[Row]:
    """Makes a row for each model without a run that was evaluated like the table's runs."""
    names = dict.fromkeys(
        record.settings["model"] for task in evaluated.tasks.values() for record in task.models
    )
    rows = untrained_rows(
        [UntrainedModels({label: f"model {name}"}, RowKind.MODEL, [name]) for name in names],
        evaluated,
        columns,
        lambda task: {record.settings["model"]: record for record in task.models},
    )
    return [row for row in rows if any(cell.n for cell in row.cells.values())]


def untrained_rows(
    models: Sequence[UntrainedModels],
    evaluated: EvaluationsByTask,
    columns: Sequence[Column],
    choose: Callable[[TaskEvaluations], Mapping[str, EvaluationRecord]],
) -> list[Row]:
    """Makes the rows of models that no run trained.

    Args:
        choose: returns a task's evaluations by the names of the members.
    """
    values = {
        column.name: scores(evaluated, column, choose) if column.is_single else {}
        for column in columns
    }
    rows = [
        Row(
            group=model.group,
            n=len(model.members),
            seeds=model.seeds,
            cells={
                # A seed keeps its place without a number.
                name: make_cell(
                    found.get(member, math.nan)
                    for member in model.members
                    if model.seeds or member in found
                )
                for name, found in values.items()
            },
            kind=model.kind,
        )
        for model in models
    ]
    if len(rows) > MOST_SINGLE:
        return rows
    of_columns = {
        column.name: choose(task)
        for column in columns
        if column.is_resampled
        if (task := evaluated.of(column.task, train=column.is_train)) is not None
    }
    records = [
        {name: chosen[member] for name, chosen in of_columns.items() if member in chosen}
        for (member, *_) in (model.members for model in models)
    ]
    return with_problems(rows, records, columns)


def _base_groups(users: Sequence[Sequence[Group]], label: str) -> list[Group]:
    """Names base models by the keys that differ between the rows of their runs."""
    if len(users) == 1:
        return [{label: BASE}]
    common = [common_group(groups) for groups in users]
    return [
        {
            label: BASE,
            **{
                key: value
                for key, value in own.items()
                if key != label and any(other.get(key) != value for other in common)
            },
        }
        for own in common
    ]
