"""One number for each run and column, from the store's points and evaluations.

Each curve of the store is read once for all columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from advsweep.errors import NotFoundError, nearest
from advsweep.report.data.analyses import analysis_columns, analysis_curves
from advsweep.report.data.columns import (
    ANSWER_ENTROPY,
    KL_BASE,
    RAREFIED_SHARE,
    RIGHT_ENTROPY,
    TOKEN_ENTROPY,
    Column,
    parse_column,
)
from advsweep.report.data.costs import spent
from advsweep.report.data.cutoffs import Arrivals, Cutoff, CutoffSteps, arrivals
from advsweep.report.data.evaluations import OWN_TASKS, EvaluationsByTask, TaskEvaluations
from advsweep.report.data.floors import find_floors
from advsweep.report.data.laws import law_values
from advsweep.report.data.windows import Curve, WindowKind, smoothed
from advsweep.statistics import (
    bootstrap_over_problems,
    interquartile_mean,
    mean_over_problems,
    pass_at_k,
    value_at,
)
from advsweep.store import EvaluationRecord, RunRecord, Store

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

K = TypeVar("K", bound=Hashable)

Values = dict[str, dict[int, float]]
"""The value of each run that has one, by the column's name."""

_BY_PROBLEM = {
    ANSWER_ENTROPY: "answer_entropy",
    RIGHT_ENTROPY: "right_entropy",
    TOKEN_ENTROPY: "token_entropy",
    KL_BASE: "kl_base",
}

_LARGE = 2000  # samples per problem


class TrainingCurves:
    """The curves of some runs; each is read from the store once."""

    def __init__(
        self, store: Store, runs: Sequence[RunRecord], evaluated: EvaluationsByTask
    ) -> None:
        self._store = store
        self._runs = runs
        self._evaluated = evaluated
        self._known: dict[tuple[str, str], Mapping[int, Curve]] = {}

    def of_metric(self, name: str) -> Mapping[int, Curve]:
        ids = [run.id for run in self._runs]
        if columns := analysis_columns(name):
            return self._once(
                "metric", name, lambda: analysis_curves(self._store, ids, columns, name)
            )
        return self._once("metric", name, lambda: self._store.metrics.series(ids, name))

    def of_cost(self, cost: str) -> Mapping[int, Curve]:
        """Returns what each run has spent, as `costs.spent`."""
        return self._once("cost", cost, lambda: spent(self._store, self._runs, cost))

    def of_column(self, column: Column) -> Mapping[int, Curve]:
        """Returns the curves that a column's window, or its value at a step, is of."""
        if column.metric is not None:
            return self.of_metric(column.metric)
        if column.total is not None:
            return self.of_cost(column.total)
        return self._once("evaluated", column.curve, lambda: curves(self._evaluated, column))

    def of_cutoff(self, cutoff: Cutoff, origin: str = "--at") -> Mapping[int, Curve]:
        """Returns the curves in which a cutoff is looked for; those of metrics are smoothed.

        Args:
            origin: the option or column that has the cutoff, for the message.

        Raises:
            NotFoundError: no run has such a curve.
        """
        if cutoff.is_cost:
            return self.of_cost(cutoff.what)
        column = parse_column(cutoff.what)
        if column is None or column.is_made_of_curve or column.total or column.first or column.last:
            raise NotFoundError(f"{origin}: expected a metric or a pass@k, got '{cutoff.what}'")
        found = self.of_column(column)
        if column.metric is None:
            return found
        if not found:
            known = self._store.metrics.names(self._runs[0].id)
            raise NotFoundError(
                f"{origin}: no run has a metric '{cutoff.what}'; {nearest(cutoff.what, known)}"
            )
        return {i: short for i, curve in found.items() if (short := smoothed(curve)) is not None}

    def arrivals(self, cutoff: Cutoff, origin: str = "--at") -> Arrivals:
        """Return where each run comes to a value; arguments and errors as `of_cutoff` has them."""
        curves = self.of_cutoff(cutoff, origin)
        column = None if cutoff.is_cost else parse_column(cutoff.what)
        is_evaluated = column is not None and column.is_evaluated
        return arrivals(
            cutoff, curves, {run.id: run.steps for run in self._runs} if is_evaluated else None
        )

    def _once(
        self, kind: str, name: str, read: Callable[[], Mapping[int, Curve]]
    ) -> Mapping[int, Curve]:
        if (kind, name) not in self._known:
            self._known[kind, name] = read()
        return self._known[kind, name]


def measure(
    store: Store,
    runs: Sequence[RunRecord],
    evaluated: EvaluationsByTask,
    columns: Iterable[Column],
    cutoff_steps: CutoffSteps | None = None,
    known: TrainingCurves | None = None,
) -> Values:
    """Returns the value of each column for each run that has one.

    Args:
        evaluated: with the evaluations within the training if a column is made of curves.
        cutoff_steps: the step at which each run is compared; a run without one has no values.
            None for the end of the training. A column with a cutoff of its own has that.
        known: the curves of the runs that were read already.

    Raises:
        NotFoundError: no run has the curve that a column's cutoff is a value of.
    """
    known = TrainingCurves(store, runs, evaluated) if known is None else known
    ids = [run.id for run in runs]
    values: Values = {}
    for column in columns:
        if column.is_selected:
            found = scores(evaluated, column, lambda task: task.selected)
        elif column.at is not None:
            found = _at_own_cutoff(known, column, column.at)
        elif column.window is not None:
            found = _windows(known, column, cutoff_steps)
        elif cutoff_steps is not None:
            found = _at_steps(known, column, cutoff_steps)
        elif column.total is not None:
            found = {i: float(spent[-1]) for i, (_, spent) in known.of_column(column).items()}
        elif column.metric is None:
            found = scores(evaluated, column, lambda task: task.final)
        elif analysis_columns(column.metric):
            found = {i: float(own[-1]) for i, (_, own) in known.of_column(column).items()}
        else:
            found = store.metrics.means(ids, column.metric, first=column.first, last=column.last)
        values[column.name] = found
    return values


def _at_own_cutoff(known: TrainingCurves, column: Column, at: Cutoff) -> dict[int, float]:
    """Return a column's values at its own cutoff; NaN for runs that are not compared there."""
    came = known.arrivals(at, column.name)
    if column.is_reached:
        return {run_id: float(not math.isnan(step)) for run_id, step in came.steps.items()}
    if column.window is not None:
        found = _windows(known, column, came.usable)
    else:
        found = _at_steps(known, column, came.usable)
    return {run_id: found.get(run_id, math.nan) for run_id in came.steps if found}


def _windows(
    known: TrainingCurves, column: Column, cutoff_steps: CutoffSteps | None
) -> dict[int, float]:
    """Returns what a column's window takes from each run's curve, up to its cutoff."""
    assert column.window is not None
    found: dict[int, float] = {}
    for run_id, curve in known.of_column(column).items():
        if cutoff_steps is not None and run_id not in cutoff_steps:
            continue
        end = None if cutoff_steps is None else math.floor(cutoff_steps[run_id])
        if column.metric is not None and column.window.kind is WindowKind.STEPS_TO:
            curve = smoothed(curve) or (curve[0][:0], curve[1][:0])
        found[run_id] = column.window.of(curve, end)
    return found


def _at_steps(known: TrainingCurves, column: Column, cutoff_steps: CutoffSteps) -> dict[int, float]:
    """Returns the value of a column at each run's cutoff: a cost, a score, or a mean up to it."""
    own = known.of_column(column)
    curves = {run_id: curve for run_id, curve in own.items() if run_id in cutoff_steps}
    if column.metric is not None:
        return _means_until(curves, column, cutoff_steps)
    if column.total is not None:
        return {i: float(np.interp(cutoff_steps[i], *curve)) for i, curve in curves.items()}
    return {i: float(value_at(*curve, cutoff_steps[i])) for i, curve in curves.items()}


def scores(
    evaluated: EvaluationsByTask,
    column: Column,
    choose: Callable[[TaskEvaluations], Mapping[K, EvaluationRecord]],
) -> dict[K, float]:
    """Scores the evaluations that `choose` takes from each task in a column of evaluations."""
    if column.over is None:
        task = evaluated.of(column.task, train=column.is_train)
        return {} if task is None else _scored(task, choose(task), column)
    tasks = [task for name, task in _tasks(evaluated, column).items() if name != OWN_TASKS]
    parts = [_scored(task, choose(task), column) for task in tasks]
    # The mean over all tasks needs every task: a mean over some of them is another quantity.
    shared = [key for key in (parts[0] if parts else ()) if all(key in part for part in parts)]
    return {key: over_tasks(column, [part[key] for part in parts]) for key in shared}


def _tasks(evaluated: EvaluationsByTask, column: Column) -> Mapping[str, TaskEvaluations]:
    return evaluated.train if column.is_train else evaluated.tasks


def over_tasks(column: Column, values: Sequence[float]) -> float:
    """Combines the values of a column on several tasks."""
    return interquartile_mean(values) if column.over == "iqm" else float(np.mean(values))


def _scored(
    task: TaskEvaluations, chosen: Mapping[K, EvaluationRecord], column: Column
) -> dict[K, float]:
    """Scores evaluations: the mean over the problems that have a value, NaN where none has.

    pass@k is undefined for a problem with fewer than k samples that could be scored.
    """
    if column.law is not None:
        return _laws(task, chosen, column, column.law)
    if column.base is not None:
        # Without a base there are no solve rates to choose problems by.
        chosen = {key: record for key, record in chosen.items() if record.run_id in task.base}
    evaluations = list(chosen.values())
    values = np.full(len(evaluations), np.nan)
    sizes = np.array([len(evaluation.n) for evaluation in evaluations])
    for size in np.unique(sizes):
        alike = np.flatnonzero(sizes == size)
        part = [evaluations[int(i)] for i in alike]
        each = by_problem(part, column)
        if column.base is not None:
            of_base = [_in_range(record, task, column.base) for record in part]
            each = np.where(of_base, each, np.nan)
        if column.above is not None:
            each = each - np.stack([_floor(task, record, column) for record in part])
        values[alike] = mean_over_problems(each)
    return dict(zip(chosen, values.tolist(), strict=True))


def _laws(
    task: TaskEvaluations, chosen: Mapping[K, EvaluationRecord], column: Column, name: str
) -> dict[K, float]:
    """Returns a number of the law of each evaluation's pass@k over k."""
    samples = [int(record.n.max(initial=0)) for record in chosen.values()]

    def pass_at(k: int) -> list[float]:
        found = _scored(task, chosen, replace(column, law=None, k=k))
        return [found.get(key, math.nan) for key in chosen]

    return dict(zip(chosen, law_values(name, samples, pass_at), strict=True))


def _floor(
    task: TaskEvaluations, record: EvaluationRecord, column: Column
) -> Float[np.ndarray, " problems"]:
    """Returns pass@k of the floor that a column is above; NaN where the task has none."""
    floor = find_floors(task, record).get(column.above or "")
    if floor is None or column.k is None:
        return np.full(len(record.problem_ids), np.nan)
    return floor.pass_at(column.k, record.problem_ids)


def _in_range(
    record: EvaluationRecord, task: TaskEvaluations, rates: tuple[float, float]
) -> Bool[np.ndarray, " problems"]:
    """Tells of each problem whether the run's base model solves it at a rate in a range."""
    assert record.run_id is not None
    base = task.base[record.run_id]
    with np.errstate(invalid="ignore"):
        rate = base.c / base.n
    low, high = rates
    # The last class has the problems that the base always solves.
    found: Bool[np.ndarray, " problems"] = (rate >= low) & (
        rate < (math.inf if high == 1 else high)
    )
    if base.problem_ids == record.problem_ids:
        return found
    chosen = {problem for problem, own in zip(base.problem_ids, found, strict=True) if own}
    return np.array([problem in chosen for problem in record.problem_ids])


def curves(evaluated: EvaluationsByTask, column: Column) -> dict[int, Curve]:
    """Returns the curve of each run in a column of evaluations, along its training."""
    tasks = _tasks(evaluated, column).values()
    steps = sorted({e.step for task in tasks for es in task.along.values() for e in es})
    # A line from the first evaluation to the last alone would not be a curve.
    short = _with_fewer_samples(evaluated, column)
    points: dict[int, list[tuple[int, float]]] = {}
    for step in steps:
        for run_id, value in scores(evaluated, column, _at_step(step)).items():
            if run_id not in short:
                points.setdefault(run_id, []).append((step, value))
    return {
        run_id: (np.array([s for s, _ in listed]), np.array([v for _, v in listed]))
        for run_id, listed in points.items()
    }


def _with_fewer_samples(evaluated: EvaluationsByTask, column: Column) -> set[int]:
    """Returns the runs that have evaluations of fewer samples than the column's k."""
    if column.k is None:
        return set()
    tasks = _tasks(evaluated, column)
    if column.over is None:
        own = evaluated.of(column.task, train=column.is_train)
        tasks = {} if own is None else {"": own}
    return {
        run_id
        for task in tasks.values()
        for run_id, records in task.along.items()
        for record in records
        if record.settings.get("n", column.k) < column.k
    }


def _at_step(step: int) -> Callable[[TaskEvaluations], dict[int, EvaluationRecord]]:
    return lambda task: {
        run_id: record
        for run_id, records in task.along.items()
        for record in records
        if record.step == step
    }


def _means_until(
    curves: Mapping[int, Curve], column: Column, cutoff_steps: CutoffSteps
) -> dict[int, float]:
    """Returns the means of a metric over the steps of each run up to its cutoff."""
    found: dict[int, float] = {}
    for run_id, (steps, values) in curves.items():
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
    elif column.m is not None:
        values = np.stack([evaluation.rarefied(column.m) for evaluation in evaluations])
        if column.curve.startswith(RAREFIED_SHARE):
            known = np.array([[e.right_counts is not None] for e in evaluations])
            values = np.where(known, ~np.isnan(values), np.nan)
    else:
        name = _BY_PROBLEM[column.curve.partition("[")[0]]
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
