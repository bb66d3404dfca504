"""Columns of stored analyses of runs, which other packages add.

An entry point of the group `advsweep.columns` is an `AnalysisColumns`, named by the first word of
its columns: `weights` for `weights/norm`. A column has the number of each run's last analysed
step; windows are over its analysed steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from advsweep.errors import PluginError
from advsweep.plugins import COLUMNS, load_extension

if TYPE_CHECKING:
    from advsweep.report.data.windows import Curve
    from advsweep.store import Store


@dataclass(frozen=True)
class AnalysisColumns:
    """Columns that are numbers of one kind of analysis in the store.

    Attributes:
        kind: that of `store.analyses`.
        pattern: the names of the columns.
        number: returns the number of a result for a match of the pattern.
        made_by: the command that makes the analyses.
    """

    kind: str
    pattern: re.Pattern[str]
    number: Callable[[Mapping[str, Any], re.Match[str]], float]
    made_by: str


def analysis_columns(name: str) -> AnalysisColumns | None:
    """Return the analysis that a metric is a number of; None for one of the training's steps.

    Raises:
        PluginError: the package of such columns cannot be used.
    """
    word, slash, _ = name.partition("/")
    columns = load_extension(COLUMNS, word) if slash else None
    if columns is None:
        return None
    if not isinstance(columns, AnalysisColumns):
        raise PluginError(f"{COLUMNS}: expected {word} to be an AnalysisColumns, got {columns!r}")
    return columns if columns.pattern.fullmatch(name) else None


def analysis_curves(
    store: Store, run_ids: Sequence[int], columns: AnalysisColumns, name: str
) -> dict[int, Curve]:
    """Return a number of each run's analyses by step; of several at a step, that of the newest."""
    match = columns.pattern.fullmatch(name)
    assert match is not None
    points: dict[int, dict[int, float]] = {}
    for record in store.analyses.select(run_ids, columns.kind):
        points.setdefault(record.run_id, {})[record.step] = columns.number(record.result, match)
    curves: dict[int, Curve] = {}
    for run_id, numbers in points.items():
        steps = sorted(numbers)
        curves[run_id] = np.array(steps), np.array([numbers[step] for step in steps])
    return curves
