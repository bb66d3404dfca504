"""A number for each run and column, from the store's points and evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from advsweep.errors import FitError, NotFoundError, ReportError, counted, first_of, nearest
from advsweep.report.data.analyses import analysis_columns, analysis_curves
from advsweep.report.data.columns import (
    ANSWER_ENTROPY,
    END_STEPS,
    KL_BASE,
    LAWS,
    LOGGED_PASS,
    RAREFIED_SHARE,
    RIGHT_ENTROPY,
    TOKEN_ENTROPY,
    Column,
    Curve,
    Cutoff,
    Select,
    Window,
    parse_column,
    smoothed,
    step_at,
)
from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations
from advsweep.report.data.runs import Group, name_group
from advsweep.statistics import bootstrap_over_problems, mean_over_problems, pass_at_k, value_at
from advsweep.store import EvaluationRecord, RunRecord, Store
from advsweep.store.records import seed_order

if TYPE_CHECKING:
    from jaxtyping import Float

K = TypeVar("K", bound=Hashable)

FIRST_COMES = "each run as it was where"

# The largest gap between two evaluations that is interpolated, as a part of the run's steps.
MAX_GAP = 0.05

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
            these, and those of the run. They are not compared, as a line between two distant
            points need not be the curve.
    """

    steps: Mapping[int, float]
    gaps: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def usable(self) -> dict[int, float]:
        """The runs that are compared, with the step."""
        reached = {i: step for i, step in self.steps.items() if not math.isnan(step)}
        return {i: step for i, step in reached.items() if i not in self.gaps}

    def describe(self, groups: Sequence[tuple[Group, Sequence[RunRecord]]]) -> str:
        """Say at which steps runs are compared, and which runs are not, and why."""
        steps = sorted(self.usable.values())
        ends = dict.fromkeys(f"{step:.4g}" for step in (*steps[:1], *steps[-1:]))
        text = f"at steps {' to '.join(ends)}" if steps else "in no run"
        rows = []
        for group, members in groups:
            own = {r.seed_key for r in members if math.isnan(self.steps.get(r.id, math.nan))}
            if own:
                seeds = ", ".join(map(str, sorted(own, key=seed_order)))
                rows.append(f"{name_group(group)} (seeds {seeds})")
        if rows:
            text += "; runs that do not come to it are left out of its numbers: "
            text += first_of(rows, _NAMED)
        return text + (f"; {self.describe_gaps()}" if self.gaps else "")

    def describe_gaps(self) -> str:
        """Say how many runs come to it in a gap between evaluations, and what to do."""
        gap, steps = max(self.gaps.values())
        return (
            f"{len(self.gaps)} of {counted(len(self.steps), 'run')} come to it between two "
            f"evaluations more than {MAX_GAP:.0%} of their steps apart ({gap} of {steps}), too far "
            f"to interpolate, and are left out of its numbers; evaluation.every="
            f"{max(1, math.floor(MAX_GAP * steps))}, or evaluation.at, makes more evaluations"
        )


class Measures:
    """The numbers of some runs; each curve is read from the store once.

    Args:
        evaluated: with the evaluations within the training if a column is made of curves.
        refuse_absent: whether a cutoff is refused whose curve no run has.
    """

    def __init__(
        self,
        store: Store,
        runs: Sequence[RunRecord],
        evaluated: EvaluationsByTask,
        *,
        refuse_absent: bool = True,
    ) -> None:
        self._store = store
        self._refuse_absent = refuse_absent
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
        if at is None and (logged := logged_metric(column, self._evaluated)) is not None:
            return self._last_shares(logged)
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
                known: Any = curve[1][-1]
                if end is not None:
                    is_cost = column.total is not None
                    known = np.interp(end, *curve) if is_cost else value_at(*curve, end)
                values[run_id] = float(known)
                continue
            if column.metric is not None and window.kind == "steps_to=":
                curve = smoothed(curve) or (curve[0][:0], curve[1][:0])
            values[run_id] = window.of(curve, None if end is None else math.floor(end))
        return values

    def _last_shares(self, metric: str) -> dict[int, float]:
        """Return the last value of a metric in each run; none if it is no share."""
        curves = self._store.metrics.series(self._ids, metric)
        values = {run_id: Window("last").of(curve) for run_id, curve in curves.items()}
        is_share = all(0 <= value <= 1 for value in values.values() if not math.isnan(value))
        return values if is_share else {}

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
            keys = ("prompts_per_step", "group_size")
            known: dict[int, list[Any]] = {
                r.id: [r.config.get(k) for k in keys] for r in self._runs
            }
            sizes = {
                run_id: math.prod(own)
                for run_id, own in known.items()
                if all(isinstance(size, int) and size > 0 for size in own)
            }
            relative = series(list(sizes), "cost/rollouts")
            return {i: _summed(steps, own * sizes[i]) for i, (steps, own) in relative.items()}
        parts = [series(self._ids, name) for name in _SECONDS]
        found: dict[int, Curve] = {}
        for run_id in set.intersection(*(set(part) for part in parts)):
            steps = parts[0][run_id][0]
            if all(np.array_equal(part[run_id][0], steps) for part in parts):
                found[run_id] = _summed(steps, np.sum([part[run_id][1] for part in parts], axis=0))
        return found

    def _cutoff_curves(self, cutoff: Cutoff, origin: str) -> Mapping[int, Curve]:
        """Return the curves in which a cutoff is looked for; those of metrics are smoothed."""
        column = parse_column(f"total/{cutoff.what}" if cutoff.is_cost else cutoff.what)
        if column is None or column.window or column.at or (column.total and not cutoff.is_cost):
            raise NotFoundError(f"{origin}: expected a metric or a pass@k, got '{cutoff.what}'")
        found = self.curves(column)
        if column.metric is None:
            return found
        if not found and self._refuse_absent:
            known = self._store.metrics.names(self._runs[0].id)
            raise NotFoundError(
                f"{origin}: no run has a metric '{cutoff.what}'; {nearest(cutoff.what, known)}"
            )
        return {i: short for i, curve in found.items() if (short := smoothed(curve)) is not None}

    def arrivals(self, cutoff: Cutoff, origin: str) -> Arrivals:
        """Return where each run comes to a value.

        Args:
            origin: the option or column that has the cutoff, for the message.

        Raises:
            NotFoundError: no run has the curve that the cutoff is a value of.
        """
        assert cutoff.value is not None
        # Training metrics are noisy, so that a single step would decide: they are smoothed.
        found = self._cutoff_curves(cutoff, origin)
        column = None if cutoff.is_cost else parse_column(cutoff.what)
        # Interpolation needs the curve on both sides: a value within a wide gap could have been
        # reached anywhere in it, and the row with fewer evaluations would win or lose by that.
        # A cost only grows, so that it comes from below.
        steps = {run_id: step_at(curve, cutoff.value) for run_id, curve in found.items()}
        gaps: dict[int, tuple[int, int]] = {}
        if column is not None and column.is_evaluated:
            lengths = {run.id: run.steps for run in self._runs}
            for run_id, step in Arrivals(steps).usable.items():
                at = found[run_id][0][~np.isnan(found[run_id][1])]
                after = int(np.searchsorted(at, step))
                gap = 0 if at[after] == step else int(at[after] - at[after - 1])
                if gap > MAX_GAP * lengths[run_id]:
                    gaps[run_id] = gap, lengths[run_id]
        return Arrivals(steps, gaps)

    def compare_at(
        self, at: Cutoff, hidden: Sequence[RunRecord] = ()
    ) -> tuple[Cutoff, Arrivals, str]:
        """Return the cutoff of `--at` with its value, where each run comes to it, and it in words.

        A cost without a value has the least that a finished run of the sweep has spent, whether or
        not the table shows that run: a filter must not change where two arms are compared.

        Args:
            hidden: the finished runs of the sweep that the table does not show.

        Raises:
            NotFoundError: no run has the metric of the cutoff.
            ReportError: no run can be compared at the cutoff.
        """
        found = [values for _, values in self._cutoff_curves(at, "--at").values()]
        seen = np.concatenate([*found, [math.nan]])
        if np.isnan(seen).all():
            raise ReportError(f"--at {at.text}: no run of the table recorded what it takes")
        source = ""
        if at.value is None:
            shown_least = min(float(values[-1]) for values in found)
            others = Measures(self._store, hidden, self._evaluated, refuse_absent=False)
            spent = {
                run_id: float(values[-1])
                for run_id, (_, values) in others._cutoff_curves(at, "--at").items()
            }
            least = min([shown_least, *spent.values()])
            source = ", the least of all of the sweep's finished runs"
            if least < shown_least:
                run = next(run for run in hidden if spent.get(run.id) == least)
                source += (
                    f" (run {run.id} of {run.estimator}, which is not shown; those shown have all "
                    f"spent {_show_cost(shown_least)}: --at {at.what}={_show_cost(shown_least)})"
                )
            at = replace(at, value=least)
        came = self.arrivals(at, "--at")
        if not came.usable:
            known = f"they are from {np.nanmin(seen):.6g} to {np.nanmax(seen):.6g}"
            why = came.describe_gaps() if came.gaps else f"no run of the table comes to it; {known}"
            raise ReportError(f"--at {at.text}: {why}")
        if at.is_cost:
            assert at.value is not None
            shown = _show_cost(at.value)
            return at, came, f"each run as it was where it had spent {shown} {at.what}{source}"
        return at, came, f"{FIRST_COMES} {at.what} first comes to {at.value:g}"


def _show_cost(spent: float) -> str:
    return f"{spent:.4g}" if spent < 1000 else f"{spent:.0f}"


def logged_metric(column: Column, evaluated: EvaluationsByTask) -> str | None:
    """Return the metric that stands for a pass@k of runs that have no evaluation; None without one.

    Trainers log pass@k as a number, without its problems: an import calls it `pass_at_K`.
    """
    is_plain = column.select == Select() and column.window is None and column.at is None
    if column.k is None or not is_plain or evaluated.tasks:
        return None
    return f"{LOGGED_PASS}{column.k}"


def _summed(steps: np.ndarray, values: np.ndarray) -> Curve:
    return np.concatenate([[0], steps]), np.concatenate([[0.0], np.cumsum(values)])


def scores(
    evaluated: EvaluationsByTask,
    column: Column,
    choose: Callable[[TaskEvaluations], Mapping[K, EvaluationRecord]],
) -> dict[K, float]:
    """Score the evaluations that `choose` takes from a column's task."""
    if column.select.is_mean:
        tasks = (evaluated.train if column.select.is_train else evaluated.tasks).values()
        parts = [_score(task, choose(task), column) for task in tasks]
        # A mean over some of the tasks is another quantity.
        shared = [key for key in (parts[0] if parts else ()) if all(key in own for own in parts)]
        return {key: float(np.mean([own[key] for own in parts])) for key in shared}
    task = evaluated.of(column.select.task, train=column.select.is_train)
    return {} if task is None else _score(task, choose(task), column)


def _score(
    task: TaskEvaluations, chosen: Mapping[K, EvaluationRecord], column: Column
) -> dict[K, float]:
    """Score evaluations: the mean over the problems that have a value, NaN where none has.

    pass@k is undefined for a problem with fewer than k samples that could be scored.
    """
    if column.source.startswith("law/"):
        return _fit_laws(task, chosen, column)
    rates = column.select.base
    if rates is not None:
        # Without a base there are no solve rates to choose problems by.
        chosen = {key: record for key, record in chosen.items() if record.run_id in task.base}
    records = list(chosen.values())
    values = np.full(len(records), np.nan)
    sizes = np.array([len(record.n) for record in records])
    for size in np.unique(sizes):
        alike = np.flatnonzero(sizes == size)
        part = [records[int(i)] for i in alike]
        each = by_problem(part, column)
        for i, record in enumerate(part):
            if rates is not None and record.run_id is not None:
                base, (low, high) = task.base[record.run_id], rates
                with np.errstate(invalid="ignore"):
                    rate = base.c / base.n
                # The last class has the problems that the base always solves.
                chosen_by_base = (rate >= low) & (rate < (math.inf if high == 1 else high))
                ids = np.array(base.problem_ids)[chosen_by_base]
                each[i, ~np.isin(record.problem_ids, ids)] = np.nan
            if column.select.above is not None and column.k is not None:
                floor = task.floors(record).get(column.select.above)
                own = math.nan if floor is None else floor.pass_at(column.k, record.problem_ids)
                each[i] -= own
        values[alike] = mean_over_problems(each)
    return dict(zip(chosen, values.tolist(), strict=True))


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
    task = evaluated.of(column.select.task, train=column.select.is_train)
    if task is None:
        return {}
    # pass@k needs k samples. Leaving out the evaluations with fewer would leave a line from the
    # first to the last one, which is no curve: such runs have none.
    long = {
        run_id: records
        for run_id, records in task.along.items()
        if column.k is None
        or all(record.settings.get("n", column.k) >= column.k for record in records)
    }
    chosen = {(run_id, r.step): r for run_id, records in long.items() for r in records}
    points: dict[int, list[tuple[int, float]]] = {}
    for (run_id, step), value in _score(task, chosen, column).items():
        points.setdefault(run_id, []).append((step, value))
    return {
        run_id: (np.array([s for s, _ in listed]), np.array([v for _, v in listed]))
        for run_id, listed in points.items()
    }


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
    elif column.select.m is not None:
        values = np.stack([record.rarefied(column.select.m) for record in records])
        if column.source == RAREFIED_SHARE:
            known = np.array([[record.right_counts is not None] for record in records])
            values = np.where(known, ~np.isnan(values), np.nan)
    else:
        values = np.stack([getattr(record, _BY_PROBLEM[column.source]) for record in records])
    if column.select.level is None:
        return values
    levels = np.stack([record.levels for record in records])
    return np.where(levels == column.select.level, values, np.nan)


def over_problems(record: EvaluationRecord, column: Column) -> float:
    """Return half the 95 % interval of a column over problems like those of an evaluation."""
    interval = bootstrap_over_problems(by_problem([record], column)[0])
    return (interval.high - interval.low) / 2
