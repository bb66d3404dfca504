"""The rows of a report: replicates, base models, and models without a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from advsweep.report.columns import Column
from advsweep.report.evaluations import Evaluated, TaskEvaluations
from advsweep.report.groups import Group, common_group
from advsweep.report.measure import Values, scores
from advsweep.report.records import Cell, Row
from advsweep.statistics import student_t_interval
from advsweep.statistics.samples import ROUNDING
from advsweep.store import EvaluationRecord, RunRecord

BASE = "base"
_SHORT = 8  # characters of a hash


def trained_row(
    group: Group, members: Sequence[RunRecord], values: Values, pruned: Mapping[str, int]
) -> Row:
    """A row of replicates; where it has several configurations, seeds average over them.

    A seed that lacks one of the configurations has no value: its mean would be of others.
    """
    by_seed: dict[int, list[int]] = {}
    for run in members:
        by_seed.setdefault(run.seed, []).append(run.id)
    hashes = {run.config_hash for run in members}
    seeds = sorted(by_seed)

    def value(by_run: Mapping[int, float], seed: int) -> float:
        own = [by_run.get(run_id, math.nan) for run_id in by_seed[seed]]
        if len(hashes) == 1:
            return own[0]
        return math.fsum(own) / len(own) if len(own) == len(hashes) else math.nan

    return Row(
        group=group,
        n=len(seeds),
        seeds=tuple(seeds),
        cells={
            name: make_cell(value(by_run, seed) for seed in seeds)
            for name, by_run in values.items()
        },
        pruned=sum(pruned.get(config_hash, 0) for config_hash in hashes),
        runs=len(members),
    )


def make_cell(values: Iterable[float]) -> Cell:
    """The mean of some values with its interval, NaN aside."""
    listed = tuple(values)
    known = [value for value in listed if not math.isnan(value)]
    if len(known) > 1 and max(known) - min(known) <= ROUNDING * abs(known[0]):
        # Rounding must not make an interval where nothing varies.
        return Cell(known[0], known[0], known[0], len(known), listed)
    # Infinite values have an infinite mean and no interval.
    with np.errstate(invalid="ignore"):
        return Cell(*student_t_interval(known), values=listed)


def base_rows(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
    evaluated: Evaluated,
    columns: Sequence[Column],
    label: str,
) -> list[Row]:
    """One row for each base model that the runs started from, called so under the key `label`."""
    subjects = {
        run_id: record.subject
        for task in evaluated.tasks.values()
        for run_id, record in task.base.items()
    }
    users: dict[str, list[Group]] = {}
    for group, members in groups:
        for run in members:
            if run.id in subjects:
                users.setdefault(subjects[run.id], []).append(group)
    named = _base_groups(users, label)
    return untrained_rows(
        named,
        evaluated,
        columns,
        lambda task: {record.subject: record for record in task.base.values()},
    )


def model_rows(evaluated: Evaluated, columns: Sequence[Column], label: str) -> list[Row]:
    """One row for each model that was evaluated without a run, as the table's runs were."""
    named: dict[str, Group] = {
        record.settings["model"]: {label: f"model {record.settings['model']}"}
        for task in evaluated.tasks.values()
        for record in task.models
    }
    rows = untrained_rows(
        named,
        evaluated,
        columns,
        lambda task: {record.settings["model"]: record for record in task.models},
    )
    return [row for row in rows if any(cell.n for cell in row.cells.values())]


def untrained_rows(
    named: Mapping[str, Group],
    evaluated: Evaluated,
    columns: Sequence[Column],
    choose: Callable[[TaskEvaluations], Mapping[str, EvaluationRecord]],
) -> list[Row]:
    """A row for each model that was not trained, by what it is called in `choose`."""
    values = {
        column.name: scores(evaluated, column, choose) if column.is_evaluated else {}
        for column in columns
    }
    return [
        Row(
            group=group,
            n=1,
            seeds=(),
            cells={
                name: make_cell([found[key]] if key in found else [])
                for name, found in values.items()
            },
        )
        for key, group in named.items()
    ]


def _base_groups(users: Mapping[str, Sequence[Group]], label: str) -> dict[str, Group]:
    """A name for each base model: where there are several, by what tells their runs apart."""
    if len(users) == 1:
        return {subject: {label: BASE} for subject in users}
    common = {subject: common_group(groups) for subject, groups in users.items()}
    named: dict[str, Group] = {}
    for subject, own in common.items():
        telling = {
            key: value
            for key, value in own.items()
            if key != label and any(other.get(key) != value for other in common.values())
        }
        named[subject] = {label: BASE, **telling}
    alike = list(named.values())
    return {
        subject: {**group, "base": subject.removeprefix("base:")[:_SHORT]}
        if alike.count(group) > 1
        else group
        for subject, group in named.items()
    }
