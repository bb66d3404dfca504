"""Rows of runs, from one tidy frame: the replicates of each configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from advsweep.report.data.columns import Column
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.data.groups import Group
from advsweep.report.data.sources import Reached
from advsweep.report.tables.cells import MOST_SINGLE, half_over_problems, make_cell
from advsweep.report.tables.types import Cell, Row
from advsweep.store import RunRecord
from advsweep.store.seeds import UnknownSeed


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
    by_run = pd.DataFrame(keys, columns=["run", "row", "seed"]).join(numbers, on="run")
    is_unknown = by_run["seed"].map(lambda key: isinstance(key, UnknownSeed)).astype(bool)
    of_known_seed = by_run[~is_unknown].drop(columns="run").astype({"seed": int})
    by_seed = of_known_seed.groupby(["row", "seed"]).mean()
    if not is_unknown.any():
        return by_seed
    columns = list(numbers.columns)
    unknown = by_run[is_unknown].sort_values(["row", *columns]).set_index(["row", "seed"])
    return pd.concat([by_seed.astype(float), unknown[columns].astype(float)])


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
    if sum(len(runs) == 1 for _, runs in groups) > MOST_SINGLE:
        evaluated = None
    frame = tidy_frame(groups, numbers)
    rows = []
    for place, (group, runs) in enumerate(groups):
        by_seed = frame.loc[place]
        cells = {}
        for name in numbers.columns:
            cells[name] = _make_cell(by_seed[name], columns.get(name), runs, evaluated)
        row = Row(
            group=group,
            n=len(by_seed),
            seeds=tuple(key if isinstance(key, UnknownSeed) else int(key) for key in by_seed.index),
            cells=cells,
            pruned=pruned.get(runs[0].config_hash, 0),
            runs=len(runs),
            arm=runs[0].config_hash,
        )
        rows.append(row)
    return rows


def _make_cell(
    values: pd.Series[float],
    column: Column | None,
    runs: Sequence[RunRecord],
    evaluated: EvaluationsByTask | None,
) -> Cell:
    """Make the cell of a row in a column that the table shows, or in another one (None)."""
    if column is None:
        return make_cell(values)
    if isinstance(column.source, Reached):
        # Its values are 0 and 1: t is not for those.
        return replace(make_cell(values), low=math.nan, high=math.nan)
    if evaluated is None or len(runs) > 1 or values.isna().any():
        return make_cell(values)
    half = half_over_problems(evaluated, column, lambda task: task.final, runs[0].id)
    return make_cell(values, half)
