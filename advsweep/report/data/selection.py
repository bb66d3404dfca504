"""Selects the runs and the columns of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from advsweep.errors import NotFoundError, ReportError, nearest
from advsweep.plugins import install_command
from advsweep.report.data.analyses import analysis_columns
from advsweep.report.data.columns import (
    ANSWER_ENTROPY,
    Column,
    expand,
    parse_column,
    standard_columns,
)
from advsweep.report.data.cutoffs import COSTS
from advsweep.report.data.evaluations import OWN_TASKS, EvaluationsByTask, select_evaluations
from advsweep.report.data.filters import Filter, describe_filters
from advsweep.report.data.floors import find_floors
from advsweep.report.data.grouping import is_key, known_keys, value_of
from advsweep.report.data.measure import Values, measure
from advsweep.store import RunOutline, RunRecord, Status, Store
from advsweep.store.imported import is_calibration
from advsweep.store.records import COLLAPSED

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
    pruned: Sequence[RunRecord | RunOutline]
    remarks: tuple[str, ...]


def read_runs(
    store: Store, sweep: str | None, run_ids: Sequence[int] | None, where: Sequence[Filter]
) -> list[RunRecord | RunOutline]:
    """Reads the runs of a sweep, of all sweeps, or of some ids; one attempt of each identity.

    Of several attempts it is the newest that is done, or else the newest. Calibrations of
    learning rates are read only by their ids. Runs are read in outline where filters will leave
    most of them out.

    Raises:
        NotFoundError: the sweep or an id does not exist.
    """
    runs: Sequence[RunRecord | RunOutline]
    if where and run_ids is None:
        runs = store.runs.outlines(sweep)
    else:
        runs = store.runs.select(sweep=sweep, ids=run_ids, newest_first=False)
    latest: dict[str, RunRecord | RunOutline] = {}
    for run in runs:
        if sweep is None and run_ids is None and is_calibration(run.config):
            continue
        known = latest.get(run.identity)
        if known is None or _precedence(run) > _precedence(known):
            latest[run.identity] = run
    return list(latest.values())


def _precedence(run: RunRecord | RunOutline) -> tuple[bool, int]:
    return run.status is Status.DONE, run.attempt


def select_runs(
    store: Store,
    runs: Sequence[RunRecord | RunOutline],
    where: Sequence[Filter],
    *,
    mixed: bool,
    finished_only: bool = True,
) -> Selection:
    """The runs that match some filters.

    Args:
        runs: where they are outlines, the records of the selected ones are read.
        mixed: accept evaluations that were not made alike.
        finished_only: without a filter on the status, select runs that are done.

    Raises:
        NotFoundError: a filter's key is neither a config key nor a metric of a run.
        ReportError: a filter is on evaluations that were not made alike.
    """
    of_config = [c for c in where if c.key == _STATUS or is_key(runs, c.key)]
    of_results = [filter for filter in where if filter not in of_config]
    columns = [_result_column(runs, filter) for filter in of_results]
    own = [c for c in of_config if c.key != _STATUS]
    fitting = [run for run in runs if all(c.holds(value_of(run, c.key)) for c in own)]
    of_status = [c for c in of_config if c.key == _STATUS]
    in_state = _in_state(of_status, finished_only)
    chosen = _read_records(store, [run for run in fitting if in_state(run)])
    others = [run for run in fitting if not in_state(run)]
    states = Counter(run.status for run in others)
    remarks = [f"chosen by {describe_filters(where)}"] if where else []
    if columns and chosen:
        along = any(column.is_made_of_curve for column in columns)
        evaluated = select_evaluations(store, chosen, along=along, mixed=mixed)
        values = measure(store, chosen, evaluated, columns)
        for filter, column in zip(of_results, columns, strict=True):
            found = values[column.name]
            if not found:
                raise NotFoundError(_unknown(store, runs, filter.key))
            chosen = [run for run in chosen if run.id in found and filter.holds(found[run.id])]
        remarks.append(
            "runs were chosen by their results, so that means are those of the runs that did so"
        )
    remarks += _collapsed(store, chosen)
    left_out: dict[Status, int] = {
        s: states[s] for s in Status if states[s] and s is not Status.DONE
    }
    pruned = [run for run in others if run.status is Status.PRUNED]
    return Selection(chosen, left_out, pruned, tuple(remarks))


def collapsed_runs(store: Store, runs: Sequence[RunRecord]) -> set[int]:
    """Return the ids of the runs whose policy collapsed in training."""
    summaries = store.metrics.summaries([run.id for run in runs])
    return {run_id for run_id, values in summaries.items() if values.get(COLLAPSED)}


def _collapsed(store: Store, runs: Sequence[RunRecord]) -> list[str]:
    """Says how many of some runs have a policy that collapsed in training."""
    ids = collapsed_runs(store, runs)
    if not ids:
        return []
    total = Counter(run.estimator for run in runs)
    of = Counter(run.estimator for run in runs if run.id in ids)
    listed = ", ".join(f"{n} of {total[name]} runs of {name}" for name, n in sorted(of.items()))
    return [f"the policy collapsed in training (collapse/detected=1): {listed}"]


def _read_records(store: Store, runs: Sequence[RunRecord | RunOutline]) -> list[RunRecord]:
    records = {run.id: run for run in runs if isinstance(run, RunRecord)}
    outlined = [run.id for run in runs if run.id not in records]
    records |= {run.id: run for run in store.runs.select(ids=outlined)}
    return [records[run.id] for run in runs]


def _in_state(
    filters: Sequence[Filter], finished_only: bool
) -> Callable[[RunRecord | RunOutline], bool]:
    if not filters:
        return lambda run: run.status is Status.DONE or not finished_only
    return lambda run: all(c.holds(run.status.value) for c in filters)


def _result_column(runs: Sequence[RunRecord | RunOutline], filter: Filter) -> Column:
    column = parse_column(filter.key)
    if column is None or "*" in filter.key:
        known = known_keys(runs)
        raise NotFoundError(
            f"--where: no run has a key '{filter.key}', and no column is called so; "
            f"{nearest(filter.key, known)}"
        )
    return column


def _unknown(store: Store, runs: Sequence[RunRecord | RunOutline], name: str) -> str:
    known = {*known_keys(runs), *_metrics(store, runs)}
    return f"--where: no run has a key or a metric '{name}'; {nearest(name, known)}"


def _metrics(store: Store, runs: Sequence[RunRecord | RunOutline]) -> list[str]:
    costs = [f"total/{cost}" for cost in COSTS]
    return [*store.metrics.names(runs[0].id), ANSWER_ENTROPY, "pass@1", *costs]


def split_columns(
    runs: Sequence[RunRecord], names: Sequence[str] | None
) -> tuple[list[str], list[str] | None]:
    """Splits names into config keys, whose values become columns, and metrics; None for none."""
    if names is None:
        return [], None
    keys = [name for name in names if is_key(runs, name)]
    metrics = [name for name in names if name not in keys]
    return keys, metrics or None


def select_columns(
    metrics: Sequence[str] | None, evaluated: EvaluationsByTask, *, pivoted: bool
) -> list[Column]:
    """Parses the names of columns; without any, returns the default columns of a table.

    Raises:
        NotFoundError: a name cannot be a column.
    """
    main = evaluated.of(None)
    records = main.final.values() if main is not None else ()
    ks = sorted({k for record in records for k in record.settings.get("k", ())})
    if metrics is None:
        names = standard_columns(ks, evaluated.others)
        if pivoted:
            names = [f"pass@{min(ks)}"] if ks else names[:1]
        return [_column(name) for name in names]
    tasks = [task for task in evaluated.tasks if task != OWN_TASKS]
    levels = (
        {int(v) for r in records for v in set(r.levels.tolist())}
        if any("level=*" in name for name in metrics)
        else set()
    )
    listed = [
        full for name in metrics for full in expand(name, ks=ks, tasks=tasks, levels=sorted(levels))
    ]
    return [_column(name) for name in dict.fromkeys(listed)]


def _column(name: str) -> Column:
    column = parse_column(name)
    if column is None:
        hint = nearest(name, standard_columns([1, 8, 64]))
        raise NotFoundError(
            f"no column is called '{name}'; expected a metric, METRIC@end, METRIC@first100, "
            "METRIC@min and other windows, pass@8, pass@8[TASK], pass@8[level=3], "
            f"pass@8@pass@1=0.5, {ANSWER_ENTROPY}, total/rollouts, or a config key; {hint}"
        )
    return column


def refuse_empty(
    store: Store,
    runs: Sequence[RunRecord],
    evaluated: EvaluationsByTask,
    columns: Sequence[Column],
    values: Values,
) -> None:
    """Refuses columns that the user named and that no run has.

    Raises:
        NotFoundError: the metric, task or level does not exist; the message offers the nearest.
        ReportError: no problem has k samples.
    """
    for column in columns:
        found = values[column.name]
        if column.metric is not None and _is_unknown(store, runs, column, found):
            if analysis := analysis_columns(column.metric):
                raise NotFoundError(
                    f"no run of the table has an analysis with '{column.metric}'; "
                    f"`{analysis.made_by}` makes it"
                )
            if command := install_command(column.metric.partition("/")[0]):
                raise NotFoundError(
                    f"no run of the table has a metric '{column.metric}'; {command}"
                )
            known = _metrics(store, runs)
            if nearest(column.metric, known).startswith("did you mean"):
                hint = nearest(column.metric, known)
            else:
                hint = nearest(column.metric, {*known, *known_keys(runs)})
            raise NotFoundError(f"no run of the table has a metric '{column.metric}'; {hint}")
        if column.is_evaluated and all(value != value for value in found.values()):
            _refuse_evaluated(evaluated, column)


def _is_unknown(
    store: Store, runs: Sequence[RunRecord], column: Column, found: Mapping[int, float]
) -> bool:
    if not column.is_made_of_curve or any(value == value for value in found.values()):
        return not found
    # A window may have no number, such as the step of a value that no run comes to.
    assert column.metric is not None
    return not store.metrics.means([run.id for run in runs], column.metric)


def _refuse_evaluated(evaluated: EvaluationsByTask, column: Column) -> None:
    if column.task is not None and column.task not in evaluated.tasks:
        raise NotFoundError(
            f"{column.name}: no run of the table was evaluated on '{column.task}'; "
            f"{nearest(column.task, evaluated.tasks)}; `advsweep eval` evaluates runs on others"
        )
    task = evaluated.of(column.task, train=column.is_train)
    if task is None and column.is_train:
        raise ReportError(
            f"{column.name}: no run of the table was evaluated on training problems; "
            "evaluation.train_problems says on how many"
        )
    if task is None:
        raise ReportError(f"{column.name}: no run of the table was evaluated")
    if column.is_selected and not task.selected:
        raise ReportError(
            f"{column.name}: no run of the table has a step that validation problems chose; "
            "evaluation.select_on evaluates them within the training, which --force repeats"
        )
    levels = {str(int(level)) for record in task.final.values() for level in set(record.levels)}
    if column.level is not None and str(column.level) not in levels:
        raise NotFoundError(
            f"{column.name}: no problem is of level {column.level}; {nearest('', levels)}"
        )
    if column.law is not None:
        raise ReportError(
            f"{column.name}: no evaluation supports a fit; expected at least 16 samples per "
            "problem and a pass@k that rises with k"
        )
    if column.above is not None:
        floors = [name for record in task.final.values() for name in find_floors(task, record)]
        if column.above not in floors:
            raise NotFoundError(
                f"{column.name}: the task of the evaluations has no floor '{column.above}' that "
                f"can be computed here; {nearest(column.above, floors)}"
            )
    if column.base is not None:
        raise ReportError(
            f"{column.name}: no problem has such a solve rate before the training, or the runs "
            "were not evaluated then"
        )
    samples = max((int(record.n.max(initial=0)) for record in task.final.values()), default=0)
    if column.k is not None and column.k > samples:
        raise ReportError(
            f"{column.name}: expected k up to the {samples} samples per problem, got {column.k}; "
            "`advsweep eval --samples` draws more"
        )


def used_tasks(evaluated: EvaluationsByTask, columns: Sequence[Column]) -> list[str]:
    """Returns the tasks that some columns measure; the main task if they measure none."""
    used: dict[str, None] = {}
    for column in columns:
        if column.is_evaluated and column.over is not None:
            used |= dict.fromkeys(task for task in evaluated.tasks if task != OWN_TASKS)
        elif column.is_evaluated:
            task = evaluated.main if column.task is None else column.task
            used |= dict.fromkeys(name for name in evaluated.tasks if name == task)
    return list(used) or [name for name in evaluated.tasks if name == evaluated.main]
