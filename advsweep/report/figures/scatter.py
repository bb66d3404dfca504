"""A point for each run or row: early collapse and accuracy, accuracy and diversity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import FitError, ReportError
from advsweep.report.figures.chart import (
    GREY,
    Chart,
    Options,
    add_legend,
    handle,
    legend_height,
    seeds_note,
    with_ends,
)
from advsweep.report.figures.looks import Look
from advsweep.report.figures.material import Material
from advsweep.report.figures.passk import pass_at_ks, powers_of_two
from advsweep.statistics import Interval, Regression, regress, student_t_interval
from advsweep.store import EvaluationRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

FIRST = 100
"""How many steps count as early."""


@dataclass(frozen=True)
class _Run:
    """A run as a point."""

    label: str
    look: Look
    seed: int
    acr: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class EarlyCollapse(Chart):
    """AVSPO's regression of final accuracy on the collapse rate of the first 100 steps."""

    name: ClassVar[str] = "acr"
    summary: ClassVar[str] = (
        "final pass@1 over the ACR of the first 100 steps, a point for each run, with R²"
    )
    uses: ClassVar[frozenset[str]] = frozenset({"task"})

    points: Sequence[_Run]
    line: Regression | None
    refused: str | None

    @classmethod
    def collect(cls, material: Material, options: Options) -> Self:
        early = material.values(f"collapse/acr@first{FIRST}")
        final = material.values(material.on_task("pass@1"))
        points = [
            _Run(*material.points_of(row), run.seed, early[run.id], final[run.id])
            for row in material.rows
            for run in row.runs
            if run.id in early and run.id in final
        ]
        shortest = min(run.steps for run in material.runs)
        notes = ["a point for each run"]
        if shortest < FIRST:
            notes.append(f"runs of fewer than {FIRST} steps count with all of them ({shortest})")
        line, refused = None, None
        try:
            line = regress([p.acr for p in points], [p.accuracy for p in points])
        except FitError as error:
            refused = str(error)
            notes.append(f"no line: {refused}")
        else:
            notes.append(
                "line of least squares, with the 95 % band of its mean as of independent points; "
                "seeds of one row are alike, so that the band is narrower than it should be"
            )
        return cls(
            title=f"{material.name}: early collapse and final accuracy",
            notes=notes,
            points=points,
            line=line,
            refused=refused,
        )

    @property
    def _looks(self) -> dict[str, Look]:
        return {point.label: point.look for point in self.points}

    @property
    def height(self) -> float:
        return 3.5 + legend_height(list(self._looks))

    def draw(self, canvas: FigureBase) -> None:
        axes = canvas.add_subplot()
        if self.line is not None:
            at = np.linspace(*_wider([p.acr for p in self.points]), 100)
            line, low, high = self.line.band(at)
            axes.fill_between(at, low, high, color=GREY, alpha=0.15, linewidth=0)
            axes.plot(at, line, color=GREY, linewidth=1.2)
            axes.set_title(_in_words(self.line), fontsize=8.5, color=GREY)
        for point in self.points:
            axes.plot(
                point.acr,
                point.accuracy,
                **point.look.points,
                markersize=6,
                alpha=0.85,
            )
        axes.set_xlabel(f"ACR, mean over the first {FIRST} steps")
        axes.set_ylabel("pass@1 after training")
        add_legend(canvas, {k: handle(look, line=False) for k, look in self._looks.items()})

    def records(self) -> list[dict[str, Any]]:
        r = self.line
        of_line = {
            **with_ends("slope", None if r is None else r.slope),
            **with_ends("intercept", None if r is None else r.intercept),
            **with_ends("r_squared", None if r is None else r.r_squared),
            "p_value": None if r is None else r.p_value,
            "runs": None if r is None else r.n,
            "refused": self.refused,
        }
        return [
            {"row": p.label, "seed": p.seed, "acr": p.acr, "pass@1": p.accuracy, **of_line}
            for p in self.points
        ]


def _wider(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return low - 0.03 * (high - low), high + 0.03 * (high - low)


def _in_words(line: Regression) -> str:
    slope, r2 = line.slope, line.r_squared
    return (
        f"R² = {r2.value:.2f} [{r2.low:.2f}, {r2.high:.2f}], "
        f"slope {slope.value:.2f} [{slope.low:.2f}, {slope.high:.2f}], "
        f"p = {line.p_value:.2g}, {line.n} runs"
    )


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
