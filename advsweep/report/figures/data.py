"""What figures are drawn of: finished runs by configuration, their curves and evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from advsweep.errors import NotFoundError, ReportError, nearest
from advsweep.report.data.columns import ANSWER_ENTROPY, parse_column
from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations, select_evaluations
from advsweep.report.data.filters import Filter, describe_filters
from advsweep.report.data.grouping import Group, group_runs
from advsweep.report.data.measure import curves, measure
from advsweep.report.data.selection import select_runs
from advsweep.report.figures.style import MOST_STYLES, UNTRAINED, RowStyle, choose_styles, label_of
from advsweep.report.tables.types import count_states
from advsweep.statistics.intervals import Band, student_t_band
from advsweep.store import EvaluationRecord, RunRecord, Store

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Series = tuple[Int[np.ndarray, " steps"], Float[np.ndarray, " steps"]]


@dataclass(frozen=True)
class Replicates:
    """The finished runs of one configuration, by seed, and how they are drawn."""

    label: str
    group: Group
    runs: tuple[RunRecord, ...]
    style: RowStyle


@dataclass(frozen=True)
class UntrainedModel:
    """An evaluation of a base model, or of a model without a run, and how it is drawn."""

    label: str
    evaluation: EvaluationRecord
    style: RowStyle


class FigureData:
    """Some runs of a store, read as figures need them.

    Attributes:
        name: what to call the runs, such as their sweep's name.
        rows: the replicates, in the order of the sweep's plan.
        remarks: what to know of how the runs were chosen.
    """

    def __init__(
        self,
        store: Store,
        runs: Sequence[RunRecord],
        name: str,
        where: Sequence[Filter] = (),
        task: str | None = None,
    ) -> None:
        """
        Args:
            runs: in whatever state.
            where: filters that runs must fulfil; without one on `status` they must be done.
                Of several attempts the last is drawn.
            task: whose evaluations are drawn; by default those of the runs' own.

        Raises:
            NotFoundError: no run has the key of a filter.
            ReportError: no run is left.
        """
        self._store = store
        self._task = task
        self.name = name
        selection = select_runs(store, runs, where, mixed=False)
        latest = {run.identity: run for run in sorted(selection.runs, key=lambda run: run.attempt)}
        self.runs = [run for run in selection.runs if latest[run.identity] is run]
        self.remarks = selection.remarks
        if not self.runs:
            wanted = f" with {describe_filters(where)}" if where else " to draw yet"
            states = f" ({count_states(selection.left_out)})" if selection.left_out else ""
            raise ReportError(
                f"{name} has no finished run{wanted}{states}; `advsweep ls` shows its runs"
            )
        groups = group_runs(self.runs)
        self._estimators = list(dict.fromkeys(run.estimator for run in runs))
        styles = choose_styles([group for group, _ in groups], self._estimators)
        self.rows = [
            Replicates(label_of(group), group, tuple(sorted(members, key=_seed)), style)
            for (group, members), style in zip(groups, styles, strict=True)
        ]
        self._series: dict[str, Mapping[int, Series]] = {}

    def distinct_rows(self) -> list[Replicates]:
        """The rows, if each can have a style of its own.

        Raises:
            ReportError: there are too many.
        """
        if len(self.rows) > MOST_STYLES:
            raise ReportError(
                f"the {len(self.rows)} rows of {self.name} are more than can be told apart in one "
                f"figure ({MOST_STYLES}); choose some with --where"
            )
        return self.rows

    def point_style(self, row: Replicates) -> tuple[str, RowStyle]:
        """What the points of a row's runs are called and style like.

        Of more rows than can be told apart it is their estimator's.
        """
        if len(self.rows) <= MOST_STYLES:
            return row.label, row.style
        [style] = choose_styles([{"estimator": row.runs[0].estimator}], [*self._estimators, ""])
        return row.runs[0].estimator, style

    @cached_property
    def metric_names(self) -> set[str]:
        """The metrics that a run of each configuration recorded."""
        return {name for row in self.rows for name in self._store.metrics.names(row.runs[0].id)}

    def on_task(self, name: str) -> str:
        """The name of a column of evaluations, on the task if one was asked for."""
        return name if self._task is None else f"{name}[{self._task}]"

    def series(self, metric: str) -> Mapping[int, Series]:
        """The curve of a metric, or of a number of evaluations, for each run that has it.

        Raises:
            NotFoundError: no run has it; the message offers the nearest.
            ReportError: it is of evaluations, which were not made alike.
        """
        if metric not in self._series:
            column = parse_column(metric)
            self._series[metric] = (
                curves(self._along, column)
                if column is not None and column.is_evaluated
                else self._store.metrics.series([run.id for run in self.runs], metric)
            )
        if not self._series[metric]:
            raise NotFoundError(self._unknown("metric", metric))
        return self._series[metric]

    def values(self, name: str) -> Mapping[int, float]:
        """A number for each run that has it, named as a column of a table.

        Raises:
            NotFoundError: no run has it; the message offers the nearest.
            ReportError: it is of evaluations, which were not made alike.
        """
        column = parse_column(name)
        if column is None:
            raise NotFoundError(self._unknown("number", name))
        measured = measure(self._store, self.runs, self._evaluated, [column])[name]
        found = {run: value for run, value in measured.items() if np.isfinite(value)}
        if not found:
            raise NotFoundError(self._unknown("number", name))
        return found

    def _unknown(self, what: str, name: str) -> str:
        hint = nearest(name, [*self.metric_names, "pass@1", ANSWER_ENTROPY])
        return f"no run of {self.name} has a {what} '{name}'; {hint}"

    @cached_property
    def _evaluated(self) -> EvaluationsByTask:
        return select_evaluations(self._store, self.runs)

    @cached_property
    def _along(self) -> EvaluationsByTask:
        return select_evaluations(self._store, self.runs, along=True)

    @property
    def _evaluations(self) -> TaskEvaluations:
        """The evaluations on the task.

        Raises:
            NotFoundError: no run was evaluated on it.
            ReportError: no run was evaluated on any, or not alike.
        """
        found = self._evaluated.of(self._task)
        if found is None and self._evaluated.main is not None:
            raise NotFoundError(
                f"no run of {self.name} was evaluated on '{self._task}'; "
                f"{nearest(str(self._task), self._evaluated.tasks)}"
            )
        if found is None:
            raise ReportError(
                f"no run of {self.name} was evaluated after its training; `advsweep eval` does it"
            )
        return found

    def final(self, row: Replicates) -> list[EvaluationRecord]:
        """The evaluations after training of a row's runs, in the order of their seeds.

        Raises:
            ReportError: no run of any row was evaluated, or not alike.
        """
        found = self._evaluations.final
        return [found[run.id] for run in row.runs if run.id in found]

    @cached_property
    def untrained(self) -> list[UntrainedModel]:
        """The base models that the runs started from, and models evaluated like the runs."""
        base = {record.subject: record for record in self._evaluations.base.values()}
        named = [
            ("base" if len(base) == 1 else f"base {subject.removeprefix('base:')[:8]}", record)
            for subject, record in base.items()
        ]
        named += [(str(record.settings["model"]), record) for record in self._evaluations.models]
        return [
            UntrainedModel(label, record, UNTRAINED[place % len(UNTRAINED)])
            for place, (label, record) in enumerate(named)
        ]


def _seed(run: RunRecord) -> int:
    return run.seed


@dataclass(frozen=True)
class Curve:
    """The mean of some runs' curves, step by step, and its interval."""

    steps: Int[np.ndarray, " steps"]
    band: Band


def mean_curve(series: Sequence[Series], smooth: int = 1) -> Curve:
    """The mean over runs at each step that any of them has.

    Args:
        smooth: each run's value at a step is its mean over so many steps up to there; over
            fewer at the start.
    """
    steps = np.unique(np.concatenate([own for own, _ in series]))
    table = np.full((len(series), len(steps)), np.nan)
    for row, (own, values) in zip(table, series, strict=True):
        row[np.searchsorted(steps, own)] = running_mean(values, smooth)
    return Curve(steps, student_t_band(table))


def running_mean(values: Float[np.ndarray, " steps"], window: int) -> Float[np.ndarray, " steps"]:
    """The mean over the last `window` values at each; those that are not finite are left out."""
    if window == 1:
        return values
    known = np.isfinite(values)
    sums = np.cumsum(np.where(known, values, 0.0))
    counts = np.cumsum(known)
    sums[window:], counts[window:] = (
        sums[window:] - sums[:-window],
        counts[window:] - counts[:-window],
    )
    with np.errstate(invalid="ignore"):
        means: Float[np.ndarray, " steps"] = sums / np.where(counts > 0, counts, np.nan)
    return means
