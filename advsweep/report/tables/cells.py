"""Cells of a report: means with their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from advsweep.report.data.columns import Column
from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations
from advsweep.report.tables.types import Cell
from advsweep.statistics import student_t_interval
from advsweep.statistics.intervals import ROUNDING
from advsweep.store import EvaluationRecord

K = TypeVar("K")

# The most rows of a single evaluation that get intervals over problems: resampling takes time.
MOST_SINGLE = 30


def make_cell(values: Iterable[float], over_problems: float = math.nan) -> Cell:
    """Return the mean of some values, without NaN, and its interval."""
    # One NaN, so that equal rows are equal.
    listed = tuple(math.nan if value != value else float(value) for value in values)
    # Sorted, so that sums do not depend on the order in which logs were read.
    numbers = sorted(value for value in listed if not math.isnan(value))
    # Infinite values have an infinite mean and no interval.
    with np.errstate(invalid="ignore"):
        mean, low, high, n = student_t_interval(numbers)
    if n > 1 and numbers[-1] - numbers[0] <= ROUNDING * abs(numbers[0]):
        # Rounding must not make an interval where nothing varies.
        mean = low = high = numbers[0]
    return Cell(mean, low, high, n, listed, over_problems)


def half_over_problems(
    evaluated: EvaluationsByTask | None,
    column: Column,
    choose: Callable[[TaskEvaluations], Mapping[K, EvaluationRecord]],
    key: K,
) -> float:
    """Return half the interval over problems of a row that has a single evaluation, or NaN."""
    source = column.of_one_evaluation
    if evaluated is None or source is None or not source.has_bootstrap_interval:
        return math.nan
    task = source.problems.task_of(evaluated)
    record = None if task is None else choose(task).get(key)
    return math.nan if record is None else source.over_problems(record)
