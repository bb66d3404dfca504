"""A report: rows of replicates, columns of metrics, every number with its interval and n."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advsweep.errors import NotFoundError, ReportError, nearest
from advsweep.report.columns import ANSWER_ENTROPY, Column, parse_column, standard_columns
from advsweep.report.groups import Group, common_group, group_runs, key_order
from advsweep.report.measure import Evaluated, choose_evaluations, measure, score
from advsweep.report.provenance import Provenance, describe_provenance
from advsweep.statistics import student_t_interval
from advsweep.store import EvaluationRecord, RunRecord, Status, Store

BASE = "base"
_SHORT = 8  # characters of a hash


@dataclass(frozen=True)
class Cell:
    """One column of one row.

    Attributes:
        low, high: ends of the 95 % interval of the mean; NaN for one value.
        n: how many values there are; NaN does not count.
        values: one for each seed of the row, NaN where it has none; of a base model, its one.
    """

    mean: float
    low: float
    high: float
    n: int
    values: tuple[float, ...]

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Row:
    """Replicates of one configuration, a base model, or a model without a run.

    Attributes:
        group: what names the row: config keys and their values.
        n: how many runs (of a base model's row: base models) stand behind it.
        seeds: of the runs, rising; empty for a model that none of them trained.
        cells: by column name.
        pruned: how many more replicates were stopped early; the cells are without them.
    """

    group: Group
    n: int
    seeds: tuple[int, ...]
    cells: Mapping[str, Cell]
    pruned: int = 0

    @property
    def is_base(self) -> bool:
        return not self.seeds


@dataclass(frozen=True)
class Report:
    """A table, before it is written in some format.

    Attributes:
        rows: base models and models without a run first, then the rows in the order of the
            sweep's plan.
        left_out: how many runs are not in the table, by their state.
        pruned: how many of these were stopped early, by the name of the rule.
        unscorable: share of the evaluations' samples that the verifier could not judge.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    left_out: Mapping[Status, int]
    pruned: Mapping[str, int]
    unscorable: float
    provenance: Provenance

    @property
    def keys(self) -> list[str]:
        """Every config key that names a row, in their fixed order."""
        return sorted({key for row in self.rows for key in row.group}, key=key_order)


def build_report(
    store: Store,
    sweep: str | None,
    run_ids: Sequence[int] | None = None,
    *,
    columns: Sequence[str] | None = None,
) -> Report:
    """Compares the finished runs of a sweep, of all sweeps, or some runs.

    Args:
        sweep: a sweep's name; None for every run of the store.
        run_ids: only these runs.
        columns: names as `report.columns` has them; by default collapse, pass@k for the k
            that the runs' evaluations ask for, entropies and cost.

    Raises:
        NotFoundError: there is no such sweep, run or metric; the message offers the nearest.
        ReportError: no run is finished, or the runs were not evaluated alike.
    """
    runs = _latest_attempts(store.runs(sweep=sweep, ids=run_ids, newest_first=False))
    done = [run for run in runs if run.status is Status.DONE]
    states = Counter(run.status for run in runs)
    left_out: dict[Status, int] = {
        s: states[s] for s in Status if s is not Status.DONE and states[s]
    }
    if not done:
        raise ReportError(_nothing_finished(store, sweep, left_out))
    evaluated = choose_evaluations(store, done)
    chosen = [_column(name) for name in columns or _standard(evaluated)]
    values = measure(store, done, evaluated, chosen)
    if columns is not None:
        _refuse_unknown(store, done, chosen, values)
    groups = group_runs(done)
    pruned = [run for run in runs if run.status is Status.PRUNED]
    by_config = Counter(run.config_hash for run in pruned)
    rows = [
        *_base_rows(groups, evaluated.base, chosen),
        *_model_rows(evaluated.models, chosen),
        *(_row(group, m, values, by_config[m[0].config_hash]) for group, m in groups),
    ]
    if columns is None:
        chosen = [c for c in chosen if any(row.cells[c.name].n for row in rows)]
    return Report(
        columns=tuple(chosen),
        rows=tuple(rows),
        left_out=left_out,
        pruned=Counter(run.stopping["name"] for run in pruned if run.stopping),
        unscorable=evaluated.unscorable,
        provenance=describe_provenance(store, sweep, done, evaluated.protocol),
    )


def _latest_attempts(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Of runs that were made again only the newest that is done, or else the newest."""
    latest: dict[str, RunRecord] = {}
    for run in runs:
        known = latest.get(run.identity)
        if known is None or _precedence(run) > _precedence(known):
            latest[run.identity] = run
    return list(latest.values())


def _precedence(run: RunRecord) -> tuple[bool, int]:
    return run.status is Status.DONE, run.attempt


def _nothing_finished(store: Store, sweep: str | None, left_out: Mapping[Status, int]) -> str:
    what = f"sweep '{sweep}'" if sweep is not None else store.name
    if not left_out:
        return f"{what} has no runs to report; start some with `advsweep run` or `advsweep sweep`"
    states = count_states(left_out)
    return f"{what} has no finished run to report yet ({states}); `advsweep ls` shows them"


def count_states(counts: Mapping[Status, int]) -> str:
    """How many runs are in which state, in words."""
    return ", ".join(f"{n} {status.value}" for status, n in counts.items())


def _standard(evaluated: Evaluated) -> list[str]:
    asked = {k for e in evaluated.final.values() for k in e.settings.get("k", ())}
    return standard_columns(sorted(asked))


def _column(name: str) -> Column:
    column = parse_column(name)
    if column is None:
        raise NotFoundError(
            f"no column is called '{name}'; expected a metric, METRIC@end, METRIC@first100, "
            f"pass@8 or {ANSWER_ENTROPY}"
        )
    return column


def _refuse_unknown(
    store: Store,
    runs: Sequence[RunRecord],
    columns: Sequence[Column],
    values: Mapping[str, Mapping[int, float]],
) -> None:
    for column in columns:
        if column.metric is not None and not values[column.name]:
            recorded = store.metric_names(runs[0].id)
            hint = nearest(column.metric, [*recorded, ANSWER_ENTROPY, "pass@1"])
            raise NotFoundError(f"no run of the table has a metric '{column.metric}'; {hint}")


def _row(
    group: Group,
    members: Sequence[RunRecord],
    values: Mapping[str, Mapping[int, float]],
    pruned: int,
) -> Row:
    members = sorted(members, key=lambda run: run.seed)
    cells = {
        name: _cell(by_run.get(run.id, math.nan) for run in members)
        for name, by_run in values.items()
    }
    return Row(group, len(members), tuple(run.seed for run in members), cells, pruned)


def _cell(values: Iterable[float]) -> Cell:
    listed = tuple(values)
    # Infinite values have an infinite mean and no interval.
    with np.errstate(invalid="ignore"):
        interval = student_t_interval([value for value in listed if not math.isnan(value)])
    return Cell(*interval, values=listed)


def _base_rows(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
    base: Mapping[int, EvaluationRecord],
    columns: Sequence[Column],
) -> list[Row]:
    """One row for each base model that the runs started from."""
    evaluations: dict[str, EvaluationRecord] = {}
    users: dict[str, list[Group]] = {}
    for group, members in groups:
        for run in members:
            if run.id in base:
                subject = base[run.id].subject
                evaluations[subject] = base[run.id]
                users.setdefault(subject, []).append(group)
    return _evaluation_rows(list(_base_groups(users).values()), list(evaluations.values()), columns)


def _model_rows(evaluations: Sequence[EvaluationRecord], columns: Sequence[Column]) -> list[Row]:
    """One row for each model that was evaluated without a run, as the table's runs were."""
    groups: list[Group] = [{"estimator": f"model {e.settings['model']}"} for e in evaluations]
    return _evaluation_rows(groups, evaluations, columns)


def _evaluation_rows(
    groups: Sequence[Group], evaluations: Sequence[EvaluationRecord], columns: Sequence[Column]
) -> list[Row]:
    scored = score(evaluations, columns)
    return [
        Row(
            group=group,
            n=1,
            seeds=(),
            cells={
                c.name: _cell(scored[c.name][i : i + 1] if c.name in scored else [])
                for c in columns
            },
        )
        for i, group in enumerate(groups)
    ]


def _base_groups(users: Mapping[str, Sequence[Group]]) -> dict[str, Group]:
    """A name for each base model: where there are several, by what tells their runs apart."""
    if len(users) == 1:
        return {subject: {"estimator": BASE} for subject in users}
    common = {subject: common_group(groups) for subject, groups in users.items()}
    named: dict[str, Group] = {}
    for subject, own in common.items():
        telling = {
            key: value
            for key, value in own.items()
            if any(other.get(key) != value for other in common.values())
        }
        named[subject] = {"estimator": BASE, **telling}
    alike = list(named.values())
    return {
        subject: {**group, "base": subject.removeprefix("base:")[:_SHORT]}
        if alike.count(group) > 1
        else group
        for subject, group in named.items()
    }
