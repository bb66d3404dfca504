"""Data of figures: finished runs by configuration, with their curves and evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from advsweep.errors import NotFoundError, ReportError, nearest
from advsweep.names import ANSWER_ENTROPY
from advsweep.report.data.bases import base_evaluations, group_bases
from advsweep.report.data.columns import logged_metric, parse_column
from advsweep.report.data.evaluation_choice import select_evaluations
from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations
from advsweep.report.data.filters import Filter, describe_filters
from advsweep.report.data.groups import Group, group_runs
from advsweep.report.data.keys import value_of
from advsweep.report.data.labels import label_rows
from advsweep.report.data.measure import measure
from advsweep.report.data.run_data import RunData
from advsweep.report.data.runs import collapsed_runs, metric_names
from advsweep.report.data.selection import select_runs
from advsweep.report.data.sources import Total
from advsweep.report.data.windows import Curve
from advsweep.report.figures.style import (
    MOST_STYLES,
    UNTRAINED,
    RowStyle,
    choose_styles,
)
from advsweep.report.tables.build import build_report
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import Report, count_states
from advsweep.report.tables.untrained_rows import BASE
from advsweep.store import EvaluationRecord, RunRecord, Status, Store
from advsweep.store.seeds import seed_order
from advsweep.store.tuning_records import TuningRecord
from advsweep.synonyms import COLUMNS

if TYPE_CHECKING:
    from jaxtyping import Float

    from advsweep.tasks.base import Floor

    # The mean step of each stretch; the number of steps in a stretch; and by run the mean of the
    # finite values in each stretch, NaN where there are none.
    ThinCurves = tuple[
        Float[np.ndarray, " points"], int, Mapping[int, Float[np.ndarray, " points"]]
    ]

T = TypeVar("T")


@dataclass(frozen=True)
class Replicates:
    """The finished runs of one configuration, sorted by seed, and their style.

    Attributes:
        label: names the row, and says how many of its runs collapsed.
    """

    label: str
    group: Group
    runs: tuple[RunRecord, ...]
    style: RowStyle


@dataclass(frozen=True)
class ArmRows:
    """The rows that differ in only one key, such as the learning rate, by its ascending values."""

    label: str
    style: RowStyle
    rows: Mapping[float, Replicates]


class EvaluatedRow(NamedTuple):
    """The evaluations of a row's runs by seed, or of untrained models: one, or a base per seed."""

    label: str
    style: RowStyle
    evaluations: Sequence[EvaluationRecord]
    trained: bool = True


@dataclass(frozen=True)
class NamedRuns:
    """Runs to draw, in any state.

    Attributes:
        name: of the runs in titles and messages, such as their sweep's.
        sweep: the sweep that has the runs; None for others, and for those of several.
    """

    runs: Sequence[RunRecord]
    name: str
    sweep: str | None = None


def _last_attempts(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs in order, of several attempts at one the last."""
    latest = {run.identity: run for run in sorted(runs, key=lambda run: run.attempt)}
    return [run for run in runs if latest[run.identity] is run]


class FigureData:
    """Runs of a store, in the form that figures need.

    Attributes:
        name: a name for the runs, such as their sweep's.
        task: the task of the evaluations; None for the runs' own.
        sweep: the sweep that has the runs; None without one.
        where: the filters that the runs fulfil.
        runs: the finished runs, or all that have trained; of several attempts at a run the last.
        rows: the replicates, in the order of the sweep's plan.
        remarks: sentences on the selection of the runs and the labels of the rows.
    """

    def __init__(
        self,
        store: Store,
        selected: NamedRuns,
        where: Sequence[Filter] = (),
        task: str | None = None,
        *,
        finished_only: bool = True,
    ) -> None:
        """
        Args:
            where: filters that runs must fulfil; without a filter on `status`, runs must be done.
            task: the task of the evaluations; by default the runs' own.
            finished_only: False: without a filter on `status`, runs must have trained a step.

        Raises:
            NotFoundError: no run has the key of a filter.
            ReportError: no run is left.
        """
        self._store = store
        self.task = task
        self.where = where
        self.sweep = selected.sweep
        self.name = selected.name
        selection = select_runs(store, selected.runs, where, finished_only=finished_only)
        found = selection.runs
        if not finished_only:
            found = [run for run in found if run.step or run.status is Status.DONE]
        self.runs = _last_attempts(found)
        if not self.runs:
            wanted = f" with {describe_filters(where)}" if where else " to draw yet"
            states = f" ({count_states(selection.left_out)})" if selection.left_out else ""
            raise ReportError(
                f"{self.name} has no finished run{wanted}{states}; `advsweep ls` shows its runs"
            )
        groups = group_runs(self.runs)
        self._estimators = list(dict.fromkeys(run.estimator for run in selected.runs))
        # Of all runs, so that a row looks the same whatever others are drawn.
        configs = {run.config_hash: run.estimator for run in selected.runs}
        styles = choose_styles(list(configs.values()), self._estimators)
        styled = dict(zip(configs, styles, strict=True))
        labels, remarks = label_rows([group for group, _ in groups])
        self.remarks = (*selection.remarks, *remarks)
        collapsed = collapsed_runs(store, self.runs)
        self.rows = []
        for label, (group, members) in zip(labels, groups, strict=True):
            count = sum(run.id in collapsed for run in members)
            if count:
                label += f" ({count} of {len(members)} collapsed)"
            by_seed = tuple(sorted(members, key=lambda run: seed_order(run.seed_key)))
            self.rows.append(Replicates(label, group, by_seed, styled[by_seed[0].config_hash]))

    def distinct_rows(self) -> list[Replicates]:
        """Return the rows, if each can have a style of its own.

        Raises:
            ReportError: there are more rows than styles.
        """
        if len(self.rows) > MOST_STYLES:
            raise ReportError(
                f"the {len(self.rows)} rows of {self.name} are more than can be told apart in one "
                f"figure ({MOST_STYLES}); choose some with --where"
            )
        return self.rows

    def arms(self, key: str) -> list[ArmRows]:
        """Return the rows that have a number as the value of a key, by their other keys.

        Raises:
            ReportError: no row has one, or there are more arms than styles.
        """
        found: dict[str, tuple[Group, dict[float, Replicates]]] = {}
        for row in self.rows:
            value = value_of(row.runs[0], key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                group = {name: own for name, own in row.group.items() if name != key}
                found.setdefault(json.dumps(group), (group, {}))[1][value] = row
        if not 0 < len(found) <= MOST_STYLES:
            raise ReportError(
                f"expected 1 to {MOST_STYLES} arms with a number as '{key}', got {len(found)} in "
                f"{self.name}; --x names another key, --where chooses arms"
            )
        labels, _ = label_rows([group for group, _ in found.values()])
        runs = [next(iter(rows.values())).runs[0] for _, rows in found.values()]
        styles = choose_styles([run.estimator for run in runs], [*self._estimators, ""])
        return [
            ArmRows(label, style, dict(sorted(rows.items())))
            for label, style, (_, rows) in zip(labels, styles, found.values(), strict=True)
        ]

    @property
    def tuning(self) -> TuningRecord | None:
        """The tuning of the sweep; None without one."""
        return None if self.sweep is None else self._store.sweeps.tuning(self.sweep)

    def point_style(self, row: Replicates) -> tuple[str, RowStyle]:
        """Return the label and the style of the points of a row's runs.

        With more rows than styles, all rows of an estimator share both.
        """
        if len(self.rows) <= MOST_STYLES:
            return row.label, row.style
        [style] = choose_styles([row.runs[0].estimator], [*self._estimators, ""])
        return row.runs[0].estimator, style

    @cached_property
    def metric_names(self) -> list[str]:
        """The metrics of the runs, sorted."""
        return metric_names(self._store, self.runs)

    def on_task(self, name: str) -> str:
        """Return the name of an evaluation's column, for the chosen task if there is one."""
        return name if self.task is None else f"{name}[{self.task}]"

    def report(self, columns: Sequence[str] | None, baseline: str | None) -> Report:
        """Build the report of the runs, whose differences are those of `advsweep report`.

        Args:
            columns, baseline: as `ReportRequest` has them.
        """
        return build_report(
            self._store,
            ReportRequest(
                self.sweep,
                [run.id for run in self.runs],
                columns=columns,
                where=self.where,
                baseline=baseline,
                described=columns is not None,
            ),
        )

    def series(self, metric: str) -> Mapping[int, Curve]:
        """Return the curve of a metric, or of a score of evaluations, by run id.

        Raises:
            NotFoundError: no run has it; the message suggests the nearest.
            ReportError: the evaluations have different settings.
        """
        column = parse_column(metric)
        ids = [run.id for run in self.runs]
        if column is not None and column.of_one_evaluation is not None:
            logged = logged_metric(column, self._along)
            if logged is not None:
                return self._known("metric", metric, self._store.metrics.series(ids, logged))
            along = RunData(self._store, self.runs, self._along)
            return self._known("metric", metric, along.curves(column.source))
        if column is not None and isinstance(column.source, Total):
            spent = RunData(self._store, self.runs, self._evaluated).curves(column.source)
            return self._known("metric", metric, spent)
        return self._known("metric", metric, self._store.metrics.series(ids, metric))

    def thinned(self, metric: str, points: int) -> ThinCurves:
        """Return the curves of a metric with at most `points` points, as `thin` does.

        Raises:
            NotFoundError: no run has it; the message suggests the nearest.
            ReportError: the evaluations have different settings.
        """
        column = parse_column(metric)
        if column is None or column.of_one_evaluation is None:
            # Replicates record at the same steps, as far as they come.
            furthest = [max(row.runs, key=lambda run: run.step).id for row in self.rows]
            steps = self._store.metrics.steps(furthest, metric)
            if len(steps) > points:
                per = -(-len(steps) // points)
                parts = [steps[i : i + per] for i in range(0, len(steps), per)]
                ends = [*(part[0] - 1 for part in parts[1:]), steps[-1]]
                stretches = [(part[0], end) for part, end in zip(parts, ends, strict=True)]
                ids = [run.id for run in self.runs]
                means = self._store.metrics.stretch_means(ids, metric, stretches)
                return np.array([np.mean(part) for part in parts]), per, means
        return thin(self.series(metric), points)

    def values(self, name: str) -> Mapping[int, float]:
        """Return the finite values of a table's column, by run id.

        Raises:
            NotFoundError: no run has it; the message suggests the nearest.
            ReportError: the evaluations have different settings.
        """
        found: dict[int, float] = {}
        if (column := parse_column(name)) is not None:
            evaluated = self._along if column.needs_training_curve else self._evaluated
            measured = measure(RunData(self._store, self.runs, evaluated), [column])[name]
            found = {run: value for run, value in measured.items() if np.isfinite(value)}
        return self._known("number", name, found)

    def _known(self, what: str, name: str, found: Mapping[int, T]) -> Mapping[int, T]:
        if not found:
            of_evaluations = ["pass@1", ANSWER_ENTROPY] if self._evaluated.tasks else []
            hint = nearest(name, [*self.metric_names, *of_evaluations], COLUMNS)
            if what == "metric":
                # A curve has all steps, and no window of them.
                hint = hint.replace("@end", "")
            raise NotFoundError(f"no run of {self.name} has a {what} '{name}'; {hint}")
        return found

    @cached_property
    def _evaluated(self) -> EvaluationsByTask:
        return select_evaluations(self._store, self.runs)

    def samples(self) -> Mapping[int, Mapping[int, int]]:
        """Return the samples per problem of each run's evaluations, by run id and step."""
        found = self._along.of(self.task)
        return {
            run: {record.step: int(record.settings["n"]) for record in records}
            for run, records in ({} if found is None else found.along).items()
        }

    @cached_property
    def _along(self) -> EvaluationsByTask:
        return select_evaluations(self._store, self.runs, along=True)

    @property
    def evaluations(self) -> TaskEvaluations:
        """The evaluations on the chosen task.

        Raises:
            NotFoundError: no run was evaluated on it.
            ReportError: no run was evaluated, or the evaluations have different settings.
        """
        found = self._evaluated.of(self.task)
        if found is None and self._evaluated.main is not None:
            raise NotFoundError(
                f"no run of {self.name} was evaluated on '{self.task}'; "
                f"{nearest(str(self.task), self._evaluated.tasks)}"
            )
        if found is None:
            raise ReportError(
                f"no run of {self.name} was evaluated after its training; `advsweep eval` does it"
            )
        return found

    def evaluated_rows(self) -> list[EvaluatedRow]:
        """Return the evaluations of the rows after training, and of untrained models.

        Raises:
            ReportError: there are more rows than styles, no run was evaluated, or the evaluations
                have different settings.
        """
        rows, found = self.distinct_rows(), self.evaluations.final
        evaluated = [
            EvaluatedRow(row.label, row.style, [found[r.id] for r in row.runs if r.id in found])
            for row in rows
        ]
        return [*(row for row in evaluated if row.evaluations), *self.untrained]

    @cached_property
    def untrained(self) -> list[EvaluatedRow]:
        """The base models of the runs, and models that were evaluated like the runs."""
        families = group_bases(self.runs, self._evaluated)
        known = base_evaluations(self.evaluations, families)
        named: list[tuple[str, list[EvaluationRecord]]] = []
        for family in families:
            label = BASE if len(families) == 1 else f"{BASE} {family.short_name}"
            records = [known[base] for base in family.members if base in known]
            named += [(label, records)] if records else []
        named += [(str(record.settings["model"]), [record]) for record in self.evaluations.models]
        return [
            EvaluatedRow(label, UNTRAINED[place % len(UNTRAINED)], records, trained=False)
            for place, (label, records) in enumerate(named)
        ]

    @cached_property
    def floors(self) -> dict[str, tuple[RowStyle, list[tuple[EvaluationRecord, Floor]]]]:
        """The style of each floor of the problems, and its evaluations with the floor of each."""
        known = list(self.evaluations.common_floors().values())
        return {
            name: (
                UNTRAINED[place % len(UNTRAINED)],
                [(record, floors[name]) for record, floors in known],
            )
            for place, name in enumerate(known[0][1] if known else (), len(self.untrained))
        }


def thin(series: Mapping[int, Curve], points: int) -> ThinCurves:
    """Average neighbouring steps, so that curves have at most `points` points."""
    curves = {run_id: pd.Series(values, index=steps) for run_id, (steps, values) in series.items()}
    frame = pd.DataFrame(curves).sort_index()
    per = -(-len(frame) // points)
    stretches = np.arange(len(frame)) // per
    grid = frame.index.to_series().groupby(stretches).mean().to_numpy()
    means = frame.where(np.isfinite(frame)).groupby(stretches).mean()
    return grid, per, {run_id: means[run_id].to_numpy() for run_id in curves}
