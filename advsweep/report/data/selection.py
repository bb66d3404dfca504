"""Selects the runs and the columns of a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from advsweep.errors import NotFoundError, ReportError, first_of, nearest
from advsweep.plugins import install_command
from advsweep.report.data.analyses import analysis_columns, analysis_curves
from advsweep.report.data.columns import (
    ANSWER_ENTROPY,
    COSTS,
    END_STEPS,
    LOGGED_PASS,
    UNEVALUATED,
    Column,
    parse_column,
    standard_columns,
)
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.data.runs import (
    Filter,
    collapsed_runs,
    describe_filters,
    is_key,
    known_keys,
    metric_names,
    value_of,
)
from advsweep.store import RunRecord, Status, Store
from advsweep.store.imported import is_imported

_STATUS = "status"

# The most metrics of a log that a table shows unasked.
_MOST_LOGGED = 8

# Words in the names of results.
_RESULT = re.compile(r"acc|correct|eval|pass|reward|score|solve|success|test|val", re.IGNORECASE)


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
    finished_only: bool = True,
) -> Selection:
    """Select the runs that match some filters.

    Args:
        finished_only: without a filter on the status, select runs that are done.

    Raises:
        NotFoundError: no run has the key of a filter.
    """
    of_status = [f for f in where if f.key == _STATUS]
    of_config = [f for f in where if f.key != _STATUS]
    for filter in of_config:
        if runs and not is_key(runs, filter.key):
            hint = nearest(filter.key, known_keys(runs))
            raise NotFoundError(f"--where: no run has a key '{filter.key}'; {hint}")

    def is_in_state(run: RunRecord) -> bool:
        if of_status:
            return all(f.holds(run.status.value) for f in of_status)
        return run.status is Status.DONE or not finished_only

    fitting = [run for run in runs if all(f.holds(value_of(run, f.key)) for f in of_config)]
    chosen = [run for run in fitting if is_in_state(run)]
    others = [run for run in fitting if not is_in_state(run)]
    remarks = [f"chosen by {describe_filters(where)}"] if where else []
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


def select_columns(names: Sequence[str] | None, evaluated: EvaluationsByTask) -> list[Column]:
    """Parse the names of columns; without any, return the default columns of a table.

    Raises:
        NotFoundError: a name cannot be a column.
    """
    main = evaluated.of(None)
    records = list(main.final.values()) if main is not None else []
    ks = sorted({k for record in records for k in record.settings.get("k", ())})
    listed = list(standard_columns(ks, evaluated.others) if names is None else names)
    levels: set[int] = set()
    if any("level=*" in name for name in listed):
        levels = {int(level) for record in records for level in np.unique(record.levels)}
    stars: Mapping[str, Sequence[object]]
    stars = {"pass@": ks, "[": list(evaluated.tasks), "level=": sorted(levels)}
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


def logged_pass_columns(
    store: Store, runs: Sequence[RunRecord], evaluated: EvaluationsByTask
) -> list[Column]:
    """Return pass@k for each k that trainers logged of runs without an evaluation."""
    if evaluated.tasks:
        return []
    ks = [name.removeprefix(LOGGED_PASS) for name in metric_names(store, runs)]
    columns = [parse_column(f"pass@{k}") for k in sorted({k for k in ks if k.isdecimal()}, key=int)]
    return [column for column in columns if column is not None and column.k is not None]


def results_first(names: Iterable[str]) -> list[str]:
    """Return the names of metrics with those of results before times, sizes and losses."""
    return sorted(names, key=lambda name: (_RESULT.search(name) is None, name))


def logged_columns(
    store: Store, runs: Sequence[RunRecord], known: Iterable[Column]
) -> tuple[list[Column], str]:
    """Return the metrics of the logs at their end, and a sentence on them; none without any.

    A metric that is logged more rarely than each tenth step has its last value.

    Args:
        known: columns whose metrics are left out.
    """
    ids = [run.id for run in runs]
    sources = {column.source for column in known}
    names = results_first(name for name in metric_names(store, runs) if name not in sources)
    columns = []
    for name in names[:_MOST_LOGGED]:
        at_end = store.metrics.means(ids, name, last=END_STEPS)
        window = "end" if at_end.keys() >= store.metrics.last_steps(ids, name).keys() else "last"
        column = parse_column(f"{name}@{window}")
        if column is not None:
            columns.append(column)
    if not columns:
        return [], ""
    has_reward = any(name == UNEVALUATED.partition("@")[0] for name in names)
    lacking = f" in its last {END_STEPS} steps" if has_reward else ""
    text = (
        f"no run has pass@k or a reward by our names{lacking}, so that the table has the "
        "metrics of the logs at their end; which values are better is not known, and nothing is "
        "tested: `--outcomes "
        f"{columns[0].name}` declares what to test"
    )
    if len(names) > _MOST_LOGGED:
        more = names[_MOST_LOGGED:]
        text += f"; {len(more)} more: --columns {first_of(more, _MOST_LOGGED)}"
    return columns, text


def refuse_empty(
    store: Store,
    runs: Sequence[RunRecord],
    evaluated: EvaluationsByTask,
    columns: Sequence[Column],
    values: pd.DataFrame,
) -> None:
    """Refuse columns that the user named and that no run has.

    Raises:
        NotFoundError: the metric, task, level or floor does not exist.
        ReportError: the runs lack what the column needs.
    """
    ids = [run.id for run in runs]
    for column in columns:
        if not values[column.name].isna().all():
            continue
        if column.is_evaluated:
            _refuse_unlogged(store, runs, evaluated, column)
            _refuse_evaluated(evaluated, column)
        # A window may have no number, such as the step of a value that no run comes to.
        if column.metric is None or store.metrics.means(ids, column.metric):
            continue
        if analysis := analysis_columns(column.metric):
            if analysis_curves(store, ids, analysis, column.metric):
                continue
            hint = f"`{analysis.made_by}` makes it"
        else:
            costs = [f"total/{cost}" for cost in COSTS]
            known = {*store.metrics.names(ids[0]), ANSWER_ENTROPY, "pass@1", *costs}
            known |= known_keys(runs)
            hint = install_command(column.metric.partition("/")[0]) or nearest(column.metric, known)
        raise NotFoundError(f"no run of the table has a metric '{column.metric}'; {hint}")


def _refuse_unlogged(
    store: Store, runs: Sequence[RunRecord], evaluated: EvaluationsByTask, column: Column
) -> None:
    """Refuse a column of evaluations where imported runs have none, and name what they have."""
    if evaluated.tasks or not all(is_imported(run.config) for run in runs):
        return
    names = metric_names(store, runs)
    raise NotFoundError(
        f"{column.name}: expected results per problem, or a logged share pass@K, got logs with "
        f"{first_of(names, _MOST_LOGGED) or 'no metric'}; METRIC@end shows one of them"
    )


def _refuse_evaluated(evaluated: EvaluationsByTask, column: Column) -> None:
    """Refuse a column of evaluations that no run has, and say what the evaluations have."""
    select = column.select
    task = evaluated.of(select.task, train=select.is_train)
    records = [] if task is None else list(task.final.values())
    levels = sorted({int(level) for record in records for level in np.unique(record.levels)})
    floors = sorted({name for r in records if task is not None for name in task.floors(r)})
    samples = max((int(record.n.max(initial=0)) for record in records), default=0)
    is_unknown = select.task not in (None, *evaluated.tasks) or (
        bool(records)
        and (select.level not in (None, *levels) or select.above not in (None, *floors))
    )
    takes_more = select.base is not None or column.source.startswith("law/")
    is_lacking = task is None or (column.is_selected and not task.selected)
    if not (is_unknown or takes_more or is_lacking or (column.k or 0) > samples):
        # A window or a cutoff may have no number, such as the step of a value no run comes to.
        return
    hint = "`advsweep eval` evaluates runs on other tasks and with more samples"
    if select.is_train:
        hint = "evaluation.train_problems evaluates on training problems"
    elif column.is_selected:
        hint = "evaluation.select_on chooses steps, which --force repeats"
    elif takes_more:
        hint = "it takes an evaluation before the training; a law, 16 samples per problem"
    # A name that does not exist is told apart from what the runs lack so far.
    raise (NotFoundError if is_unknown else ReportError)(
        f"{column.name}: no run of the table has a number for it; the evaluations have: tasks "
        f"{', '.join(evaluated.tasks) or 'none'}, levels {', '.join(map(str, levels)) or 'none'}, "
        f"chance baselines {', '.join(floors) or 'none'}, {samples} samples per problem (the "
        f"largest k); {hint}"
    )
