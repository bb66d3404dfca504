"""Regression of final accuracy on early collapse, over runs or rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import FitError, NotFoundError, ReportError, nearest
from advsweep.report.data.filters import MISSING, show_key
from advsweep.report.data.grouping import known_keys, value_of
from advsweep.report.figures.chart import (
    GREY,
    Chart,
    Options,
    PointUnit,
    add_legend,
    estimate_fields,
    handle,
    legend_height,
)
from advsweep.report.figures.data import FigureData
from advsweep.report.figures.style import MOST_SHADES, RowStyle, shaded_styles
from advsweep.statistics import Regression, regress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

FIRST = 100
"""The number of steps that count as early."""

_PANEL = 2.7  # inches
_RATIOS = (1.6, 1)  # of a panel and its legend
_SOLID, _DASHED = RowStyle(GREY, "o"), RowStyle(GREY, "o", 1)


@dataclass(frozen=True)
class _Point:
    """A run, or the mean of a row's runs.

    Attributes:
        seed: the seed of a run; None for a mean.
        values: the values of the keys that have lines.
    """

    label: str
    style: RowStyle
    seed: int | None
    acr: float
    accuracy: float
    values: Mapping[str, Any]


@dataclass(frozen=True)
class _Line:
    """The line through some points, or the reason why there is none.

    Attributes:
        value: the value of the key that the points share; None for the line through all points.
    """

    value: Any
    style: RowStyle
    points: Sequence[_Point]
    fit: Regression | None
    refused: str | None

    @property
    def words(self) -> str:
        if self.fit is None:
            return "no line"
        r2, slope = self.fit.r_squared, self.fit.slope
        return f"R² = {r2.value:.2f} [{r2.low:.2f}, {r2.high:.2f}], slope {slope.value:.2f}"

    def record(self) -> dict[str, Any]:
        fit = self.fit
        return {
            **estimate_fields(fit, "slope", "intercept", "r_squared"),
            "p_value": None if fit is None else fit.p_value,
            "n": None if fit is None else fit.n,
            "refused": self.refused,
        }

    def draw(self, axes: Axes, *, band: bool = False) -> None:
        """Draws the line over the range of its points, and the band of its mean."""
        if self.fit is None:
            return
        at = np.linspace(*_wider([p.acr for p in self.points]), 100)
        mean, low, high = self.fit.band(at)
        style = self.style
        if band:
            axes.fill_between(at, low, high, color=style.colour, alpha=0.15, linewidth=0)
        axes.plot(at, mean, color=style.colour, linestyle=style.linestyle, linewidth=1.2)


@dataclass(frozen=True, kw_only=True)
class EarlyCollapse(Chart):
    """AVSPO's regression of final accuracy on the collapse rate of the first 100 steps.

    Attributes:
        what: what the points are, `runs` or `rows`.
        line: the line through all points.
        panels: for each key the lines of its values.
    """

    name: ClassVar[str] = "acr"
    summary: ClassVar[str] = (
        "final pass@1 over the ACR of the first 100 steps, a point for each run (--points rows: "
        "for each row), with R²; also for each value of keys (--by)"
    )
    uses: ClassVar[frozenset[str]] = frozenset({"task", "points", "by"})

    what: str
    points: Sequence[_Point]
    line: _Line
    panels: Mapping[str, Sequence[_Line]]

    @classmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        _check_keys(data, options.by)
        early = data.values(f"collapse/acr@first{FIRST}")
        final = data.values(data.on_task("pass@1"))
        points = []
        for row in data.rows:
            runs = [run for run in row.runs if run.id in early and run.id in final]
            own = [
                _Point(
                    *data.point_style(row),
                    run.seed,
                    early[run.id],
                    final[run.id],
                    {key: value_of(run, key) for key in options.by},
                )
                for run in runs
            ]
            points += [_mean(own)] if own and options.points is PointUnit.ROWS else own
        each = "row, the mean of its runs" if options.points is PointUnit.ROWS else "run"
        shortest = min(run.steps for run in data.runs)
        notes = [f"a point for each {each}"]
        if shortest < FIRST:
            notes.append(f"runs of fewer than {FIRST} steps count with all of them ({shortest})")
        panels = {key: _lines(points, key) for key in options.by}
        line = _line(None, _DASHED if panels else _SOLID, points)
        which = "dashed: line of least squares through all" if panels else "line of least squares"
        if line.refused is not None:
            notes.append(f"no line: {line.refused}")
        elif options.points is PointUnit.ROWS:
            notes.append(f"{which}, with the 95 % band of its mean")
        else:
            notes.append(
                f"{which}, with the 95 % band of its mean as of independent points; "
                "seeds of one row are alike, so that the band is narrower than it should be"
            )
        return cls(
            title=f"{data.name}: early collapse and final accuracy",
            notes=notes,
            what=options.points.value,
            points=points,
            line=line,
            panels=panels,
        )

    @property
    def _styles(self) -> dict[str, RowStyle]:
        return {point.label: point.style for point in self.points}

    @property
    def height(self) -> float:
        if self.panels:
            return 0.4 + _PANEL * len(self.panels)
        return 3.5 + legend_height(list(self._styles))

    def draw(self, canvas: FigureBase) -> None:
        if self.panels:
            # The values of each key are different, so each panel has a legend beside it.
            grid = canvas.subplots(
                len(self.panels), 2, squeeze=False, sharex="col", width_ratios=_RATIOS
            )
            panels: list[Axes] = grid[:, 0].tolist()
            for (axes, beside), (key, lines) in zip(grid, self.panels.items(), strict=True):
                self._draw_panel(axes, beside, key, lines)
        else:
            panels = [canvas.add_subplot()]
            self.line.draw(panels[0], band=True)
            for point in self.points:
                _draw_points(panels[0], [point], point.style)
            add_legend(canvas, {k: handle(style, line=False) for k, style in self._styles.items()})
        if (fit := self.line.fit) is not None:
            ends = f"[{fit.slope.low:.2f}, {fit.slope.high:.2f}]"
            title = f"{self.line.words} {ends}, p = {fit.p_value:.2g}, {fit.n} {self.what}"
            panels[0].set_title(title, fontsize=8.5, color=GREY)
        for axes in panels:
            axes.set_ylabel("pass@1 after training")
        panels[-1].set_xlabel(f"ACR, mean over the first {FIRST} steps")

    def _draw_panel(self, axes: Axes, beside: Axes, key: str, lines: Sequence[_Line]) -> None:
        self.line.draw(axes, band=True)
        for line in lines:
            _draw_points(axes, line.points, line.style)
            line.draw(axes)
        axes.set_ylim(-0.04, 1.04)
        beside.set_axis_off()
        beside.legend(
            [handle(line.style) for line in lines],
            [f"{show_key(line.value)}: {line.words}" for line in lines],
            title=key,
            alignment="left",
            loc="center left",
            borderaxespad=0,
            fontsize=7.5,
            handlelength=2.2,
        )

    def records(self) -> list[dict[str, Any]]:
        if self.panels:
            lines = [
                ("", self.line),
                *((k, line) for k, own in self.panels.items() for line in own),
            ]
            return [{"key": key, "value": line.value, **line.record()} for key, line in lines]
        return [
            {
                "row": p.label,
                "seed": p.seed,
                "acr": p.acr,
                "pass@1": p.accuracy,
                **self.line.record(),
            }
            for p in self.points
        ]


def _check_keys(data: FigureData, keys: Sequence[str]) -> None:
    for key in keys:
        if all(value_of(run, key) is MISSING for run in data.runs):
            hint = nearest(key, known_keys(data.runs))
            raise NotFoundError(f"no run of {data.name} has a key '{key}'; {hint}")


def _mean(points: Sequence[_Point]) -> _Point:
    """Returns the mean of a row's runs.

    Raises:
        ReportError: the runs have several values of a key.
    """
    first = points[0]
    for key, value in first.values.items():
        if any(point.values[key] != value for point in points):
            raise ReportError(
                f"--by: expected keys that the runs of a row share, got '{key}', which differs "
                f"among those of {first.label}; --points runs takes each by itself"
            )
    return replace(
        first,
        seed=None,
        acr=float(np.mean([point.acr for point in points])),
        accuracy=float(np.mean([point.accuracy for point in points])),
    )


def _lines(points: Sequence[_Point], key: str) -> list[_Line]:
    """Fits a line for each value of a key, in the order of the points.

    Raises:
        ReportError: there are more values than styles.
    """
    by_value: dict[str, list[_Point]] = {}
    for point in points:
        if (value := point.values[key]) is not MISSING:
            by_value.setdefault(json.dumps(value), []).append(point)
    if len(by_value) > MOST_SHADES:
        raise ReportError(
            f"--by: the {len(by_value)} values of '{key}' are more than can be told apart "
            f"({MOST_SHADES}); choose some with --where"
        )
    styles = shaded_styles(len(by_value))
    return [
        _line(own[0].values[key], style, own)
        for style, own in zip(styles, by_value.values(), strict=True)
    ]


def _line(value: Any, style: RowStyle, points: Sequence[_Point]) -> _Line:
    try:
        fit = regress([p.acr for p in points], [p.accuracy for p in points])
    except FitError as error:
        return _Line(value, style, points, None, str(error))
    return _Line(value, style, points, fit, None)


def _draw_points(axes: Axes, points: Sequence[_Point], style: RowStyle) -> None:
    axes.plot(
        [p.acr for p in points],
        [p.accuracy for p in points],
        **style.points,
        linestyle="none",
        markersize=6,
        alpha=0.85,
    )


def _wider(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return low - 0.03 * (high - low), high + 0.03 * (high - low)
