"""A point for each row: what accuracy costs in diversity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import ReportError
from advsweep.report.figures.chart import (
    Chart,
    Options,
    add_legend,
    handle,
    legend_height,
    seeds_note,
)
from advsweep.report.figures.data import Material
from advsweep.report.figures.pass_at_k import pass_at_ks, powers_of_two
from advsweep.report.figures.style import Look
from advsweep.statistics import Interval, student_t_interval
from advsweep.store import EvaluationRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


@dataclass(frozen=True)
class _Cross:
    """A row in the plane of accuracy and diversity."""

    label: str
    look: Look
    accuracy: Interval
    reach: Interval
    entropy: Interval


@dataclass(frozen=True, kw_only=True)
class Diversity(Chart):
    """What accuracy costs in diversity."""

    name: ClassVar[str] = "diversity"
    summary: ClassVar[str] = "pass@1 against pass@k of the largest k, and against answer entropy"
    uses: ClassVar[frozenset[str]] = frozenset({"task"})

    k: int
    crosses: Sequence[_Cross]

    @classmethod
    def collect(cls, material: Material, options: Options) -> Self:
        rows = [(row.label, row.look, material.final(row)) for row in material.rows_told_apart()]
        rows = [row for row in rows if row[2]]
        counts = [len(records) for *_, records in rows]
        rows += [(model.label, model.look, [model.evaluation]) for model in material.untrained]
        k = int(powers_of_two([record for *_, own in rows for record in own])[-1])
        if k == 1:
            raise ReportError(
                f"{material.name} was evaluated with one sample for each problem, which tells "
                "nothing of diversity; `advsweep eval --samples` draws more"
            )
        return cls(
            title=f"{material.name}: accuracy and diversity",
            notes=seeds_note(counts, "intervals"),
            k=k,
            crosses=[_cross(*row, k) for row in rows],
        )

    @property
    def height(self) -> float:
        return 3.3 + legend_height([cross.label for cross in self.crosses])

    def draw(self, canvas: FigureBase) -> None:
        left, right = canvas.subplots(1, 2)
        for cross in self.crosses:
            _draw_cross(left, cross.accuracy, cross.reach, cross.look)
            _draw_cross(right, cross.accuracy, cross.entropy, cross.look)
        left.set_ylabel(f"pass@{self.k}")
        right.set_ylabel("answer entropy, nats")
        for axes in (left, right):
            axes.set_xlabel("pass@1")
        add_legend(canvas, {cross.label: handle(cross.look, line=False) for cross in self.crosses})

    def records(self) -> list[dict[str, Any]]:
        names = {"accuracy": "pass@1", "reach": f"pass@{self.k}", "entropy": "entropy/answer"}
        return [
            {
                "row": cross.label,
                "metric": metric,
                "mean": interval.mean,
                "low": interval.low,
                "high": interval.high,
                "n": interval.n,
            }
            for cross in self.crosses
            for attribute, metric in names.items()
            for interval in [getattr(cross, attribute)]
        ]


def _cross(label: str, look: Look, records: Sequence[EvaluationRecord], k: int) -> _Cross:
    scores = pass_at_ks(records, np.array([1, k]))
    entropies = [float(record.answer_entropy.mean()) for record in records]
    accuracy, reach = (student_t_interval(scores[:, place]) for place in (0, 1))
    return _Cross(label, look, accuracy, reach, student_t_interval(entropies))


def _draw_cross(axes: Axes, x: Interval, y: Interval, look: Look) -> None:
    axes.errorbar(
        x.mean,
        y.mean,
        xerr=None if x.n < 2 else (x.high - x.low) / 2,
        yerr=None if y.n < 2 else (y.high - y.low) / 2,
        **look.points,
        linestyle="none",
        markersize=6.5,
        elinewidth=1.1,
        capsize=2.5,
    )
