"""Refuses the columns that a user names and that no run has, and says what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from advsweep.errors import NotFoundError, ReportError, first_of, nearest
from advsweep.names import ANSWER_ENTROPY
from advsweep.plugins import install_command
from advsweep.report.data.column_choice import MOST_LOGGED
from advsweep.report.data.columns import Column
from advsweep.report.data.evaluation_sources import Evaluation, Law, PassAtK
from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations
from advsweep.report.data.keys import known_keys
from advsweep.report.data.run_data import RunData
from advsweep.report.data.runs import metric_names
from advsweep.report.data.sources import COSTS, Analysis, Metric
from advsweep.store.imported import is_imported
from advsweep.synonyms import COLUMNS


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
        hint = hint or nearest(source.metric, _known_names(data), COLUMNS)
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


@dataclass(frozen=True)
class _Available:
    """What the evaluations of a column's task have.

    Attributes:
        tasks: the evaluated tasks.
        levels: the levels of the problems, ascending.
        floors: the names of the floors, sorted.
        samples: the largest number of samples of a problem.
        is_empty: whether there is no evaluation of the column's task.
    """

    tasks: Sequence[str]
    levels: Sequence[int]
    floors: Sequence[str]
    samples: int
    is_empty: bool

    def __str__(self) -> str:
        levels = ", ".join(map(str, self.levels))
        floors = ", ".join(self.floors)
        return (
            f"tasks {', '.join(self.tasks) or 'none'}, levels {levels or 'none'}, "
            f"chance baselines {floors or 'none'}, {self.samples} samples per problem (the "
            "largest k)"
        )

    def lacks_name_of(self, source: Evaluation) -> bool:
        """Tell whether a source names a task, a level or a floor that does not exist."""
        if source.problems.task is not None and source.problems.task not in self.tasks:
            return True
        if self.is_empty:
            return False
        if source.problems.level is not None and source.problems.level not in self.levels:
            return True
        above = source.above if isinstance(source, PassAtK) else None
        return above is not None and above not in self.floors


def _refuse_evaluation(evaluated: EvaluationsByTask, column: Column, source: Evaluation) -> None:
    """Refuse a column of evaluations that no run has, and say what the evaluations have."""
    task = source.problems.task_of(evaluated)
    available = _find_available(evaluated, task)
    is_unknown = available.lacks_name_of(source)
    takes_more = source.problems.base is not None or isinstance(source, Law)
    is_lacking = task is None or (column.is_selected and not task.selected)
    has_too_few = isinstance(source, PassAtK) and source.k > available.samples
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
        f"{column.name}: no run of the table has a number for it; the evaluations have: "
        f"{available}; {hint}"
    )


def _find_available(evaluated: EvaluationsByTask, task: TaskEvaluations | None) -> _Available:
    """Return what the evaluations of a task have; None: there are none."""
    records = [] if task is None else list(task.final.values())
    levels: set[int] = set()
    floors: set[str] = set()
    for record in records:
        levels.update(int(level) for level in np.unique(record.levels))
        if task is not None:
            floors.update(task.floors(record))
    return _Available(
        tasks=list(evaluated.tasks),
        levels=sorted(levels),
        floors=sorted(floors),
        samples=max((int(record.n.max(initial=0)) for record in records), default=0),
        is_empty=not records,
    )
