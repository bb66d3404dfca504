"""Rows of what no run trained: base models, floors, and models without a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advsweep.report.data.bases import base_evaluations, group_bases
from advsweep.report.data.columns import Column
from advsweep.report.data.evaluation_sources import PassAtK
from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations
from advsweep.report.data.groups import Group, common_group
from advsweep.report.tables.cells import MOST_SINGLE, half_over_problems, make_cell
from advsweep.report.tables.types import Row, Subject
from advsweep.statistics import mean_over_problems
from advsweep.store import EvaluationRecord, RunRecord
from advsweep.store.seeds import SeedKey

if TYPE_CHECKING:
    from advsweep.tasks.base import Floor

BASE = "base"


@dataclass(frozen=True)
class Untrained:
    """Models that no run trained, which make one row.

    Attributes:
        subject: what they are.
        group: the name of the row.
        members: the bases or names by which their evaluations are looked up.
        seeds: their seeds; none for a single model.
        models: how many models they are; one on the problems of each seed is one.
    """

    subject: Subject
    group: Group
    members: Sequence[Hashable]
    seeds: tuple[SeedKey, ...] = ()
    models: int = 1


def _make_rows(
    models: Sequence[Untrained],
    evaluated: EvaluationsByTask,
    columns: Sequence[Column],
    choose: Callable[[TaskEvaluations], Mapping[Hashable, EvaluationRecord]],
) -> list[Row]:
    """Make the rows of models that no run trained.

    Args:
        choose: returns a task's evaluations by the members.
    """
    scores: dict[str, Mapping[Hashable, float]] = {}
    for column in columns:
        source = column.of_one_evaluation
        scores[column.name] = {} if source is None else source.scores(evaluated, choose)
    rows = []
    for model in models:
        cells = {}
        for column in columns:
            values = _values_of(model, scores[column.name])
            half = math.nan
            if len(models) <= MOST_SINGLE and sum(not math.isnan(v) for v in values) == 1:
                half = half_over_problems(evaluated, column, choose, model.members[0])
            cells[column.name] = make_cell(values, half)
        row = Row(
            model.group,
            len(model.members),
            model.seeds,
            cells,
            subject=model.subject,
            models=model.models,
        )
        rows.append(row)
    return rows


def _values_of(model: Untrained, scores: Mapping[Hashable, float]) -> list[float]:
    """Return the scores of a model's members; a seed keeps its place without a number."""
    if model.seeds:
        return [scores.get(member, math.nan) for member in model.members]
    return [scores[member] for member in model.members if member in scores]


def base_rows(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
    evaluated: EvaluationsByTask,
    columns: Sequence[Column],
    label: str,
) -> list[Row]:
    """Make a row of the bases that replicate each other, one for each seed.

    A base that all seeds share, with the problems, makes a row without seeds. Several rows are
    named by the keys that differ between the rows of their runs.

    Args:
        label: the key that holds the name `base`.
    """
    users = {run.id: group for group, members in groups for run in members}
    families = group_bases([run for _, members in groups for run in members], evaluated)
    common = [common_group([users[run_id] for run_id in family.by_run]) for family in families]
    models = [
        Untrained(Subject.BASE, {label: BASE, **group}, family.members, family.seeds, family.models)
        for family, group in zip(families, _telling_keys(common, label), strict=True)
    ]
    names = [dict(model.group) for model in models]
    for model, family in zip(models, families, strict=True):
        # Bases of equal names are told apart by their hashes.
        if names.count(model.group) > 1:
            model.group[BASE] = family.short_name
    return _make_rows(models, evaluated, columns, lambda task: base_evaluations(task, families))


def _telling_keys(groups: Sequence[Group], label: str) -> list[Group]:
    """Return of each group the keys, besides the label, in which it differs from another one."""
    told = []
    for group in groups:
        differing = {
            key: value
            for key, value in group.items()
            if key != label and any(other.get(key) != value for other in groups)
        }
        told.append(differing)
    return told


def model_rows(evaluated: EvaluationsByTask, columns: Sequence[Column], label: str) -> list[Row]:
    """Make a row for each model without a run that was evaluated like the table's runs."""
    names = dict.fromkeys(
        record.settings["model"] for task in evaluated.tasks.values() for record in task.models
    )
    return _make_rows(
        [Untrained(Subject.MODEL, {label: f"model {name}"}, [name]) for name in names],
        evaluated,
        columns,
        lambda task: {record.settings["model"]: record for record in task.models},
    )


def floor_rows(
    evaluated: EvaluationsByTask, columns: Sequence[Column], label: str
) -> Iterator[tuple[Row, str]]:
    """Make a row for each floor in columns of pass@k, and a sentence about it.

    Its numbers are exact, as they are those of the evaluated problems: they have no interval over
    problems, and no seeds unless each seed has problems of its own on which they differ.

    Args:
        label: the key that holds the floor's name.
    """
    by_column = {column.name: _find_floors(evaluated, column) for column in columns}
    floors: dict[str, Floor] = {}
    for by_seed in by_column.values():
        for _, of_seed in by_seed.values():
            floors |= of_seed
    for name, floor in floors.items():
        values: dict[str, dict[int | None, float]] = {}
        for column in columns:
            values[column.name] = {
                seed: _floor_value(name, column, record, of_seed)
                for seed, (record, of_seed) in by_column[column.name].items()
            }
        seeds = _seeds_of_floor(values)
        cells = {key: make_cell(_exact(of_seeds, seeds)) for key, of_seeds in values.items()}
        row = Row({label: name}, len(seeds) or 1, tuple(seeds), cells, subject=Subject.FLOOR)
        yield row, _describe_floor(floor)


def _seeds_of_floor(values: Mapping[str, Mapping[int | None, float]]) -> list[int]:
    """Return the seeds on whose problems a floor differs; none if it does not.

    Args:
        values: the floor's by column and seed, None for a seed that all share.
    """
    if all(len(set(by_seed.values())) <= 1 for by_seed in values.values()):
        return []
    return sorted({seed for by_seed in values.values() for seed in by_seed if seed is not None})


def _exact(by_seed: Mapping[int | None, float], seeds: Sequence[int]) -> list[float]:
    """Return a floor's value of each seed, or without seeds the one number, where there is one."""
    if seeds:
        return [by_seed.get(seed, by_seed.get(None, math.nan)) for seed in seeds]
    first = next(iter(by_seed.values()), math.nan)
    return [] if math.isnan(first) else [first]


def _describe_floor(floor: Floor) -> str:
    how = "computed exactly"
    if floor.standard_error:
        how = f"computed to a standard error of {floor.standard_error:.2g} for each problem"
    return (
        f"{floor.name}: chance baseline: {floor.help}; pass@k = 1 - (1 - p)ᵏ of each problem, {how}"
    )


def _find_floors(
    evaluated: EvaluationsByTask, column: Column
) -> Mapping[int | None, tuple[EvaluationRecord, Mapping[str, Floor]]]:
    """Return a final evaluation with its floors by the seed that draws its problems."""
    source = column.of_one_evaluation
    if not isinstance(source, PassAtK):
        return {}
    problems = source.problems
    # A floor is of fixed problems: those chosen by a base's solve rate are others for each seed, as
    # training problems may be.
    if problems.base is not None or problems.is_train or problems.is_mean:
        return {}
    task = problems.task_of(evaluated)
    return {} if task is None else task.common_floors()


def _floor_value(
    name: str, column: Column, record: EvaluationRecord, floors: Mapping[str, Floor]
) -> float:
    """Return a floor's mean over the problems of an evaluation; NaN if it has none."""
    source = column.source
    if not isinstance(source, PassAtK) or name not in floors:
        return math.nan
    values = floors[name].pass_at(source.k, record.problem_ids)
    if source.above is not None:
        if source.above not in floors:
            return math.nan
        values = values - floors[source.above].pass_at(source.k, record.problem_ids)
    if source.problems.level is not None:
        values = np.where(record.levels == source.problems.level, values, np.nan)
    return float(mean_over_problems(values))
