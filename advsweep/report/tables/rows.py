"""The rows of a report, from one tidy frame: of runs, base models, chance baselines, and models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pandas as pd

from advsweep.report.data.columns import Column
from advsweep.report.data.evaluation_sources import PassAtK
from advsweep.report.data.evaluations import (
    EvaluationsByTask,
    TaskEvaluations,
    base_evaluations,
    group_bases,
)
from advsweep.report.data.runs import Group, common_group
from advsweep.report.data.sources import Reached
from advsweep.report.tables.types import Cell, Row, Subject
from advsweep.statistics import mean_over_problems, student_t_interval
from advsweep.statistics.intervals import ROUNDING
from advsweep.store import EvaluationRecord, RunRecord
from advsweep.store.seeds import SeedKey, UnknownSeed

if TYPE_CHECKING:
    from advsweep.tasks.base import Floor

K = TypeVar("K")

BASE = "base"

# The most rows of a single evaluation that get intervals over problems: resampling takes time.
MOST_SINGLE = 30

_SHORT = 8  # characters of a hash


def make_cell(values: Iterable[float], over_problems: float = math.nan) -> Cell:
    """Return the mean of some values, without NaN, and its interval."""
    # One NaN, so that equal rows are equal.
    listed = tuple(math.nan if value != value else float(value) for value in values)
    # Sorted, so that sums do not depend on the order in which logs were read.
    known = sorted(value for value in listed if not math.isnan(value))
    # Infinite values have an infinite mean and no interval.
    with np.errstate(invalid="ignore"):
        mean, low, high, n = student_t_interval(known)
    if n > 1 and known[-1] - known[0] <= ROUNDING * abs(known[0]):
        # Rounding must not make an interval where nothing varies.
        mean = low = high = known[0]
    return Cell(mean, low, high, n, listed, over_problems)


def tidy_frame(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]], numbers: pd.DataFrame
) -> pd.DataFrame:
    """Return the numbers of seeds by `row` and `seed`, with a column for each column of a report.

    Runs of one row and seed are one replicate, with their mean. A run of unknown seed is one of
    its own. These are in the order of their numbers, so that no name of a log decides it.

    Args:
        numbers: of each run, by its id.
    """
    keys = [(run.id, row, run.seed_key) for row, (_, runs) in enumerate(groups) for run in runs]
    runs_of = pd.DataFrame(keys, columns=["run", "row", "seed"]).join(numbers, on="run")
    is_unknown = runs_of["seed"].map(lambda key: isinstance(key, UnknownSeed)).astype(bool)
    columns = list(numbers.columns)
    known = runs_of[~is_unknown].drop(columns="run").astype({"seed": int})
    known = known.groupby(["row", "seed"]).mean()
    if not is_unknown.any():
        return known
    unknown = runs_of[is_unknown].sort_values(["row", *columns]).set_index(["row", "seed"])
    return pd.concat([known.astype(float), unknown[columns].astype(float)])


def trained_rows(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
    numbers: pd.DataFrame,
    columns: Mapping[str, Column],
    pruned: Mapping[str, int],
    evaluated: EvaluationsByTask | None,
) -> list[Row]:
    """Make a row for each group of replicates.

    Args:
        numbers: of each run, by its id.
        columns: by name; those of them that have an interval over problems.
        pruned: how many runs of each configuration were stopped early, by config hash.
        evaluated: the evaluations of single runs; None where runs are compared elsewhere.
    """
    single = sum(len(runs) == 1 for _, runs in groups) <= MOST_SINGLE
    frame = tidy_frame(groups, numbers)
    rows = []
    for place, (group, runs) in enumerate(groups):
        own = frame.loc[place]
        cells = {}
        for name in numbers.columns:
            column, half = columns.get(name), math.nan
            is_evaluated = evaluated is not None and single and len(runs) == 1
            if is_evaluated and column is not None and own[name].notna().all():
                half = _over_problems(evaluated, column, lambda task: task.final, runs[0].id)
            cells[name] = make_cell(own[name], half)
            if column is not None and isinstance(column.source, Reached):
                # Its values are 0 and 1: t is not for those.
                cells[name] = replace(cells[name], low=math.nan, high=math.nan)
        rows.append(
            Row(
                group=group,
                n=len(own),
                seeds=tuple(
                    seed if isinstance(seed, UnknownSeed) else int(seed) for seed in own.index
                ),
                cells=cells,
                pruned=pruned.get(runs[0].config_hash, 0),
                runs=len(runs),
                arm=runs[0].config_hash,
            )
        )
    return rows


def _over_problems(
    evaluated: EvaluationsByTask | None,
    column: Column,
    choose: Callable[[TaskEvaluations], Mapping[K, EvaluationRecord]],
    key: K,
) -> float:
    """Return half the interval over problems of a row that has a single evaluation, or NaN."""
    source = column.of_one_evaluation
    if evaluated is None or source is None or not source.has_bootstrap_interval:
        return math.nan
    task = source.problems.task_of(evaluated)
    record = None if task is None else choose(task).get(key)
    return math.nan if record is None else source.over_problems(record)


def untrained_rows(
    models: Sequence[tuple[Subject, Group, Sequence[str], tuple[SeedKey, ...]]],
    evaluated: EvaluationsByTask,
    columns: Sequence[Column],
    choose: Callable[[TaskEvaluations], Mapping[str, EvaluationRecord]],
) -> list[Row]:
    """Make the rows of models that no run trained.

    Args:
        models: what each is, its name, its members as evaluations are looked up, and their
            seeds; none for a single model.
        choose: returns a task's evaluations by the names of the members.
    """
    values: dict[str, Mapping[str, float]] = {}
    for column in columns:
        source = column.of_one_evaluation
        values[column.name] = {} if source is None else source.scores(evaluated, choose)
    rows = []
    for subject, group, members, seeds in models:
        cells = {}
        for column in columns:
            scores = values[column.name]
            # A seed keeps its place without a number.
            own = [scores.get(m, math.nan) for m in members if seeds or m in scores]
            half = math.nan
            if len(models) <= MOST_SINGLE and sum(not math.isnan(v) for v in own) == 1:
                half = _over_problems(evaluated, column, choose, members[0])
            cells[column.name] = make_cell(own, half)
        rows.append(Row(group, len(members), seeds, cells, subject=subject))
    return rows


def base_rows(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
    evaluated: EvaluationsByTask,
    columns: Sequence[Column],
    label: str,
) -> list[Row]:
    """Make a row of the base models that replicate each other, one for each seed.

    A base that all seeds share makes a row without seeds. Several rows are named by the keys that
    differ between the rows of their runs.

    Args:
        label: the key that holds the name `base`.
    """
    users = {run.id: group for group, members in groups for run in members}
    families = group_bases((run for _, members in groups for run in members), evaluated)
    common = [common_group([users[i] for i in family.run_ids]) for family in families]
    models = []
    for family, own in zip(families, common, strict=True):
        group = {label: BASE}
        for key, value in own.items():
            if key != label and any(other.get(key) != value for other in common):
                group[key] = value
        models.append((Subject.BASE, group, family.members, family.seeds))
    names = [dict(group) for _, group, _, _ in models]
    for _, group, members, _ in models:
        # Bases of equal names are told apart by their hashes.
        if names.count(group) > 1:
            group[BASE] = short_name(members[0])
    return untrained_rows(models, evaluated, columns, base_evaluations)


def short_name(subject: str) -> str:
    """Return the start of the hash in the subject of an evaluation."""
    return subject.partition(":")[2][:_SHORT]


def model_rows(evaluated: EvaluationsByTask, columns: Sequence[Column], label: str) -> list[Row]:
    """Make a row for each model without a run that was evaluated like the table's runs."""
    names = dict.fromkeys(
        record.settings["model"] for task in evaluated.tasks.values() for record in task.models
    )
    return untrained_rows(
        [(Subject.MODEL, {label: f"model {name}"}, [name], ()) for name in names],
        evaluated,
        columns,
        lambda task: {record.settings["model"]: record for record in task.models},
    )


def floor_rows(
    evaluated: EvaluationsByTask, columns: Sequence[Column], label: str
) -> Iterator[tuple[Row, str]]:
    """Make a row for each chance baseline in columns of pass@k, and a sentence about it.

    Its numbers are exact, as they are those of the evaluated problems: they have no interval over
    problems, and no seeds unless each seed has problems of its own on which they differ.

    Args:
        label: the key that holds the floor's name.
    """
    known = {column.name: _find_floors(evaluated, column) for column in columns}
    floors = {k: v for found in known.values() for _, own in found.values() for k, v in own.items()}
    for name, floor in floors.items():
        values = {
            column.name: {
                seed: _floor_value(name, column, record, own)
                for seed, (record, own) in known[column.name].items()
            }
            for column in columns
        }
        seeds = sorted({seed for own in values.values() for seed in own if seed is not None})
        if all(len(set(own.values())) <= 1 for own in values.values()):
            seeds = []
        cells = {}
        for column_name, own_values in values.items():
            exact = [own_values.get(s, own_values.get(None, math.nan)) for s in seeds]
            # Without seeds the one number, where there is one.
            one = [value for value in [*own_values.values()][:1] if not math.isnan(value)]
            cells[column_name] = make_cell(exact if seeds else one)
        how = "computed exactly"
        if floor.standard_error:
            how = f"computed to a standard error of {floor.standard_error:.2g} for each problem"
        yield (
            Row({label: name}, len(seeds) or 1, tuple(seeds), cells, subject=Subject.FLOOR),
            f"{floor.name}: chance baseline: {floor.help}; pass@k = 1 - (1 - p)ᵏ of each problem, "
            f"{how}",
        )


def _find_floors(
    evaluated: EvaluationsByTask, column: Column
) -> Mapping[int | None, tuple[EvaluationRecord, Mapping[str, Floor]]]:
    """Return a final evaluation with its floors by the seed that draws its problems."""
    # A floor is of fixed problems: those chosen by a base's solve rate are others for each seed, as
    # training problems may be.
    source = column.of_one_evaluation
    if not isinstance(source, PassAtK):
        return {}
    problems = source.problems
    if problems.base is not None or problems.is_train or problems.is_mean:
        return {}
    task = problems.task_of(evaluated)
    return {} if task is None else task.common_floors()


def _floor_value(
    name: str, column: Column, record: EvaluationRecord, floors: Mapping[str, Floor]
) -> float:
    """Return a floor's mean over the problems of an evaluation; NaN if it has none."""
    source = column.source
    if not isinstance(source, PassAtK) or not {name, source.above or name} <= floors.keys():
        return math.nan
    values = floors[name].pass_at(source.k, record.problem_ids)
    if source.above is not None:
        values = values - floors[source.above].pass_at(source.k, record.problem_ids)
    if source.problems.level is not None:
        values = np.where(record.levels == source.problems.level, values, np.nan)
    return float(mean_over_problems(values))
