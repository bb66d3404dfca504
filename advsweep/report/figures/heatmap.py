"""Heat map of a metric over two swept keys."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import ConfigError, NotFoundError, ReportError, nearest
from advsweep.printable import printable_line
from advsweep.report.data.filters import MISSING, show_key
from advsweep.report.data.grouping import value_of
from advsweep.report.figures.chart import Chart, Options, seeds_note
from advsweep.report.figures.data import FigureData
from advsweep.report.tables.layout import show, show_interval
from advsweep.statistics import Interval, student_t_interval
from advsweep.store import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

_CELL = 0.62  # inches


@dataclass(frozen=True, kw_only=True)
class HeatMap(Chart):
    name: ClassVar[str] = "heatmap"
    summary: ClassVar[str] = "a number over two swept keys (--x, --y, --metric)"
    uses: ClassVar[frozenset[str]] = frozenset({"x", "y", "metrics", "task"})

    metric: str
    x: str
    y: str
    xs: Sequence[Any]
    ys: Sequence[Any]
    cells: Mapping[tuple[int, int], Interval]  # by index of y and x

    @classmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        if len(options.metrics) > 1:
            raise ConfigError(
                f"--metric: a heat map shows one number, got {', '.join(options.metrics)}"
            )
        x, y = _keys(data, options)
        metric = options.metrics[0] if options.metrics else data.on_task("pass@1")
        values = data.values(metric)
        places: dict[tuple[str, str], list[RunRecord]] = {}
        for run in data.runs:
            at = value_of(run, y), value_of(run, x)
            if MISSING not in at:
                places.setdefault((json.dumps(at[0]), json.dumps(at[1])), []).append(run)
        _refuse_mixtures(data, places, x, y)
        ys, xs = (_sorted({place[i] for place in places}) for i in (0, 1))
        cells = {
            (ys.index(own_y), xs.index(own_x)): student_t_interval(
                [values[run.id] for run in runs if run.id in values]
            )
            for (own_y, own_x), runs in places.items()
        }
        return cls(
            title=f"{data.name}: {metric} over {x} and {y}",
            notes=seeds_note([cell.n for cell in cells.values() if cell.n], "intervals"),
            metric=metric,
            x=x,
            y=y,
            xs=[json.loads(text) for text in xs],
            ys=[json.loads(text) for text in ys],
            cells=cells,
        )

    @property
    def height(self) -> float:
        return 1.0 + _CELL * max(len(self.ys), 2)

    def draw(self, canvas: FigureBase) -> None:
        axes = canvas.add_subplot()
        means = np.full((len(self.ys), len(self.xs)), np.nan)
        for place, cell in self.cells.items():
            means[place] = cell.mean
        image = axes.imshow(means, cmap="cividis", aspect="auto", origin="lower")
        for (row, column), cell in self.cells.items():
            if cell.n:
                dark = cell.mean < (np.nanmin(means) + np.nanmax(means)) / 2
                axes.text(
                    column,
                    row,
                    _cell_text(cell),
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if dark else "black",
                )
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_xticks(range(len(self.xs)), _ticks(self.xs))
        axes.set_yticks(range(len(self.ys)), _ticks(self.ys))
        axes.set_xlabel(self.x)
        axes.set_ylabel(self.y)
        bar = canvas.colorbar(image, ax=axes, label=self.metric, pad=0.015, aspect=8 * self.height)
        bar.outline.set_visible(False)

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                self.y: self.ys[row],
                self.x: self.xs[column],
                "metric": self.metric,
                **cell._asdict(),
            }
            for (row, column), cell in sorted(self.cells.items())
        ]


def _ticks(values: Sequence[Any]) -> list[str]:
    return [printable_line(show_key(value)) for value in values]


def _keys(data: FigureData, options: Options) -> tuple[str, str]:
    """Returns the two keys of the options, or the two that vary."""
    swept = list(dict.fromkeys(key for row in data.rows for key in row.group))
    swept = [key for key in swept if len({json.dumps(row.group.get(key)) for row in data.rows}) > 1]
    for name in (options.x, options.y):
        if name is not None and all(value_of(r, name) is MISSING for r in data.runs):
            raise NotFoundError(f"no run of {data.name} has a key '{name}'; {nearest(name, swept)}")
    free = [key for key in swept if key not in (options.x, options.y)]
    given = [key for key in (options.x, options.y) if key is not None]
    if len(given) == 2:
        if options.x == options.y:
            raise ConfigError(f"--x and --y: expected two keys, got '{options.x}' twice")
        return given[0], given[1]
    if len(free) + len(given) != 2:
        listed = f"only {', '.join(swept) or 'nothing'}" if len(swept) < 2 else ", ".join(swept)
        raise ReportError(
            f"a heat map is of two keys that vary: name them with --x and --y; in "
            f"{data.name} {listed} {'varies' if len(swept) < 2 else 'vary'}"
        )
    if options.x is not None:
        return options.x, free[0]
    if options.y is not None:
        return free[0], options.y
    return free[1], free[0]


def _refuse_mixtures(
    data: FigureData, places: Mapping[tuple[str, str], Sequence[RunRecord]], x: str, y: str
) -> None:
    groups = {run.id: row.group for row in data.rows for run in row.runs}
    for (own_y, own_x), runs in places.items():
        if len({run.config_hash for run in runs}) == 1:
            continue
        keys = {key for run in runs for key in groups[run.id]} - {x, y}
        varying = sorted(
            key for key in keys if len({json.dumps(groups[r.id].get(key)) for r in runs}) > 1
        )
        raise ReportError(
            f"the runs with {x}={own_x} and {y}={own_y} differ in other keys as well "
            f"({', '.join(varying)}): draw fewer runs, alike but for {x} and {y}"
        )


def _sorted(texts: set[str]) -> list[str]:
    """Sorts numbers by value, and words after them."""

    def order(text: str) -> tuple[bool, float, str]:
        value = json.loads(text)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return not number, float(value) if number else 0.0, text

    return sorted(texts, key=order)


def _cell_text(cell: Interval) -> str:
    if cell.n < 2:
        return f"{show(cell.mean)}\nn = {cell.n}"
    mean, half = show_interval(cell.mean, (cell.high - cell.low) / 2)
    return f"{mean} ±{half}\nn = {cell.n}"
