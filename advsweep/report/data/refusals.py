"""Refuses the columns that a user names and that no run has, and says what there is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from advsweep.errors import NotFoundError, ReportError, first_of, nearest
from advsweep.names import ANSWER_ENTROPY
from advsweep.plugins import install_command
from advsweep.report.data.column_choice import MOST_LOGGED
from advsweep.report.data.columns import Column
from advsweep.report.data.evaluation_sources import Evaluation, Law, PassAtK
from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations
from advsweep.report.data.run_data import RunData
from advsweep.report.data.runs import known_keys, metric_names
from advsweep.report.data.sources import COSTS, Analysis, Metric
from advsweep.store import EvaluationRecord
from advsweep.store.imported import is_imported


def refuse_empty(data: RunData, columns: Sequence[Column], numbers: pd.DataFrame) -> None:
    """Refuse columns that the user named and that no run has.

    Args:
        numbers: of each run, by the names of the columns.

    Raises:
        NotFoundError: the metric, task, level or floor does not exist.
        ReportError: the runs lack what the column needs.
    """
    for column in columns:
        if not numbers[column.name].isna().all():
            continue
        if isinstance(column.source, Evaluation):
            _refuse_unlogged(data, column)
            _refuse_evaluation(data.evaluated, column, column.source)
        elif isinstance(column.source, Metric):
            _refuse_metric(data, column.source)


def _refuse_metric(data: RunData, source: Metric) -> None:
    """Refuse a metric, or a number of analyses, that no run has."""
    # A window may have no number, such as the step of a value that no run comes to.
    if data.store.metrics.means(data.ids, source.metric):
        return
    if isinstance(source, Analysis):
        if data.curves(source):
            return
        hint = f"`{source.columns.made_by}` makes it"
    else:
        hint = install_command(source.metric.partition("/")[0])
        hint = hint or nearest(source.metric, _known_names(data))
    raise NotFoundError(f"no run of the table has a metric '{source.metric}'; {hint}")


def _known_names(data: RunData) -> set[str]:
    """Return the names of metrics, costs and config keys that the runs have."""
    costs = [f"total/{cost}" for cost in COSTS]
    names = {*data.store.metrics.names(data.ids[0]), ANSWER_ENTROPY, "pass@1", *costs}
    return names | known_keys(data.runs)


def _refuse_unlogged(data: RunData, column: Column) -> None:
    """Refuse a column of evaluations where imported runs have none, and name what they have."""
    if data.evaluated.tasks or not all(is_imported(run.config) for run in data.runs):
        return
    names = metric_names(data.store, data.runs)
    raise NotFoundError(
        f"{column.name}: expected results per problem, or a logged share pass@K, got logs with "
        f"{first_of(names, MOST_LOGGED) or 'no metric'}; METRIC@end shows one of them"
    )


def _refuse_evaluation(evaluated: EvaluationsByTask, column: Column, source: Evaluation) -> None:
    """Refuse a column of evaluations that no run has, and say what the evaluations have."""
    task = source.problems.task_of(evaluated)
    records = [] if task is None else list(task.final.values())
    levels = sorted({int(level) for record in records for level in np.unique(record.levels)})
    floors = _floors_of(task, records)
    samples = max((int(record.n.max(initial=0)) for record in records), default=0)
    is_unknown = source.problems.task not in (None, *evaluated.tasks)
    if records:
        is_unknown = is_unknown or source.problems.level not in (None, *levels)
        is_unknown = is_unknown or _above(source) not in (None, *floors)
    takes_more = source.problems.base is not None or isinstance(source, Law)
    is_lacking = task is None or (column.is_selected and not task.selected)
    has_too_few = isinstance(source, PassAtK) and source.k > samples
    if not (is_unknown or takes_more or is_lacking or has_too_few):
        # A window or a cutoff may have no number, such as the step of a value no run comes to.
        return
    hint = "`advsweep eval` evaluates runs on other tasks and with more samples"
    if source.problems.is_train:
        hint = "evaluation.train_problems evaluates on training problems"
    elif column.is_selected:
        hint = "evaluation.select_on chooses steps, which --force repeats"
    elif takes_more:
        hint = "it takes an evaluation before the training; a law, 16 samples per problem"
    # A name that does not exist is told apart from what the runs lack so far.
    error = NotFoundError if is_unknown else ReportError
    raise error(
        f"{column.name}: no run of the table has a number for it; the evaluations have: tasks "
        f"{', '.join(evaluated.tasks) or 'none'}, levels {', '.join(map(str, levels)) or 'none'}, "
        f"chance baselines {', '.join(floors) or 'none'}, {samples} samples per problem (the "
        f"largest k); {hint}"
    )


def _above(source: Evaluation) -> str | None:
    return source.above if isinstance(source, PassAtK) else None


def _floors_of(task: TaskEvaluations | None, records: Sequence[EvaluationRecord]) -> list[str]:
    """Return the names of the floors of some evaluations."""
    if task is None:
        return []
    return sorted({name for record in records for name in task.floors(record)})
