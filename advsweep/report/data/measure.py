"""A number for each run and column, from the store's points and evaluations."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from advsweep.errors import FitError, NotFoundError, ReportError, counted, nearest
from advsweep.report.data.analyses import analysis_columns, analysis_curves
from advsweep.report.data.columns import (
    ANSWER_ENTROPY,
    END_STEPS,
    KL_BASE,
    LAWS,
    RAREFIED_SHARE,
    RIGHT_ENTROPY,
    TOKEN_ENTROPY,
    Column,
    Curve,
    Cutoff,
    Window,
    parse_column,
    smoothed,
    step_at,
)
from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations
from advsweep.report.data.runs import Group, name_group
from advsweep.statistics import (
    bootstrap_over_problems,
    interquartile_mean,
    mean_over_problems,
    pass_at_k,
    value_at,
)
from advsweep.store import EvaluationRecord, RunRecord, Store

if TYPE_CHECKING:
    from jaxtyping import Float

K = TypeVar("K", bound=Hashable)

MAX_GAP = 0.05
"""The largest gap between two evaluations that is interpolated, as a part of the run's steps."""

_BY_PROBLEM = {
    ANSWER_ENTROPY: "answer_entropy",
    RIGHT_ENTROPY: "right_entropy",
    TOKEN_ENTROPY: "token_entropy",
    KL_BASE: "kl_base",
}
_SECONDS = ("time/rollout", "time/reward", "time/estimator", "time/update")
_NAMED = 6  # rows in a sentence


@dataclass(frozen=True)
class Arrivals:
    """Where runs come to a cutoff.

    Attributes:
        steps: the step at which each run comes to it; NaN for one that never does.
        gaps: of the runs that come to it between two evaluations too far apart: the steps between
            these, and those of the run. They are not compared.
    """

    steps: Mapping[int, float]
    gaps: Mapping[int, tuple[int, int]]

    @property
    def reached(self) -> dict[int, float]:
        """The runs that come to it, with the step."""
        return {i: step for i, step in self.steps.items() if not math.isnan(step)}

    @property
    def usable(self) -> dict[int, float]:
        """The runs that are compared, with the step."""
        return {i: step for i, step in self.reached.items() if i not in self.gaps}

    @property
    def range(self) -> str:
        low, high = min(self.usable.values()), max(self.usable.values())
        return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"

    def describe_gaps(self) -> str:
        """Say how many runs come to it in a gap between evaluations, and what to do."""
        gap, steps = max(self.gaps.values())
        return (
            f"{len(self.gaps)} of {counted(len(self.steps), 'run')} come to it between two "
            f"evaluations more than {MAX_GAP:.0%} of their steps apart ({gap} of {steps}), too far "
            f"to interpolate, and are left out of its numbers; evaluation.every="
            f"{max(1, math.floor(MAX_GAP * steps))}, or evaluation.at, makes more evaluations"
        )

    def describe_missing(self, groups: Sequence[tuple[Group, Sequence[RunRecord]]]) -> str:
        """Say how many runs are not compared at it, and why; empty if all are."""
        in_gaps = f"; {self.describe_gaps()}" if self.gaps else ""
        reached = self.reached
        rows: list[str] = []
        missing = total = 0
        for group, members in groups:
            own = [run for run in members if run.id not in reached]
            missing, total = missing + len(own), total + len(members)
            if own:
                seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in own}))
                rows.append(f"{name_group(group)}: {len(own)} of {len(members)} (seeds {seeds})")
        if not missing:
            return in_gaps
        more = [counted(len(rows) - _NAMED, "more row")] if len(rows) > _NAMED else []
        return (
            f"; {missing} of {total} runs do not come to it and are left out of its numbers, by "
            f"row: {'; '.join([*rows[:_NAMED], *more])}{in_gaps}"
        )


class Measures:
    """The numbers of some runs; each curve is read from the store once.

    Args:
        evaluated: with the evaluations within the training if a column is made of curves.
    """

    def __init__(
        self, store: Store, runs: Sequence[RunRecord], evaluated: EvaluationsByTask
    ) -> None:
        self._store = store
        self._runs = runs
        self._ids = [run.id for run in runs]
        self._evaluated = evaluated
        self._known: dict[str, Mapping[int, Curve]] = {}

    def table(self, columns: Iterable[Column], at: Arrivals | None = None) -> pd.DataFrame:
        """Return a line per run, by its id, and a number per column; NaN where it has none.

        Args:
            at: where each run is compared; None for the end of the training. A column with a
                cutoff of its own has that.

        Raises:
            NotFoundError: no run has the curve that a column's cutoff is a value of.
        """
        found = {column.name: pd.Series(self._values(column, at)) for column in columns}
        return pd.DataFrame(found, index=pd.Index(self._ids), dtype=float)

    def _values(self, column: Column, at: Arrivals | None) -> Mapping[int, float]:
        if column.is_selected:
            return scores(self._evaluated, column, lambda task: task.selected)
        if column.at is not None:
            at = self.arrivals(column.at, column.name)
            if column.is_reached:
                return {run_id: float(not math.isnan(step)) for run_id, step in at.steps.items()}
        is_curve = at is not None or column.is_made_of_curve or column.total is not None
        if not is_curve and column.metric is None:
            return scores(self._evaluated, column, lambda task: task.final)
        window = column.window or Window("mean")
        if not is_curve and column.metric is not None and not analysis_columns(column.metric):
            first = int(window.value) if window.kind == "first" else None
            last = END_STEPS if window.kind == "end" else None
            return self._store.metrics.means(self._ids, column.metric, first=first, last=last)
        ends = None if at is None else at.usable
        values: dict[int, float] = {}
        for run_id, curve in self.curves(column).items():
            if ends is not None and run_id not in ends:
                continue
            end = None if ends is None else ends[run_id]
            if column.window is None and (column.metric is None or end is None):
                values[run_id] = _value_at(column, curve, end)
                continue
            if column.metric is not None and window.kind == "steps_to=":
                curve = smoothed(curve) or (curve[0][:0], curve[1][:0])
            values[run_id] = window.of(curve, None if end is None else math.floor(end))
        return values

    def curves(self, column: Column) -> Mapping[int, Curve]:
        """Return the curve of each run that a column takes its numbers from."""
        key = f"{column.source} {column.select}"
        if key not in self._known:
            if column.total is not None:
                self._known[key] = self._spent(column.total)
            elif column.metric is None:
                self._known[key] = curves(self._evaluated, column)
            elif analysis := analysis_columns(column.metric):
                known = analysis_curves(self._store, self._ids, analysis, column.metric)
                self._known[key] = known
            else:
                self._known[key] = self._store.metrics.series(self._ids, column.metric)
        return self._known[key]

    def _spent(self, cost: str) -> dict[int, Curve]:
        """Return each run's cost after each of its steps, from 0 at step 0.

        `rollouts` and `tokens` include those that are discarded; `rollouts` also those of the
        reference. `seconds` are without evaluations and checkpoints. Runs that did not record a
        cost are left out, and so are imported runs whose sizes are not known.
        """
        if cost == "steps":
            return {r.id: _summed(np.arange(1, r.steps + 1), np.ones(r.steps)) for r in self._runs}
        series = self._store.metrics.series
        if cost == "tokens":
            return {i: _summed(*own) for i, own in series(self._ids, "cost/tokens").items()}
        if cost == "rollouts":
            # The metric is relative to the rollouts of one step without resampling.
            sizes = {}
            for run in self._runs:
                known: list[Any] = [
                    run.config.get(key) for key in ("prompts_per_step", "group_size")
                ]
                if all(isinstance(size, int) and size > 0 for size in known):
                    sizes[run.id] = math.prod(known)
            relative = series(list(sizes), "cost/rollouts")
            return {i: _summed(steps, own * sizes[i]) for i, (steps, own) in relative.items()}
        parts = [series(self._ids, name) for name in _SECONDS]
        found: dict[int, Curve] = {}
        for run_id in set.intersection(*(set(part) for part in parts)):
            steps = parts[0][run_id][0]
            if all(np.array_equal(part[run_id][0], steps) for part in parts):
                found[run_id] = _summed(steps, np.sum([part[run_id][1] for part in parts], axis=0))
        return found

    def cutoff_curves(self, cutoff: Cutoff, origin: str) -> Mapping[int, Curve]:
        """Return the curves in which a cutoff is looked for; those of metrics are smoothed.

        Args:
            origin: the option or column that has the cutoff, for the message.

        Raises:
            NotFoundError: no run has such a curve.
        """
        column = parse_column(f"total/{cutoff.what}" if cutoff.is_cost else cutoff.what)
        if column is None or column.window or column.at or (column.total and not cutoff.is_cost):
            raise NotFoundError(f"{origin}: expected a metric or a pass@k, got '{cutoff.what}'")
        found = self.curves(column)
        if column.metric is None:
            return found
        if not found:
            known = self._store.metrics.names(self._runs[0].id)
            raise NotFoundError(
                f"{origin}: no run has a metric '{cutoff.what}'; {nearest(cutoff.what, known)}"
            )
        return {i: short for i, curve in found.items() if (short := smoothed(curve)) is not None}

    def arrivals(self, cutoff: Cutoff, origin: str) -> Arrivals:
        """Return where each run comes to a value; arguments and errors as of `cutoff_curves`."""
        assert cutoff.value is not None
        found = self.cutoff_curves(cutoff, origin)
        column = None if cutoff.is_cost else parse_column(cutoff.what)
        # A cost only grows, so that it comes from below.
        steps = {run_id: step_at(curve, cutoff.value) for run_id, curve in found.items()}
        gaps: dict[int, tuple[int, int]] = {}
        if column is not None and column.is_evaluated:
            lengths = {run.id: run.steps for run in self._runs}
            for run_id, step in Arrivals(steps, {}).reached.items():
                at = found[run_id][0][~np.isnan(found[run_id][1])]
                after = int(np.searchsorted(at, step))
                gap = 0 if at[after] == step else int(at[after] - at[after - 1])
                if gap > MAX_GAP * lengths[run_id]:
                    gaps[run_id] = gap, lengths[run_id]
        return Arrivals(steps, gaps)

    def compare_at(self, at: Cutoff) -> tuple[Arrivals, str]:
        """Return where each run is compared with `--at`, and a sentence about it.

        Raises:
            NotFoundError: no run has the metric of the cutoff.
            ReportError: no run can be compared at the cutoff.
        """
        found = self.cutoff_curves(at, "--at")
        if not at.is_cost:
            came = self.arrivals(at, "--at")
            if came.gaps and not came.usable:
                raise ReportError(f"--at {at.text}: {came.describe_gaps()}")
            if not came.usable:
                seen = [value for _, own in found.values() for value in own if value == value]
                known = (
                    f"they are from {min(seen):.3f} to {max(seen):.3f}" if seen else "none has any"
                )
                raise ReportError(f"--at {at.text}: no run of the table comes to it; {known}")
            where = f"where {at.what} first comes to {at.value:g}"
            return came, f"each run as it was {where}: steps {came.range}{self.describe_gaps()}"
        if not found:
            raise ReportError(f"--at {at.what}: no run of the table recorded what it takes")
        spent = [float(values[-1]) for _, values in found.values()]
        budget = min(spent) if at.value is None else at.value
        steps = {i: float(value_at(own, steps, budget)) for i, (steps, own) in found.items()}
        came = Arrivals(steps, {})
        if not came.reached:
            raise ReportError(
                f"--at {at.what}={budget:g}: expected at most the {max(spent):g} that a run of "
                "the table has spent"
            )
        came = Arrivals(came.reached, {})
        shown = f"{budget:.4g}" if budget < 1000 else f"{budget:.0f}"
        where = f"where it had spent {shown} {at.what}"
        return came, f"each run as it was {where}: steps {came.range}{self.describe_gaps()}"

    def describe_own(self, at: Cutoff) -> tuple[Arrivals, str]:
        """Return where each run comes to a column's own cutoff, and a sentence about it."""
        found = self.arrivals(at, at.text)
        if not found.reached:
            return found, f"@{at.text}: no run of the table comes to it"
        if not found.usable:
            return found, f"@{at.text}: no run of the table can be compared there"
        return found, f"@{at.text}: at steps {found.range}{self.describe_gaps()}"

    def describe_gaps(self) -> str:
        """Say how far evaluations within the training are apart; empty without any."""
        gaps = [
            later.step - earlier.step
            for task in self._evaluated.tasks.values()
            for records in task.along.values()
            for earlier, later in itertools.pairwise(records)
        ]
        if not gaps:
            return ""
        steps = counted(max(gaps), "step")
        return f", evaluations on the straight line between two, {steps} apart at most"


def measure(
    store: Store, runs: Sequence[RunRecord], evaluated: EvaluationsByTask, columns: Iterable[Column]
) -> pd.DataFrame:
    """Return the numbers of runs after their training, as `Measures.table`."""
    return Measures(store, runs, evaluated).table(columns)


def _summed(steps: np.ndarray, values: np.ndarray) -> Curve:
    return np.concatenate([[0], steps]), np.concatenate([[0.0], np.cumsum(values)])


def _value_at(column: Column, curve: Curve, end: float | None) -> float:
    """Return a cost, a score or a number of an analysis at a step; None for the last one."""
    if end is None:
        return float(curve[1][-1])
    if column.total is not None:
        return float(np.interp(end, *curve))
    return float(value_at(*curve, end))


def scores(
    evaluated: EvaluationsByTask,
    column: Column,
    choose: Callable[[TaskEvaluations], Mapping[K, EvaluationRecord]],
) -> dict[K, float]:
    """Score the evaluations that `choose` takes from each task in a column of evaluations."""
    if column.over is None:
        task = evaluated.of(column.task, train=column.is_train)
        return {} if task is None else _score(task, choose(task), column)
    tasks = (evaluated.train if column.is_train else evaluated.tasks).values()
    parts = [_score(task, choose(task), column) for task in tasks]
    # The mean over all tasks needs every task: a mean over some of them is another quantity.
    shared = [key for key in (parts[0] if parts else ()) if all(key in part for part in parts)]
    return {key: over_tasks(column, [part[key] for part in parts]) for key in shared}


def over_tasks(column: Column, values: Sequence[float]) -> float:
    """Combine the values of a column on several tasks."""
    return interquartile_mean(values) if column.over == "iqm" else float(np.mean(values))


def _score(
    task: TaskEvaluations, chosen: Mapping[K, EvaluationRecord], column: Column
) -> dict[K, float]:
    """Score evaluations: the mean over the problems that have a value, NaN where none has.

    pass@k is undefined for a problem with fewer than k samples that could be scored.
    """
    if column.law is not None:
        return _fit_laws(task, chosen, column)
    if column.base is not None:
        # Without a base there are no solve rates to choose problems by.
        chosen = {key: record for key, record in chosen.items() if record.run_id in task.base}
    records = list(chosen.values())
    values = np.full(len(records), np.nan)
    sizes = np.array([len(record.n) for record in records])
    for size in np.unique(sizes):
        alike = np.flatnonzero(sizes == size)
        part = [records[int(i)] for i in alike]
        each = by_problem(part, column)
        if column.base is not None:
            each = np.where([_in_range(record, task, column.base) for record in part], each, np.nan)
        if column.above is not None and column.k is not None:
            for i, record in enumerate(part):
                floor = task.floors(record).get(column.above)
                each[i] -= (
                    math.nan if floor is None else floor.pass_at(column.k, record.problem_ids)
                )
        values[alike] = mean_over_problems(each)
    return dict(zip(chosen, values.tolist(), strict=True))


def _in_range(
    record: EvaluationRecord, task: TaskEvaluations, rates: tuple[float, float]
) -> list[bool]:
    """Tell of each problem whether the run's base model solves it at a rate in a range."""
    assert record.run_id is not None
    base, (low, high) = task.base[record.run_id], rates
    with np.errstate(invalid="ignore"):
        rate = base.c / base.n
    # The last class has the problems that the base always solves.
    found = (rate >= low) & (rate < (math.inf if high == 1 else high))
    chosen = {problem for problem, own in zip(base.problem_ids, found, strict=True) if own}
    return [problem in chosen for problem in record.problem_ids]


def _fit_laws(
    task: TaskEvaluations, chosen: Mapping[K, EvaluationRecord], column: Column
) -> dict[K, float]:
    """Return a number of the law of each evaluation's pass@k over k; NaN where none can be fitted.

    A law is fitted to the powers of two up to half the samples: near n, pass@k of n samples has
    its largest variance.
    """
    from advsweep.statistics.pass_laws import compare_laws, fit_pass_at_k  # loads scipy.optimize

    samples = {key: int(record.n.max(initial=0)) for key, record in chosen.items()}
    most = max(samples.values(), default=0) // 2
    ks = [2**i for i in range(most.bit_length()) if 2**i <= most]
    curves = [_score(task, chosen, replace(column, source=f"pass@{k}")) for k in ks]
    name, *rest = column.source.removeprefix("law/").split("/")
    found = dict.fromkeys(chosen, math.nan)
    for key, n in samples.items():
        curve = [
            own.get(key, math.nan) if k <= n // 2 else math.nan
            for k, own in zip(ks, curves, strict=True)
        ]
        try:
            if not rest:
                found[key] = float(getattr(fit_pass_at_k(ks, np.array(curve)), name).value)
                continue
            fits = compare_laws(ks, np.array(curve))
        except FitError:
            continue
        if rest[0] in fits and (name == "mse" or LAWS[0] in fits):
            fit = fits[rest[0]]
            found[key] = fit.mse if name == "mse" else fit.aicc - fits[LAWS[0]].aicc
    return found


def curves(evaluated: EvaluationsByTask, column: Column) -> dict[int, Curve]:
    """Return the curve of each run in a column of evaluations, along its training."""
    known = evaluated.train if column.is_train else evaluated.tasks
    own = None if column.over else evaluated.of(column.task, train=column.is_train)
    tasks = list(known.values()) if column.over else [own] if own else []
    # A line from the first evaluation to the last alone would not be a curve.
    short = {
        run_id
        for task in tasks
        for run_id, records in task.along.items()
        if any(
            record.settings.get("n", column.k) < (column.k or 0) for record in records if column.k
        )
    }
    points: dict[int, list[tuple[int, float]]] = {}
    for step in sorted({r.step for task in tasks for own in task.along.values() for r in own}):
        found = scores(evaluated, column, functools.partial(_at_step, step))
        for run_id, value in found.items():
            if run_id not in short:
                points.setdefault(run_id, []).append((step, value))
    return {
        run_id: (np.array([s for s, _ in listed]), np.array([v for _, v in listed]))
        for run_id, listed in points.items()
    }


def _at_step(step: int, task: TaskEvaluations) -> dict[int, EvaluationRecord]:
    return {i: r for i, records in task.along.items() for r in records if r.step == step}


def by_problem(
    records: Sequence[EvaluationRecord], column: Column
) -> Float[np.ndarray, "evaluations problems"]:
    """Return a column's value for each problem of evaluations with equally many problems.

    It is NaN where it is undefined, and for problems of other levels than the column's.
    """
    if column.k is not None:
        n, c = (np.stack([getattr(record, name) for record in records]) for name in ("n", "c"))
        # pass@k is computed once for each pair of counts.
        size = int(n.max(initial=0)) + 1
        pairs, which = np.unique(n * size + c, return_inverse=True)
        values = pass_at_k(*np.divmod(pairs, size), column.k)[which].reshape(n.shape)
    elif column.m is not None:
        values = np.stack([record.rarefied(column.m) for record in records])
        if column.source == RAREFIED_SHARE:
            known = np.array([[record.right_counts is not None] for record in records])
            values = np.where(known, ~np.isnan(values), np.nan)
    else:
        values = np.stack([getattr(record, _BY_PROBLEM[column.source]) for record in records])
    if column.level is None:
        return values
    levels = np.stack([record.levels for record in records])
    return np.where(levels == column.level, values, np.nan)


def over_problems(record: EvaluationRecord, column: Column) -> float:
    """Return half the 95 % interval of a column over problems like those of an evaluation."""
    interval = bootstrap_over_problems(by_problem([record], column)[0])
    return (interval.high - interval.low) / 2
