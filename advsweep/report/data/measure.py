"""One number for each run and column, from the store's points and evaluations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from advsweep.errors import ConfigError, ReportError
from advsweep.report.data.columns import COSTS, Column
from advsweep.report.data.evaluations import OWN_TASKS, EvaluationsByTask, TaskEvaluations
from advsweep.statistics import (
    bootstrap_over_problems,
    interquartile_mean,
    mean_over_problems,
    pass_at_k,
    value_at,
)
from advsweep.store import EvaluationRecord, RunRecord, Store

if TYPE_CHECKING:
    from jaxtyping import Float, Int


CutoffSteps = Mapping[int, float]
"""The step of each run, which may lie between two."""


@dataclass(frozen=True)
class Cutoff:
    """What makes runs comparable.

    Attributes:
        what: a cost, or the name of a column.
        value: of it; None for the largest that all runs came to, which takes a cost.
    """

    what: str
    value: float | None = None

    @property
    def is_cost(self) -> bool:
        return self.what in COSTS


def parse_cutoff(text: str, option: str = "--at") -> Cutoff:
    """A cutoff as users write it.

    Args:
        option: what gave the text, for the message.

    Raises:
        ConfigError: it is not one.
    """
    match = re.fullmatch(r"([^=]+?)(?:=(.*))?", text.strip())
    expected = f"{', '.join(COSTS)}, one of these with =NUMBER, or COLUMN=NUMBER"
    if match is None:
        raise ConfigError(f"{option}: expected {expected}, got {text!r}")
    what, written = match.groups()
    if written is None:
        if what not in COSTS:
            raise ConfigError(f"{option}: expected {expected}, got {text!r}")
        return Cutoff(what)
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (what in COSTS and value <= 0):
        raise ConfigError(f"{option}: expected {expected}, got {text!r}")
    return Cutoff(what, value)


def at_cost(
    cutoff: Cutoff, curves: Mapping[int, tuple[np.ndarray, np.ndarray]]
) -> tuple[float, dict[int, float]]:
    """The budget, and the step at which each run has spent it; runs that never do are left out.

    Args:
        curves: of each run its steps, and what it had spent after each.

    Raises:
        ReportError: no run recorded the cost, or none comes to it.
    """
    if not curves:
        raise ReportError(f"--at {cutoff.what}: no run of the table recorded what it takes")
    spent = [float(values[-1]) for _, values in curves.values()]
    budget = min(spent) if cutoff.value is None else cutoff.value
    steps = {i: float(value_at(values, steps, budget)) for i, (steps, values) in curves.items()}
    reached = {run_id: step for run_id, step in steps.items() if not math.isnan(step)}
    if not reached:
        raise ReportError(
            f"--at {cutoff.what}={budget:g}: expected at most the {max(spent):g} that a run of "
            "the table has spent"
        )
    return budget, reached


def at_value(cutoff: Cutoff, curves: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> CutoffSteps:
    """The step at which the curve of each run first comes to a value, from whichever side.

    Between two points it is a straight line; runs whose curve never gets there are left out.

    Args:
        curves: of each run its steps, and the value at each.

    Raises:
        ReportError: no run gets there.
    """
    assert cutoff.value is not None
    steps: dict[int, float] = {}
    for run_id, (at, values) in curves.items():
        finite = values[~np.isnan(values)]
        # Of a curve that comes from above the mirror image comes from below.
        side = -1.0 if finite.size and finite[0] > cutoff.value else 1.0
        steps[run_id] = float(value_at(side * values, at, side * cutoff.value))
    reached = {run_id: step for run_id, step in steps.items() if not math.isnan(step)}
    if not reached:
        seen = [value for _, values in curves.values() for value in values if value == value]
        known = f"they are from {min(seen):.3f} to {max(seen):.3f}" if seen else "none has any"
        raise ReportError(
            f"--at {cutoff.what}={cutoff.value:g}: no run of the table comes to it; {known}"
        )
    return reached


_LARGE = 2000  # samples per problem

K = TypeVar("K", bound=Hashable)

Values = dict[str, dict[int, float]]
"""By column's name, the value of each run that has one."""


def measure(
    store: Store,
    runs: Sequence[RunRecord],
    evaluated: EvaluationsByTask,
    columns: Iterable[Column],
    cutoff_steps: CutoffSteps | None = None,
) -> Values:
    """The value of each column for each run that has one.

    Args:
        cutoff_steps: the step at which each run is looked at; runs without one have no values. By
            default the end of the training.
    """
    values: Values = {}
    for column in columns:
        if column.is_evaluated and cutoff_steps is None:
            values[column.name] = scores(evaluated, column, lambda task: task.final)
        elif column.is_evaluated:
            assert cutoff_steps is not None
            values[column.name] = {
                run_id: float(value_at(*curve, cutoff_steps[run_id]))
                for run_id, curve in curves(evaluated, column).items()
                if run_id in cutoff_steps
            }
        elif column.total is not None:
            values[column.name] = totals(store, runs, column.total, cutoff_steps)
        elif cutoff_steps is not None:
            values[column.name] = _means_until(store, runs, column, cutoff_steps)
        else:
            assert column.metric is not None
            ids = [run.id for run in runs]
            values[column.name] = store.metrics.means(
                ids, column.metric, first=column.first, last=column.last
            )
    return values


def scores(
    evaluated: EvaluationsByTask,
    column: Column,
    choose: Callable[[TaskEvaluations], Mapping[K, EvaluationRecord]],
) -> dict[K, float]:
    """The value of a column of evaluations for each of those chosen from a task's."""
    if column.over is None:
        task = evaluated.of(column.task)
        return {} if task is None else _scored(choose(task), column)
    parts = [
        _scored(choose(task), column) for name, task in evaluated.tasks.items() if name != OWN_TASKS
    ]
    # A mean over some of the tasks is no mean over all of them.
    shared = [key for key in (parts[0] if parts else ()) if all(key in part for part in parts)]
    return {key: over_tasks(column, [part[key] for part in parts]) for key in shared}


def over_tasks(column: Column, values: Sequence[float]) -> float:
    """What a column makes of its values on several tasks."""
    return interquartile_mean(values) if column.over == "iqm" else float(np.mean(values))


def _scored(chosen: Mapping[K, EvaluationRecord], column: Column) -> dict[K, float]:
    return dict(zip(chosen, score(list(chosen.values()), column), strict=True))


def curves(evaluated: EvaluationsByTask, column: Column) -> dict[int, Curve]:
    """A column of evaluations along the training of each run: steps, and the value at each."""
    steps = sorted(
        {e.step for task in evaluated.tasks.values() for es in task.along.values() for e in es}
    )
    points: dict[int, list[tuple[int, float]]] = {}
    for step in steps:
        for run_id, value in scores(evaluated, column, _at_step(step)).items():
            points.setdefault(run_id, []).append((step, value))
    return {
        run_id: (np.array([s for s, _ in listed]), np.array([v for _, v in listed]))
        for run_id, listed in points.items()
    }


def _at_step(step: int) -> Callable[[TaskEvaluations], dict[int, EvaluationRecord]]:
    return lambda task: {
        run_id: record
        for run_id, records in task.along.items()
        for record in records
        if record.step == step
    }


def _means_until(
    store: Store, runs: Sequence[RunRecord], column: Column, cutoff_steps: CutoffSteps
) -> dict[int, float]:
    """The means of a metric over the steps of each run up to its cutoff."""
    assert column.metric is not None
    found: dict[int, float] = {}
    ids = [run.id for run in runs if run.id in cutoff_steps]
    for run_id, (steps, values) in store.metrics.series(ids, column.metric).items():
        last = math.floor(cutoff_steps[run_id])
        used = ~np.isnan(values) & (steps <= last)
        if column.first is not None:
            used &= steps <= column.first
        if column.last is not None:
            used &= steps > last - column.last
        if used.any():
            found[run_id] = math.fsum(values[used]) / int(used.sum())
    return found


def score(evaluations: Sequence[EvaluationRecord], column: Column) -> list[float]:
    """The value of a column in each of some evaluations.

    It is the mean over the problems that have one: pass@k is undefined for a problem with less
    than k samples that could be scored. NaN where none has.
    """
    values = np.full(len(evaluations), np.nan)
    sizes = np.array([len(evaluation.n) for evaluation in evaluations])
    for size in np.unique(sizes):
        alike = np.flatnonzero(sizes == size)
        values[alike] = mean_over_problems(by_problem([evaluations[int(i)] for i in alike], column))
    return values.tolist()


def by_problem(
    evaluations: Sequence[EvaluationRecord], column: Column
) -> Float[np.ndarray, "evaluations problems"]:
    """The value of a column for each problem, of evaluations with as many problems.

    NaN where it is undefined, and for problems of other levels than the column's.
    """
    n = np.stack([evaluation.n for evaluation in evaluations])
    if column.k is not None:
        c = np.stack([evaluation.c for evaluation in evaluations])
        values = _pass_at_k(n, c, column.k)
    else:
        name = "token_entropy" if column.quantity == "entropy/token" else "answer_entropy"
        values = np.stack([getattr(evaluation, name) for evaluation in evaluations])
    if column.level is None:
        return values
    levels = np.stack([evaluation.levels for evaluation in evaluations])
    return np.where(levels == column.level, values, np.nan)


def over_problems(record: EvaluationRecord, column: Column) -> float:
    """Half the 95 % interval of a column over problems like those of an evaluation."""
    interval = bootstrap_over_problems(by_problem([record], column)[0])
    return (interval.high - interval.low) / 2


def _pass_at_k(
    n: Int[np.ndarray, "evaluations problems"], c: Int[np.ndarray, "evaluations problems"], k: int
) -> Float[np.ndarray, "evaluations problems"]:
    """pass@k of each problem; few pairs of counts occur, however many there are."""
    size = int(n.max(initial=0)) + 1
    code = n * size + c
    if size > _LARGE:
        pairs, which = np.unique(code, return_inverse=True)
        return pass_at_k(*np.divmod(pairs, size), k)[which].reshape(n.shape)
    # Looking up is quicker than sorting.
    table = np.full(size * size, np.nan)
    pairs = np.flatnonzero(np.bincount(code.reshape(-1), minlength=size * size))
    table[pairs] = pass_at_k(*np.divmod(pairs, size), k)
    values: Float[np.ndarray, "evaluations problems"] = table[code]
    return values


Curve = tuple[np.ndarray, np.ndarray]
"""Steps and the values at them."""

_SECONDS = ("time/rollout", "time/reward", "time/estimator", "time/update")
_ROLLOUTS = "cost/rollouts"
_TOKENS = "cost/tokens"


def spent(store: Store, runs: Sequence[RunRecord], cost: str) -> dict[int, Curve]:
    """What each run had spent after each of its steps, from nothing at step 0.

    Args:
        cost: `steps`; `rollouts`: answers that were generated, discarded and reference ones
            included; `tokens` of them, those of reference answers aside; or `seconds` of
            sampling, scoring, estimating and updating, without evaluations and checkpoints. Runs
            that did not record it are left out.
    """
    if cost == "steps":
        return {run.id: _summed(np.arange(1, run.steps + 1), np.ones(run.steps)) for run in runs}
    ids = [run.id for run in runs]
    if cost == "rollouts":
        # Recorded per rollout that a step asks for.
        asked = {r.id: r.config["prompts_per_step"] * r.config["group_size"] for r in runs}
        relative = store.metrics.series(ids, _ROLLOUTS)
        return {i: _summed(steps, values * asked[i]) for i, (steps, values) in relative.items()}
    if cost == "tokens":
        return {i: _summed(*curve) for i, curve in store.metrics.series(ids, _TOKENS).items()}
    parts = [store.metrics.series(ids, name) for name in _SECONDS]
    found: dict[int, Curve] = {}
    for run_id in set.intersection(*(set(part) for part in parts)):
        steps = parts[0][run_id][0]
        if all(np.array_equal(part[run_id][0], steps) for part in parts):
            found[run_id] = _summed(steps, np.sum([part[run_id][1] for part in parts], axis=0))
    return found


def totals(
    store: Store,
    runs: Sequence[RunRecord],
    cost: str,
    cutoff_steps: Mapping[int, float] | None,
) -> dict[int, float]:
    """What each run spent in all, or up to its cutoff."""
    curves = spent(store, runs, cost)
    if cutoff_steps is None:
        return {run_id: float(values[-1]) for run_id, (_, values) in curves.items()}
    return {
        run_id: float(np.interp(cutoff_steps[run_id], steps, values))
        for run_id, (steps, values) in curves.items()
        if run_id in cutoff_steps
    }


def _summed(steps: np.ndarray, values: np.ndarray) -> Curve:
    return np.concatenate([[0], steps]), np.concatenate([[0.0], np.cumsum(values)])
