"""Solve rates: of problems after training with fitted betas, and of groups over the training."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import FitError, NotFoundError, ReportError, counted
from advsweep.report.figures.chart import Chart, Options, add_legend, estimate_fields, legend_height
from advsweep.report.figures.data import EvaluatedRow, FigureData, Replicates
from advsweep.report.figures.style import BLACK, RowStyle
from advsweep.statistics.intervals import student_t_band
from advsweep.statistics.solve_rates import SolveRateFit, fit_solve_rates

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_BINS = 10
_BESIDE = 3  # panels at most
_PANEL = 1.9  # inches
_DESCRIBED = 8
"""With at most this many panels the caption has their laws."""

_LINES: dict[int, tuple[str, Any]] = {1: ("one beta", "-"), 2: ("two betas", (0, (4, 2)))}
"""The label and line style for each number of betas."""

_MOST = max(_LINES)
_GOODNESS = ("sse", "chi_square", "degrees", "p_value", "aic")


@dataclass(frozen=True, kw_only=True)
class _PanelGrid(Chart):
    """A figure with a panel for each row, at most three beside each other."""

    panels: Sequence[Any]

    @property
    def height(self) -> float:
        return 0.7 + _PANEL * self._lines

    @property
    def _lines(self) -> int:
        return math.ceil(len(self.panels) / _BESIDE)

    def _draw_grid(self, canvas: FigureBase, x: str, y: str, *, shared: bool = False) -> list[Axes]:
        """Draws axes with labels at the left and below; returns them in the panels' order."""
        columns = math.ceil(len(self.panels) / self._lines)
        grid = canvas.subplots(self._lines, columns, squeeze=False, sharex=shared, sharey=shared)
        cells: list[Axes] = grid.ravel().tolist()
        for number, axes in enumerate(cells):
            if number >= len(self.panels):
                axes.set_visible(False)
            elif number + columns >= len(self.panels):
                axes.set_xlabel(x)
                # Axes that share x have tick labels in the last line alone, which may be empty.
                axes.tick_params(axis="x", labelbottom=True)
            if number % columns == 0:
                axes.set_ylabel(y)
        return cells


@dataclass(frozen=True)
class _Law:
    """A number of betas fitted to a panel's problems, or the reason why there is no fit."""

    components: int
    fit: SolveRateFit | None
    refused: str | None


@dataclass(frozen=True)
class _Panel:
    """One row's problems.

    Attributes:
        histogram: [samples+1], the number of problems that k = 0, 1, ... of the samples solve.
        left_out: the number of problems with samples that could not be scored.
    """

    label: str
    style: RowStyle
    histogram: Int[np.ndarray, " counts"]
    left_out: int
    laws: tuple[_Law, ...]

    @property
    def samples(self) -> int:
        return len(self.histogram) - 1

    @property
    def problems(self) -> int:
        return int(self.histogram.sum())

    @property
    def bins(self) -> Int[np.ndarray, " bins"]:
        """The first k of each bin."""
        number = min(_BINS, len(self.histogram))
        return np.ceil(np.arange(number) * len(self.histogram) / number).astype(np.int64)

    def binned(self, of_counts: Float[np.ndarray, " counts"]) -> Float[np.ndarray, " bins"]:
        return np.add.reduceat(of_counts, self.bins)


@dataclass(frozen=True, kw_only=True)
class Difficulty(_PanelGrid):
    """FADE's distribution of difficulty (arXiv:2607.01490, sec. 12) of held-out problems."""

    name: ClassVar[str] = "difficulty"
    summary: ClassVar[str] = "solve rates of problems after training, with one beta and two fitted"
    uses: ClassVar[frozenset[str]] = frozenset({"task"})

    panels: Sequence[_Panel]

    @classmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        rows = data.evaluated_rows()
        panels = [_panel(row) for row in rows]
        laws = [_describe_laws(panel) for panel in panels] if len(panels) <= _DESCRIBED else []
        return cls(
            title=f"{data.name}: solve rates of problems of {rows[0].evaluations[0].task}",
            notes=[
                "of each problem the samples of all seeds together; lines: beta-binomials fitted "
                "by least squares",
                *(
                    f"left out in {panel.label}: {counted(panel.left_out, 'problem')} with samples "
                    "that could not be scored"
                    for panel in panels
                    if panel.left_out
                ),
                *laws,
            ],
            panels=panels,
        )

    @property
    def height(self) -> float:
        return super().height + legend_height([label for label, *_ in _LINES.values()])

    def draw(self, canvas: FigureBase) -> None:
        from matplotlib.lines import Line2D

        grid = self._draw_grid(canvas, "solve rate", "share of problems", shared=True)
        for axes, panel in zip(grid, self.panels, strict=False):
            _draw(axes, panel)
        handles = {
            label: Line2D([], [], color=BLACK, linestyle=style, linewidth=1.3)
            for label, style in _LINES.values()
        }
        add_legend(canvas, handles)

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "row": panel.label,
                "betas": law.components,
                "problems": panel.problems,
                "samples": panel.samples,
                "from": int(first),
                "to": int(after) - 1,
                "share": float(share),
                "expected": None if law.fit is None else float(panel.binned(law.fit.shares())[i]),
                **_parameters(law.fit),
                **{name: getattr(law.fit, name, None) for name in _GOODNESS},
                "refused": law.refused,
            }
            for panel in self.panels
            for law in [_law(panel.histogram, components) for components in _LINES]
            for i, (first, after, share) in enumerate(
                zip(
                    panel.bins,
                    [*panel.bins[1:], len(panel.histogram)],
                    panel.binned(panel.histogram / panel.problems),
                    strict=True,
                )
            )
        ]


def _panel(row: EvaluatedRow) -> _Panel:
    """Puts the samples of all seeds together."""
    n = np.sum([record.n for record in row.evaluations], axis=0)
    c = np.sum([record.c for record in row.evaluations], axis=0)
    samples = int(n.max())
    if samples == 0:
        raise ReportError(
            f"no sample of {row.label} could be scored, so that it has no solve rates"
        )
    whole = n == samples
    histogram = np.bincount(c[whole], minlength=samples + 1)
    # Only the records have intervals, which cost a hundred times the fit.
    laws = tuple(_law(histogram, components, resamples=1) for components in _LINES)
    return _Panel(row.label, row.style, histogram, int((~whole).sum()), laws)


def _law(histogram: Int[np.ndarray, " counts"], components: int, resamples: int = 200) -> _Law:
    try:
        fit = fit_solve_rates(histogram, components, resamples=resamples)
    except FitError as error:
        return _Law(components, None, str(error))
    return _Law(components, fit, None)


def _draw(axes: Axes, panel: _Panel) -> None:
    edges = np.append(panel.bins, len(panel.histogram)) / len(panel.histogram)
    shares = panel.binned(panel.histogram / panel.problems)
    axes.bar(
        edges[:-1],
        shares,
        np.diff(edges),
        align="edge",
        color=panel.style.colour,
        alpha=0.45,
        edgecolor="white",
    )
    for law in panel.laws:
        if law.fit is not None:
            middles = (edges[:-1] + edges[1:]) / 2
            expected = panel.binned(law.fit.shares())
            axes.plot(
                middles, expected, color=BLACK, linestyle=_LINES[law.components][1], linewidth=1.3
            )
    axes.set_title(panel.label)
    axes.set_xlim(0, 1)
    axes.grid(visible=False, axis="x")


def _describe_laws(panel: _Panel) -> str:
    texts = []
    for law in panel.laws:
        if law.fit is None:
            texts.append(f"no fit of {_LINES[law.components][0]}: {law.refused}")
            continue
        betas = [
            f"Beta({part.alpha.value:.3g}, {part.beta.value:.3g})" for part in law.fit.components
        ]
        if len(betas) > 1:
            weights = [f"{part.weight.value:.2g} " for part in law.fit.components]
            betas = [weight + beta for weight, beta in zip(weights, betas, strict=True)]
        p = f", p = {law.fit.p_value:.2g}" if math.isfinite(law.fit.p_value) else ""
        texts.append(f"{' + '.join(betas)} (AIC {law.fit.aic:.1f}{p})")
    return f"in {panel.label}: {'; '.join(texts)}"


def _parameters(fit: SolveRateFit | None) -> dict[str, float | None]:
    """Returns the parameters of all components with intervals; None for missing components."""
    parts = () if fit is None else fit.components
    found: dict[str, float | None] = {}
    for place in range(_MOST):
        part = parts[place] if place < len(parts) else None
        for name, value in estimate_fields(part, "weight", "alpha", "beta").items():
            parameter, *end = name.split("_")
            found["_".join([parameter, str(place + 1), *end])] = value
    return found


_SOLVED = re.compile(r"solved/(\d{1,9})", re.ASCII)
_WINDOWS = 60  # at most, along the steps


@dataclass(frozen=True)
class _Histograms:
    """The shares of one row's groups.

    Attributes:
        steps: [windows+1], the first step of each window, and the end of the last one.
        shares, low, high: [counts, windows], the share of groups with each number of
            successes, and its interval over runs.
        n: [counts, windows], the number of runs.
    """

    label: str
    group_size: int
    steps: Int[np.ndarray, " edges"]
    shares: Float[np.ndarray, "counts windows"]
    low: Float[np.ndarray, "counts windows"]
    high: Float[np.ndarray, "counts windows"]
    n: Int[np.ndarray, "counts windows"]


@dataclass(frozen=True, kw_only=True)
class SolveRates(_PanelGrid):
    """A histogram of solve rates for each window of the training, as a heat map."""

    name: ClassVar[str] = "solve-rates"
    summary: ClassVar[str] = "share of groups with each number of successes, over the training"

    panels: Sequence[_Histograms]

    @classmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        # An imported log may have other metrics with such a prefix.
        found = [match for name in data.metric_names if (match := _SOLVED.fullmatch(name))]
        names = [match[0] for match in sorted(found, key=lambda match: int(match[1]))]
        panels = (_histograms(data, row, names) for row in data.distinct_rows()) if names else ()
        rows = [panel for panel in panels if panel is not None]
        if not rows:
            raise NotFoundError(
                f"no run of {data.name} recorded how many groups have how many successes "
                "(solved/0, solved/1, ...); runs of an older advsweep did not"
            )
        window = max(int(np.diff(row.steps).max()) for row in rows)
        over = f", and over {window} steps each" if window > 1 else ""
        return cls(
            title=f"{data.name}: solve rates over the training",
            notes=[f"shares of groups, means over seeds{over}; colours on a square-root scale"],
            panels=rows,
        )

    def draw(self, canvas: FigureBase) -> None:
        from matplotlib.colors import PowerNorm

        grid = self._draw_grid(canvas, "training step", "successes of G")
        norm = PowerNorm(0.5, 0, max(float(np.nanmax(row.shares)) for row in self.panels))
        for axes, row in zip(grid, self.panels, strict=False):
            counts = np.arange(len(row.shares) + 1) - 0.5
            mesh = axes.pcolormesh(
                row.steps, counts, row.shares, norm=norm, cmap="cividis", rasterized=True
            )
            axes.grid(visible=False)
            axes.set_title(row.label)
            bins = len(row.shares) - 1
            ticks = sorted({0, bins // 2, bins})
            axes.set_yticks(ticks, [str(round(k * row.group_size / bins)) for k in ticks])
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
            for row in self.panels
            for window, (first, after) in enumerate(zip(row.steps[:-1], row.steps[1:], strict=True))
            for k in range(len(row.shares))
        ]


def _histograms(data: FigureData, row: Replicates, names: Sequence[str]) -> _Histograms | None:
    found = [data.series(name) for name in names]
    runs = [run.id for run in row.runs if run.id in found[0]]
    size = row.runs[0].config.get("group_size")
    # Smaller groups have fewer possible counts, so some metrics are missing.
    curves = [series for series in found if all(run in series for run in runs)]
    if not runs or len(curves) < 2 or not isinstance(size, int):
        # An imported run may have metrics of such names, and no groups whose size is known.
        return None
    last = max(int(curves[0][run][0][-1]) for run in runs)
    width = max(math.ceil(last / _WINDOWS), 1)
    edges = np.arange(1, last + width + 1, width)
    table = np.array([[_window_means(*series[run], edges) for run in runs] for series in curves])
    bands = [student_t_band(of_count) for of_count in table]
    mean, low, high, n = (np.array(parts) for parts in zip(*bands, strict=True))
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
