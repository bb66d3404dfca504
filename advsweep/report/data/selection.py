"""Selects the runs and the columns of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from advsweep.errors import NotFoundError, ReportError, nearest
from advsweep.plugins import install_command
from advsweep.report.data.analyses import analysis_columns, analysis_curves
from advsweep.report.data.columns import (
    ANSWER_ENTROPY,
    COSTS,
    Column,
    needs_curves,
    parse_column,
    standard_columns,
)
from advsweep.report.data.evaluations import EvaluationsByTask, select_evaluations
from advsweep.report.data.measure import measure
from advsweep.report.data.runs import (
    Filter,
    collapsed_runs,
    describe_filters,
    is_key,
    known_keys,
    value_of,
)
from advsweep.store import RunRecord, Status, Store

_STATUS = "status"


@dataclass(frozen=True)
class Selection:
    """The selected runs.

    Attributes:
        left_out: how many other runs match all filters but that of the status, by status.
        pruned: those of them that were stopped early.
        remarks: sentences on how the runs were selected.
    """

    runs: list[RunRecord]
    left_out: Mapping[Status, int]
    pruned: Sequence[RunRecord]
    remarks: tuple[str, ...]


def select_runs(
    store: Store,
    runs: Sequence[RunRecord],
    where: Sequence[Filter],
    *,
    mixed: bool,
    finished_only: bool = True,
) -> Selection:
    """Select the runs that match some filters.

    Args:
        mixed: accept evaluations that were not made alike.
        finished_only: without a filter on the status, select runs that are done.

    Raises:
        NotFoundError: a filter's key is neither a config key nor a metric of a run.
        ReportError: a filter is on evaluations that were not made alike.
    """
    of_status = [f for f in where if f.key == _STATUS]
    of_config = [f for f in where if f.key != _STATUS and is_key(runs, f.key)]
    of_results = [f for f in where if f not in (*of_status, *of_config)]
    columns = []
    for filter in of_results:
        column = parse_column(filter.key)
        if column is None or "*" in filter.key:
            raise NotFoundError(
                f"--where: no run has a key '{filter.key}', and no column is called so; "
                f"{nearest(filter.key, known_keys(runs))}"
            )
        columns.append(column)

    def is_in_state(run: RunRecord) -> bool:
        if of_status:
            return all(f.holds(run.status.value) for f in of_status)
        return run.status is Status.DONE or not finished_only

    fitting = [run for run in runs if all(f.holds(value_of(run, f.key)) for f in of_config)]
    chosen = [run for run in fitting if is_in_state(run)]
    others = [run for run in fitting if not is_in_state(run)]
    remarks = [f"chosen by {describe_filters(where)}"] if where else []
    if columns and chosen:
        along = needs_curves(column.name for column in columns)
        evaluated = select_evaluations(store, chosen, along=along, mixed=mixed)
        values = measure(store, chosen, evaluated, columns)
        for filter, column in zip(of_results, columns, strict=True):
            if values[column.name].isna().all():
                known = {*known_keys(runs), *_known_metrics(store, runs)}
                raise NotFoundError(
                    f"--where: no run has a key or a metric '{filter.key}'; "
                    f"{nearest(filter.key, known)}"
                )
            chosen = [run for run in chosen if filter.holds(float(values[column.name][run.id]))]
        remarks.append(
            "runs were chosen by their results, so that means are those of the runs that did so"
        )
    if collapsed := collapsed_runs(store, chosen):
        total = Counter(run.estimator for run in chosen)
        of = Counter(run.estimator for run in chosen if run.id in collapsed)
        listed = ", ".join(f"{n} of {total[name]} runs of {name}" for name, n in sorted(of.items()))
        remarks.append(f"the policy collapsed in training (collapse/detected=1): {listed}")
    states = Counter(run.status for run in others)
    left_out: dict[Status, int] = {
        s: states[s] for s in Status if states[s] and s is not Status.DONE
    }
    pruned = [run for run in others if run.status is Status.PRUNED]
    return Selection(chosen, left_out, pruned, tuple(remarks))


def _known_metrics(store: Store, runs: Sequence[RunRecord]) -> list[str]:
    costs = [f"total/{cost}" for cost in COSTS]
    return [*store.metrics.names(runs[0].id), ANSWER_ENTROPY, "pass@1", *costs]


def split_columns(
    runs: Sequence[RunRecord], names: Sequence[str] | None
) -> tuple[list[str], list[str] | None]:
    """Split names into config keys, whose values become columns, and metrics; None for none."""
    if names is None:
        return [], None
    keys = [name for name in names if is_key(runs, name)]
    metrics = [name for name in names if name not in keys]
    return keys, metrics or None


def select_columns(
    names: Sequence[str] | None, evaluated: EvaluationsByTask, *, pivoted: bool = False
) -> list[Column]:
    """Parse the names of columns; without any, return the default columns of a table.

    Raises:
        NotFoundError: a name cannot be a column.
    """
    main = evaluated.of(None)
    records = list(main.final.values()) if main is not None else []
    ks = sorted({k for record in records for k in record.settings.get("k", ())})
    if names is None:
        names = standard_columns(ks, evaluated.others)
        if pivoted:
            names = [f"pass@{min(ks)}"] if ks else names[:1]
    levels: set[int] = set()
    if any("level=*" in name for name in names):
        levels = {int(level) for record in records for level in set(record.levels.tolist())}
    listed = list(names)
    stars: Mapping[str, Iterable[object]]
    stars = {"pass@": ks, "[": evaluated.tasks, "level=": sorted(levels)}
    for before, values in stars.items():
        star = f"{before}*"
        listed = [
            name.replace(star, f"{before}{value}")
            for name in listed
            for value in (values if star in name else ("",))
        ]
    found = []
    for name in dict.fromkeys(listed):
        column = parse_column(name)
        if column is None:
            hint = nearest(name, standard_columns([1, 8, 64]))
            raise NotFoundError(
                f"no column is called '{name}'; expected a metric, METRIC@end, METRIC@first100, "
                "METRIC@min and other windows, pass@8, pass@8[TASK], pass@8[level=3], "
                f"pass@8@pass@1=0.5, {ANSWER_ENTROPY}, total/rollouts, or a config key; {hint}"
            )
        found.append(column)
    return found


def refuse_empty(
    store: Store,
    runs: Sequence[RunRecord],
    evaluated: EvaluationsByTask,
    columns: Sequence[Column],
    values: pd.DataFrame,
) -> None:
    """Refuse columns that the user named and that no run has.

    Raises:
        NotFoundError: the metric, task or level does not exist; the message offers the nearest.
        ReportError: no problem has k samples.
    """
    for column in columns:
        if not values[column.name].isna().all():
            continue
        if column.is_evaluated:
            _refuse_evaluated(evaluated, column)
        # A window may have no number, such as the step of a value that no run comes to.
        ids = [run.id for run in runs]
        if column.metric is None or store.metrics.means(ids, column.metric):
            continue
        if analysis := analysis_columns(column.metric):
            if analysis_curves(store, ids, analysis, column.metric):
                continue
            raise NotFoundError(
                f"no run of the table has an analysis with '{column.metric}'; "
                f"`{analysis.made_by}` makes it"
            )
        if command := install_command(column.metric.partition("/")[0]):
            raise NotFoundError(f"no run of the table has a metric '{column.metric}'; {command}")
        known = _known_metrics(store, runs)
        hint = nearest(column.metric, known)
        if not hint.startswith("did you mean"):
            hint = nearest(column.metric, {*known, *known_keys(runs)})
        raise NotFoundError(f"no run of the table has a metric '{column.metric}'; {hint}")


def _refuse_evaluated(evaluated: EvaluationsByTask, column: Column) -> None:
    name = column.name
    if column.task is not None and column.task not in evaluated.tasks:
        raise NotFoundError(
            f"{name}: no run of the table was evaluated on '{column.task}'; "
            f"{nearest(column.task, evaluated.tasks)}; `advsweep eval` evaluates runs on others"
        )
    task = evaluated.of(column.task, train=column.is_train)
    if task is None and column.is_train:
        raise ReportError(
            f"{name}: no run of the table was evaluated on training problems; "
            "evaluation.train_problems says on how many"
        )
    if task is None:
        tasks = ", ".join(evaluated.tasks)
        raise ReportError(
            f"{name}: the runs were trained on different tasks; expected one of [{tasks}]"
            if tasks and not column.over
            else f"{name}: no run of the table was evaluated"
        )
    if column.is_selected and not task.selected:
        raise ReportError(
            f"{name}: no run of the table has a step that validation problems chose; "
            "evaluation.select_on evaluates them within the training, which --force repeats"
        )
    levels = {str(int(level)) for record in task.final.values() for level in set(record.levels)}
    if column.level is not None and str(column.level) not in levels:
        raise NotFoundError(f"{name}: no problem is of level {column.level}; {nearest('', levels)}")
    if column.law is not None:
        raise ReportError(
            f"{name}: no evaluation supports a fit; expected at least 16 samples per problem and a "
            "pass@k that rises with k"
        )
    if column.above is not None:
        floors = [name for record in task.final.values() for name in task.floors(record)]
        if column.above not in floors:
            raise NotFoundError(
                f"{name}: the task of the evaluations has no floor '{column.above}' that can be "
                f"computed here; {nearest(column.above, floors)}"
            )
    if column.base is not None:
        raise ReportError(
            f"{name}: no problem has such a solve rate before the training, or the runs were not "
            "evaluated then"
        )
    samples = max((int(record.n.max(initial=0)) for record in task.final.values()), default=0)
    if column.k is not None and column.k > samples:
        raise ReportError(
            f"{name}: expected k up to the {samples} samples per problem, got {column.k}; "
            "`advsweep eval --samples` draws more"
        )


def used_tasks(evaluated: EvaluationsByTask, columns: Sequence[Column]) -> list[str]:
    """Return the tasks that some columns measure; the main task if they measure none."""
    used: dict[str | None, None] = {}
    for column in columns:
        if column.is_evaluated:
            own = evaluated.tasks if column.over else [column.task or evaluated.main]
            used |= dict.fromkeys(own)
    return [
        task for task in used or [evaluated.main] if task is not None and task in evaluated.tasks
    ]
