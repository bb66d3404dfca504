"""A score over the learning rate, or another key with numbers, for each arm of a sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import ReportError
from advsweep.report.data.columns import MetricDirection, parse_column
from advsweep.report.figures.chart import Chart, Options
from advsweep.report.figures.data import FigureData
from advsweep.report.figures.style import BLACK, RowStyle, choose_styles
from advsweep.statistics import Interval, student_t_interval
from advsweep.store.records import TuningRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

RATE = "optimizer.lr"
NEAR = 0.9
"""A value is near the best if its score is at least this part of the best."""
_MOST_TICKS = 10


@dataclass(frozen=True)
class _Width:
    """Where a line is near its best; an open end lies beyond the values that were tried."""

    low: float
    high: float
    is_open_low: bool
    is_open_high: bool


@dataclass(frozen=True)
class _Line:
    """The scores of an arm: those of each seed, for each value, ascending.

    Attributes:
        chosen: the value that tuning chose, or else the one with the best mean.
    """

    label: str
    style: RowStyle
    values: Sequence[float]
    scores: Sequence[Sequence[float]]
    chosen: float | None
    lower: bool

    @property
    def means(self) -> list[Interval]:
        return [student_t_interval(scores) for scores in self.scores]

    @property
    def best(self) -> int:
        """The place of the best mean."""
        means = [own.mean for own in self.means]
        return means.index(min(means) if self.lower else max(means))

    @property
    def width(self) -> _Width | None:
        """Where the line between the means is near the best; None of a best mean of at most 0."""
        means = np.array([own.mean for own in self.means])
        best = float(means[self.best])
        if not best > 0:
            return None
        above = best / NEAR - means if self.lower else means - NEAR * best
        places = np.log(self.values) if min(self.values) > 0 else np.array(self.values)

        def end(step: int) -> tuple[float, bool]:
            last = self.best
            while 0 <= last + step < len(above) and above[last + step] >= 0:
                last += step
            if not 0 <= last + step < len(above):
                return self.values[last], True
            part = above[last] / (above[last] - above[last + step])
            place = float(places[last] + part * (places[last + step] - places[last]))
            return math.exp(place) if min(self.values) > 0 else place, False

        (low, is_open_low), (high, is_open_high) = end(-1), end(1)
        return _Width(low, high, is_open_low, is_open_high)


@dataclass(frozen=True, kw_only=True)
class Rate(Chart):
    name: ClassVar[str] = "rate"
    summary: ClassVar[str] = (
        "pass@1 (--metric) over the learning rate (--x) of each arm, with the chosen rate and the "
        "rates near the best; of a tuned sweep its tuning"
    )
    uses: ClassVar[frozenset[str]] = frozenset({"x", "metrics", "task"})

    key: str
    metric: str
    lines: Sequence[_Line]

    @classmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        tuning = data.tuning
        if tuning is None or options.x or options.metric or options.task:
            key = options.x or RATE
            metric = options.metric or data.on_task("pass@1")
            lines, rings = _swept(data, key, metric), "the best means"
        else:
            key, metric = tuning.key, tuning.metric
            lines, rings = _tuned(data, tuning), f"the choices of the tuning ({tuning.sweep})"
        if not any(len(line.values) > 1 for line in lines):
            raise ReportError(
                f"expected an arm with two values of '{key}', got none in {data.name}; --x names "
                "another key"
            )
        return cls(
            title=f"{data.name}: {metric} over {key}",
            notes=[
                f"lines: means; small points: seeds; rings: {rings}",
                f"bars: where the line between the means is within {NEAR:.0%} of the arm's best; "
                "arrows: at least up to the edge of the values that were tried",
            ],
            key=key,
            metric=metric,
            lines=lines,
        )

    @property
    def height(self) -> float:
        return 3.5 + 0.21 * len(self.lines)

    def draw(self, canvas: FigureBase) -> None:
        ratios = [2.6, 0.25 + 0.21 * len(self.lines)]
        upper, lower = canvas.subplots(2, 1, sharex=True, height_ratios=ratios)
        values = sorted({value for line in self.lines for value in line.values})
        if values[0] > 0:
            upper.set_xscale("log")
        if len(values) <= _MOST_TICKS:
            lower.set_xticks(values, [f"{value:g}" for value in values])
            lower.minorticks_off()
        for place, line in enumerate(self.lines):
            _draw_line(upper, line)
            _draw_width(lower, line, place)
        upper.set_ylabel(self.metric)
        lower.set_xlabel(self.key)
        lower.set_yticks(range(len(self.lines)), [line.label for line in self.lines])
        lower.set_ylim(len(self.lines) - 0.4, -0.6)
        lower.grid(visible=False, axis="y")
        lower.tick_params(axis="y", length=0)
        lower.set_title(f"within {NEAR:.0%} of the best")

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "row": line.label,
                self.key: value,
                "metric": self.metric,
                **own._asdict(),
                "best": place == line.best,
                "chosen": value == line.chosen,
                "near_from": None if line.width is None else line.width.low,
                "near_to": None if line.width is None else line.width.high,
            }
            for line in self.lines
            for place, (value, own) in enumerate(zip(line.values, line.means, strict=True))
        ]


def _tuned(data: FigureData, tuning: TuningRecord) -> list[_Line]:
    """Return the lines of the arms of a tuning.

    Raises:
        ReportError: runs were filtered, which a tuning does not know of.
    """
    if data.where:
        raise ReportError(
            f"the tuning of {data.name} is drawn whole, without --where; `advsweep plot "
            f"{tuning.sweep} --figure rate` draws some of its runs"
        )
    first = [arm.name.partition(" ")[0] for arm in tuning.arms]
    lines = []
    for arm, style in zip(
        tuning.arms, choose_styles(first, list(dict.fromkeys(first))), strict=True
    ):
        if grid := {each.value: each.scores for each in arm.grid if each.scores}:
            scores = list(grid.values())
            lines.append(_Line(arm.name, style, list(grid), scores, arm.chosen, tuning.lower))
    return lines


def _swept(data: FigureData, key: str, metric: str) -> list[_Line]:
    """Return the lines of arms with several values of a key."""
    found, column = data.values(metric), parse_column(metric)
    lower = column is not None and column.direction is MetricDirection.LOWER
    lines = []
    for arm in data.arms(key):
        scores = {
            value: [found[run.id] for run in row.runs if run.id in found]
            for value, row in arm.rows.items()
        }
        known = {value: own for value, own in scores.items() if own}
        if known:
            line = _Line(arm.label, arm.style, list(known), list(known.values()), None, lower)
            lines.append(replace(line, chosen=line.values[line.best]))
    return lines


def _draw_line(axes: Axes, line: _Line) -> None:
    means = [own.mean for own in line.means]
    axes.plot(line.values, means, **line.style.points, linestyle=line.style.linestyle, markersize=5)
    for value, scores in zip(line.values, line.scores, strict=True):
        at = [value] * len(scores)
        axes.plot(at, scores, ".", color=line.style.colour, alpha=0.5, markersize=6)
    for value, mean in zip(line.values, means, strict=True):
        if value == line.chosen:
            axes.plot(value, mean, "o", color=BLACK, markerfacecolor="none", markersize=10)


def _draw_width(axes: Axes, line: _Line, place: int) -> None:
    colour, width = line.style.colour, line.width
    if width is not None:
        axes.plot([width.low, width.high], [place, place], color=colour, linewidth=3, alpha=0.5)
        ends = (width.low, width.is_open_low, -1), (width.high, width.is_open_high, 1)
        for end, is_open, side in ends:
            if not is_open:
                axes.plot(end, place, "|", color=colour, markersize=6)
                continue
            axes.annotate(
                "→" if side > 0 else "←",
                (end, place),
                xytext=(5 * side, 0),
                textcoords="offset points",
                ha="left" if side > 0 else "right",
                va="center",
                color=colour,
            )
    axes.plot(line.values[line.best], place, **line.style.points, linestyle="none", markersize=6)
