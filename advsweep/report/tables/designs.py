"""Designs: the arms of a sweep that ran the same seeds of the same tasks from the same bases.

An arm is every run of one configuration. A row of a table has the runs of one arm, or some of them,
and a table may show few of a sweep's arms. The spread of a difference is that of the arms of its
design, whether or not the table shows them, so that every command has the same interval and p for
the same two arms:

- the settings of the task and of the model are the same, and so are the bases of the seeds, as far
  as these were evaluated. Which other keys vary does not matter: an estimator, an objective, a
  learning rate, the age of rollouts and a group size are all arms of one design.
- they were evaluated alike, by the protocol of the rows that are compared;
- they are of a sweep that has both rows. Two rows without a common sweep have the whole store;
- they ran every seed that the two rows share. Only these seeds count, of every arm.

`statistics.spread_of_design` estimates the spread, and sets apart arms that spread more.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from advsweep.components import leaves, option_of
from advsweep.errors import AdvsweepError
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.data.groups import Group
from advsweep.report.tables.trained_rows import trained_rows
from advsweep.report.tables.types import Arm, Row
from advsweep.statistics import Comparison, compare_seeds
from advsweep.statistics.comparison import (
    DesignSpread,
    PooledSpread,
    differ_equally,
    shared_seeds,
    spread_of_design,
)
from advsweep.store import RunRecord, Status
from advsweep.store.imported import is_imported, setting_leaves
from advsweep.store.seeds import SeedKey
from advsweep.tasks import TASKS

# What a seed determines: the problems, and the weights that a training starts from.
_NODES = ("task", "model")

# The settings of other trainers have names of their own: these words tell data and models.
_WORDS = re.compile(
    r"(?:^|[^a-z])(?:tasks?|models?|base|data|datasets?|benchmarks?|env|environment|train_files|"
    r"val_files|test_files|split|pretrained|checkpoint|eval|evaluation)(?:[^a-z]|$)",
    re.IGNORECASE,
)


class Spreads:
    """The spreads of the differences between the rows of a report.

    Args:
        arms: of the report's sweep, those that it does not show among them.
    """

    def __init__(self, arms: Sequence[Arm] = ()) -> None:
        self._arms = {arm.name: arm for arm in arms}
        self._spreads: dict[tuple[object, ...], DesignSpread[str]] = {}

    def compare(self, row: Row, other: Row, column: str) -> Comparison:
        """Compare two rows by their seeds; a row of exact numbers has them for every seed."""
        values = row.by_seed(column)
        cell = other.cells[column]
        is_exact = cell.n and not other.seeds
        others = dict.fromkeys(values, cell.mean) if is_exact else other.by_seed(column)
        return compare_seeds(values, others, self.pooled(row, other, column))

    def pooled(self, row: Row, other: Row, column: str) -> PooledSpread | None:
        """Return the spread of two rows' differences; None if they have one of their own."""
        arm = self._arms.get(row.arm)
        other_arm = self._arms.get(other.arm)
        if arm is None or other_arm is None or arm is other_arm:
            return None
        values = row.by_seed(column)
        others = other.by_seed(column)
        seeds = shared_seeds(values, others)
        if len(seeds) < 2 or differ_equally(values, others):
            return None
        bases = {**other_arm.bases_of(seeds), **arm.bases_of(seeds)}
        if other_arm.design != arm.design or not other_arm.starts_from(bases):
            return None
        sweeps = arm.sweeps_of(seeds) & other_arm.sweeps_of(seeds)
        key = (column, arm.design, seeds, frozenset(bases.items()), sweeps)
        if key not in self._spreads:
            numbers = {
                name: member.row.by_seed(column)
                for name, member in self._arms.items()
                if member.design == arm.design
                and member.sweeps.keys() >= set(seeds)
                and member.starts_from(bases)
                and (not sweeps or member.sweeps_of(seeds) & sweeps)
            }
            self._spreads[key] = spread_of_design(numbers, seeds)
        return self._spreads[key].of(row.arm, other.arm)


def lending_runs(runs: Sequence[RunRecord], shown: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the finished runs that a table does not show, and that lend it their spread.

    Args:
        runs: of the table's sweep, or of the store.
        shown: those that the table shows.
    """
    ids = {run.id for run in shown}
    others = [run for run in runs if run.id not in ids and run.status is Status.DONE]
    if not others:
        return []
    # Seeds that nobody knows are those of one run, and are shared by no two arms.
    seeds = {run.seed for run in shown if run.seed is not None}
    designs = {design_of(run) for run in _one_each(shown)}
    by_config = {run.config_hash: design_of(run) in designs for run in _one_each(others)}
    return [run for run in others if run.seed in seeds and by_config[run.config_hash]]


def make_arms(
    rows: Sequence[Row],
    shown: Sequence[RunRecord],
    lending: Sequence[RunRecord],
    numbers: pd.DataFrame,
    evaluated: EvaluationsByTask,
) -> list[Arm]:
    """Return the arms of a table's sweep.

    Args:
        rows: of the table.
        shown, lending: the runs of the table, and those that only lend it their spread.
        numbers: of all of these runs, by their ids.
        evaluated: their evaluations.
    """
    runs_of: dict[str, list[RunRecord]] = {}
    for run in (*shown, *lending):
        runs_of.setdefault(run.config_hash, []).append(run)
    # A row that has all runs of its arm is the arm's.
    whole = {row.arm: row for row in rows if row.arm and row.runs == len(runs_of[row.arm])}
    partial = [(Group(), runs) for name, runs in runs_of.items() if name not in whole]
    if partial:
        whole |= {row.arm: row for row in trained_rows(partial, numbers, {}, {}, None)}
    bases: dict[int, str] = {}
    for task in evaluated.tasks.values():
        bases |= {run_id: record.subject for run_id, record in task.base.items()}
    arms = []
    for name, runs in runs_of.items():
        sweeps: dict[SeedKey, frozenset[str]] = {}
        for run in runs:
            of_run = frozenset(run.sweeps)
            sweeps[run.seed_key] = sweeps.get(run.seed_key, of_run) & of_run
        arm = Arm(
            name=name,
            row=whole[name],
            design=design_of(runs[0]),
            bases={r.seed_key: bases[r.id] for r in runs if r.id in bases and _has_known_base(r)},
            sweeps=sweeps,
        )
        arms.append(arm)
    return arms


def _one_each(runs: Collection[RunRecord]) -> list[RunRecord]:
    """Return a run of each configuration."""
    return list({run.config_hash: run for run in runs}.values())


def design_of(run: RunRecord) -> str:
    """Return the settings that a run shares with the arms of its design, as text."""
    if is_imported(run.config):
        settings = {key: v for key, v in setting_leaves(run.config) if _WORDS.search(key)}
        return json.dumps(settings, sort_keys=True)
    settings = {key: _identity_of(key, run.config.get(key)) for key in _NODES}
    if _is_of_a_command(run):
        # Only the template knows what its parameters are.
        backend = run.config["backend"]
        settings["template"] = backend["content"]
        parameters = leaves(backend.get("parameters", {}))
        settings["parameters"] = {key: v for key, v in parameters if _WORDS.search(key)}
    return json.dumps(settings, sort_keys=True)


def _identity_of(key: str, node: Any) -> Any:
    """Return a component's settings without those that change no result."""
    if not isinstance(node, Mapping) or key != "task":
        return node
    return {name: value for name, value in node.items() if name not in _free_of(node.get("name"))}


@functools.cache
def _free_of(task: str | None) -> frozenset[str]:
    try:
        fields = dataclasses.fields(TASKS.get(str(task)))
    except AdvsweepError:  # of another package, which is not here
        return frozenset()
    return frozenset(field.name for field in fields if not option_of(field).identity)


def _is_of_a_command(run: RunRecord) -> bool:
    backend = run.config.get("backend")
    return isinstance(backend, Mapping) and bool(backend.get("content"))


def _has_known_base(run: RunRecord) -> bool:
    """Tell whether the subject of the base's evaluation names the base, and not the run."""
    return not is_imported(run.config) and not _is_of_a_command(run)
