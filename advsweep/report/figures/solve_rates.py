"""How many groups have how many successes, over the training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import NotFoundError
from advsweep.report.figures.chart import Chart, Options
from advsweep.report.figures.data import Material, Replicates
from advsweep.statistics.intervals import student_t_band

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from matplotlib.figure import FigureBase

_PREFIX = "solved/"
_WINDOWS = 60
_BESIDE = 3  # panels at most
_PANEL = 1.9  # inches


@dataclass(frozen=True)
class _Histograms:
    """The shares of one row.

    Attributes:
        steps: [windows+1], where windows of steps begin, and where the last ends.
        shares, low, high: [counts, windows], the share of groups with each number of
            successes, and its interval over runs.
        n: [counts, windows], runs.
    """

    label: str
    group_size: int
    steps: Int[np.ndarray, " edges"]
    shares: Float[np.ndarray, "counts windows"]
    low: Float[np.ndarray, "counts windows"]
    high: Float[np.ndarray, "counts windows"]
    n: Int[np.ndarray, "counts windows"]


@dataclass(frozen=True, kw_only=True)
class SolveRates(Chart):
    """A histogram of solve rates for each stretch of the training, as a heat map."""

    name: ClassVar[str] = "solve-rates"
    summary: ClassVar[str] = "share of groups with each number of successes, over the training"

    rows: Sequence[_Histograms]

    @classmethod
    def collect(cls, material: Material, options: Options) -> Self:
        names = sorted(
            (name for name in material.metric_names if name.startswith(_PREFIX)), key=_count
        )
        if not names:
            raise NotFoundError(
                f"no run of {material.name} recorded how many groups have how many successes "
                f"({_PREFIX}0, {_PREFIX}1, ...); runs of an older advsweep did not"
            )
        rows = [
            found
            for row in material.rows_told_apart()
            if (found := _histograms(material, row, names))
        ]
        window = max(int(np.diff(row.steps).max()) for row in rows)
        over = f", and over {window} steps each" if window > 1 else ""
        return cls(
            title=f"{material.name}: solve rates over the training",
            notes=[f"shares of groups, means over seeds{over}; colours on a square-root scale"],
            rows=rows,
        )

    @property
    def height(self) -> float:
        return 0.7 + _PANEL * self._lines

    @property
    def _lines(self) -> int:
        return math.ceil(len(self.rows) / _BESIDE)

    def draw(self, canvas: FigureBase) -> None:
        from matplotlib.colors import PowerNorm

        columns = math.ceil(len(self.rows) / self._lines)
        grid = canvas.subplots(self._lines, columns, squeeze=False)
        top = max(float(np.nanmax(row.shares)) for row in self.rows)
        norm = PowerNorm(0.5, 0, top)
        cells = [axes for line in grid for axes in line]
        for number, (axes, row) in enumerate(zip(cells, self.rows, strict=False)):
            counts = np.arange(len(row.shares) + 1) - 0.5
            mesh = axes.pcolormesh(
                row.steps, counts, row.shares, norm=norm, cmap="cividis", rasterized=True
            )
            axes.grid(visible=False)
            axes.set_title(row.label)
            bins = len(row.shares) - 1
            ticks = sorted({0, bins // 2, bins})
            axes.set_yticks(ticks, [str(round(k * row.group_size / bins)) for k in ticks])
            if number % columns == 0:
                axes.set_ylabel("successes of G")
            if number + columns >= len(self.rows):
                axes.set_xlabel("training step")
        for axes in cells[len(self.rows) :]:
            axes.set_visible(False)
        bar = canvas.colorbar(
            mesh, ax=grid, label="share of groups", aspect=16 * self._lines, pad=0.015
        )
        bar.outline.set_visible(False)

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "row": row.label,
                "group_size": row.group_size,
                "first_step": int(first),
                "last_step": int(after) - 1,
                "successes": k * row.group_size / (len(row.shares) - 1),
                "share": float(row.shares[k, window]),
                "low": float(row.low[k, window]),
                "high": float(row.high[k, window]),
                "n": int(row.n[k, window]),
            }
            for row in self.rows
            for window, (first, after) in enumerate(zip(row.steps[:-1], row.steps[1:], strict=True))
            for k in range(len(row.shares))
        ]


def _count(name: str) -> int:
    return int(name.removeprefix(_PREFIX))


def _histograms(material: Material, row: Replicates, names: Sequence[str]) -> _Histograms | None:
    found = [material.series(name) for name in names]
    runs = [run.id for run in row.runs if run.id in found[0]]
    if not runs:
        return None
    # A smaller group has fewer counts.
    curves = [series for series in found if runs[0] in series]
    last = max(int(curves[0][run][0][-1]) for run in runs)
    width = math.ceil(last / _WINDOWS)
    edges = np.arange(1, last + width + 1, width)
    table = np.array([[_window_means(*series[run], edges) for run in runs] for series in curves])
    bands = [student_t_band(of_count) for of_count in table]
    mean, low, high, n = (np.array(parts) for parts in zip(*bands, strict=True))
    size = int(row.runs[0].config["group_size"])
    return _Histograms(row.label, size, edges, mean, low, high, n)


def _window_means(
    steps: Int[np.ndarray, " steps"],
    values: Float[np.ndarray, " steps"],
    edges: Int[np.ndarray, " edges"],
) -> Float[np.ndarray, " windows"]:
    known = np.isfinite(values)
    sums, _ = np.histogram(steps[known], edges, weights=values[known])
    counts, _ = np.histogram(steps[known], edges)
    means: Float[np.ndarray, " windows"] = sums / np.where(counts > 0, counts, np.nan)
    return means
