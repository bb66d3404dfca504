"""One number for each run and column, from the store's points and evaluations.

`--at` compares runs within their training instead of at its end, at equal cost or at an equal
value of a metric:

    steps=200, rollouts=50000, seconds=60    after this cost
    rollouts                                 after the cost of the cheapest run
    pass@1=0.5                               where this first reaches 0.5, between evaluations

Comparisons at equal steps are unequal where runs spend unevenly: a method that draws more
rollouts has seen more at the same step.
"""

from __future__ import annotations

import math
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

K = TypeVar("K", bound=Hashable)

CutoffSteps = Mapping[int, float]
"""The step at which each run is compared; it may lie between two steps."""

Curve = tuple[np.ndarray, np.ndarray]
"""Steps and the values at them."""

Values = dict[str, dict[int, float]]
"""The value of each run that has one, by the column's name."""

_LARGE = 2000  # samples per problem
_SECONDS = ("time/rollout", "time/reward", "time/estimator", "time/update")


@dataclass(frozen=True)
class Cutoff:
    """Where in their training runs are compared.

    Attributes:
        what: a cost, or the name of a column.
        value: the value to reach; None for the largest cost that all runs reach.
    """

    what: str
    value: float | None = None

    @property
    def is_cost(self) -> bool:
        return self.what in COSTS


def parse_cutoff(text: str, option: str = "--at") -> Cutoff:
    """Parses a cutoff as users write it.

    Args:
        option: the option that the text comes from, for the message.

    Raises:
        ConfigError: the text is no cutoff.
    """
    what, equals, written = text.strip().partition("=")
    try:
        value = float(written) if equals else None
    except ValueError:
        value = math.nan
    wrong = what not in COSTS if value is None else not math.isfinite(value)
    if not what or wrong or (what in COSTS and value is not None and value <= 0):
        raise ConfigError(
            f"{option}: expected {', '.join(COSTS)}, one of these with =NUMBER, or "
            f"COLUMN=NUMBER, got {text!r}"
        )
    return Cutoff(what, value)


def at_cost(cutoff: Cutoff, curves: Mapping[int, Curve]) -> tuple[float, CutoffSteps]:
    """Returns the budget, and the step at which each run has spent it, if it ever does.

    Args:
        curves: the steps of each run, and its cost after each.

    Raises:
        ReportError: no run recorded the cost, or none reaches the budget.
    """
    if not curves:
        raise ReportError(f"--at {cutoff.what}: no run of the table recorded what it takes")
    costs = [float(values[-1]) for _, values in curves.values()]
    budget = min(costs) if cutoff.value is None else cutoff.value
    reached = _reached(
        {i: float(value_at(values, at, budget)) for i, (at, values) in curves.items()}
    )
    if not reached:
        raise ReportError(
            f"--at {cutoff.what}={budget:g}: expected at most the {max(costs):g} that a run of "
            "the table has spent"
        )
    return budget, reached


def at_value(cutoff: Cutoff, curves: Mapping[int, Curve]) -> CutoffSteps:
    """Returns the step at which each run's curve first reaches a value, from whichever side.

    The curve is a straight line between two points. Runs that never reach the value are left out.

    Raises:
        ReportError: no run reaches it.
    """
    assert cutoff.value is not None
    steps: dict[int, float] = {}
    for run_id, (at, values) in curves.items():
        finite = values[~np.isnan(values)]
        # A curve that starts above is mirrored, so that it comes from below.
        side = -1.0 if finite.size and finite[0] > cutoff.value else 1.0
        steps[run_id] = float(value_at(side * values, at, side * cutoff.value))
    reached = _reached(steps)
    if not reached:
        seen = [value for _, values in curves.values() for value in values if value == value]
        known = f"they are from {min(seen):.3f} to {max(seen):.3f}" if seen else "none has any"
        raise ReportError(
            f"--at {cutoff.what}={cutoff.value:g}: no run of the table comes to it; {known}"
        )
    return reached


def _reached(steps: Mapping[int, float]) -> dict[int, float]:
    return {run_id: step for run_id, step in steps.items() if not math.isnan(step)}


def measure(
    store: Store,
    runs: Sequence[RunRecord],
    evaluated: EvaluationsByTask,
    columns: Iterable[Column],
    cutoff_steps: CutoffSteps | None = None,
) -> Values:
    """Returns the value of each column for each run that has one.

    Args:
        cutoff_steps: the step at which each run is compared; a run without one has no values.
            None for the end of the training.
    """
    ids = [run.id for run in runs]
    values: Values = {}
    for column in columns:
        if column.total is not None:
            found = _totals(store, runs, column.total, cutoff_steps)
        elif column.metric is None and cutoff_steps is None:
            found = scores(evaluated, column, lambda task: task.final)
        elif column.metric is None:
            assert cutoff_steps is not None
            found = {
                run_id: float(value_at(*curve, cutoff_steps[run_id]))
                for run_id, curve in curves(evaluated, column).items()
                if run_id in cutoff_steps
            }
        elif cutoff_steps is None:
            found = store.metrics.means(ids, column.metric, first=column.first, last=column.last)
        else:
            found = _means_until(store, column, cutoff_steps)
        values[column.name] = found
    return values


def scores(
    evaluated: EvaluationsByTask,
    column: Column,
    choose: Callable[[TaskEvaluations], Mapping[K, EvaluationRecord]],
) -> dict[K, float]:
    """Scores the evaluations that `choose` takes from each task in a column of evaluations."""
    if column.over is None:
        task = evaluated.of(column.task)
        return {} if task is None else _scored(choose(task), column)
    tasks = [task for name, task in evaluated.tasks.items() if name != OWN_TASKS]
    parts = [_scored(choose(task), column) for task in tasks]
    # The mean over all tasks needs every task: a mean over some of them is another quantity.
    shared = [key for key in (parts[0] if parts else ()) if all(key in part for part in parts)]
    return {key: over_tasks(column, [part[key] for part in parts]) for key in shared}


def over_tasks(column: Column, values: Sequence[float]) -> float:
    """Combines the values of a column on several tasks."""
    return interquartile_mean(values) if column.over == "iqm" else float(np.mean(values))


def _scored(chosen: Mapping[K, EvaluationRecord], column: Column) -> dict[K, float]:
    """Scores evaluations: the mean over the problems that have a value, NaN where none has.

    pass@k is undefined for a problem with fewer than k samples that could be scored.
    """
    evaluations = list(chosen.values())
    values = np.full(len(evaluations), np.nan)
    sizes = np.array([len(evaluation.n) for evaluation in evaluations])
    for size in np.unique(sizes):
        alike = np.flatnonzero(sizes == size)
        values[alike] = mean_over_problems(by_problem([evaluations[int(i)] for i in alike], column))
    return dict(zip(chosen, values.tolist(), strict=True))


def curves(evaluated: EvaluationsByTask, column: Column) -> dict[int, Curve]:
    """Returns the curve of each run in a column of evaluations, along its training."""
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


def _means_until(store: Store, column: Column, cutoff_steps: CutoffSteps) -> dict[int, float]:
    """Returns the means of a metric over the steps of each run up to its cutoff."""
    assert column.metric is not None
    found: dict[int, float] = {}
    for run_id, (steps, values) in store.metrics.series([*cutoff_steps], column.metric).items():
        last = math.floor(cutoff_steps[run_id])
        used = ~np.isnan(values) & (steps <= last)
        if column.first is not None:
            used &= steps <= column.first
        if column.last is not None:
            used &= steps > last - column.last
        if used.any():
            # fsum, as the store's own means: a value does not depend on the order of its sum.
            found[run_id] = math.fsum(values[used]) / int(used.sum())
    return found


def by_problem(
    evaluations: Sequence[EvaluationRecord], column: Column
) -> Float[np.ndarray, "evaluations problems"]:
    """Returns a column's value for each problem of evaluations with equally many problems.

    It is NaN where it is undefined, and for problems of other levels than the column's.
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
    """Returns half the 95 % interval of a column over problems like those of an evaluation."""
    interval = bootstrap_over_problems(by_problem([record], column)[0])
    return (interval.high - interval.low) / 2


def _pass_at_k(
    n: Int[np.ndarray, "evaluations problems"], c: Int[np.ndarray, "evaluations problems"], k: int
) -> Float[np.ndarray, "evaluations problems"]:
    """Returns pass@k of each problem; it is computed once for each pair of counts."""
    size = int(n.max(initial=0)) + 1
    code = n * size + c
    if size > _LARGE:
        pairs, which = np.unique(code, return_inverse=True)
        return pass_at_k(*np.divmod(pairs, size), k)[which].reshape(n.shape)
    # A lookup table is quicker than sorting, as long as it is small.
    table = np.full(size * size, np.nan)
    pairs = np.flatnonzero(np.bincount(code.reshape(-1), minlength=size * size))
    table[pairs] = pass_at_k(*np.divmod(pairs, size), k)
    values: Float[np.ndarray, "evaluations problems"] = table[code]
    return values


def spent(store: Store, runs: Sequence[RunRecord], cost: str) -> dict[int, Curve]:
    """Returns each run's cost after each of its steps, from 0 at step 0.

    Args:
        cost: `steps`; `rollouts`: generated answers, including discarded and reference answers;
            `tokens` of these, without those of reference answers; or `seconds` of sampling,
            scoring, estimating and updating, without evaluations and checkpoints. Runs that did
            not record it are left out.
    """
    if cost == "steps":
        return {run.id: _summed(np.arange(1, run.steps + 1), np.ones(run.steps)) for run in runs}
    ids = [run.id for run in runs]
    if cost == "rollouts":
        # The metric is relative to the rollouts of one step without resampling.
        size = {r.id: r.config["prompts_per_step"] * r.config["group_size"] for r in runs}
        relative = store.metrics.series(ids, "cost/rollouts")
        return {i: _summed(steps, values * size[i]) for i, (steps, values) in relative.items()}
    if cost == "tokens":
        return {i: _summed(*curve) for i, curve in store.metrics.series(ids, "cost/tokens").items()}
    parts = [store.metrics.series(ids, name) for name in _SECONDS]
    found: dict[int, Curve] = {}
    for run_id in set.intersection(*(set(part) for part in parts)):
        steps = parts[0][run_id][0]
        if all(np.array_equal(part[run_id][0], steps) for part in parts):
            found[run_id] = _summed(steps, np.sum([part[run_id][1] for part in parts], axis=0))
    return found


def _totals(
    store: Store, runs: Sequence[RunRecord], cost: str, cutoff_steps: CutoffSteps | None
) -> dict[int, float]:
    """Returns each run's cost at its end, or at its cutoff."""
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
