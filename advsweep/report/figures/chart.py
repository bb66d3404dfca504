"""Charts: records and panels of lines, points and cells, and how matplotlib draws them.

A figure's function makes a `Chart` from a store: the records of `advsweep plot --format csv`, and
panels that say what is drawn. `write` draws any chart; the HTML page draws the same panels.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from advsweep.errors import ConfigError, ReportError
from advsweep.local_files import outside_working_folder
from advsweep.printable import printable
from advsweep.report.figures.style import RowStyle
from advsweep.statistics import Estimate
from advsweep.statistics.intervals import Band

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

Record = dict[str, Any]

GREY = "#555555"
_SHADE = "#d9ead3"
SUFFIXES = (".png", ".svg", ".pdf")
_WIDTH = 8.0  # inches
_PAD = 0.055  # inches
_IN_ONE_COLUMN = 3  # charts
_CAPTION = 7.5  # points
_LINE = _CAPTION * 1.3 / 72  # inches
_LETTERS = 135  # of a caption, to a line
_LEGEND_LETTERS = int((_WIDTH - 0.3) / 0.068) - 7  # of a label, next to its sample
_DPI = 150
_RC_PARAMS = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e5e5e5",
    "grid.linewidth": 0.8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    # Stable ids, and fonts embedded as text (type 42), as journals require.
    "svg.hashsalt": "advsweep",
    "pdf.fonttype": 42,
}
# No time and no version: the same figure gives the same bytes.
_METADATA: dict[str, Any] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


class PointUnit(Enum):
    """The points of a regression: runs, or the means of rows over their seeds."""

    RUNS = "runs"
    ROWS = "rows"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of figures; each figure uses some of them.

    Attributes:
        metrics: the metrics of curves, the outcomes of a forest plot, or the one number of others.
        smooth: the number of steps in the running mean of curves.
        x, y: the config keys of a heat map; x: that of rate and frontier.
        baseline: the row that others are compared with, as of `advsweep report --baseline`.
        margin: margins of equivalence: a number for every pass@k, or OUTCOME=NUMBER.
        points: the points of the regression.
        by: config keys; each of their values gets a line of its own.
        task: the task of the evaluations; by default the runs' own.
        intervals: whether records have the intervals of fits that cost a hundred times the fit.
    """

    metrics: tuple[str, ...] = ()
    smooth: int = 1
    x: str | None = None
    y: str | None = None
    points: PointUnit = PointUnit.RUNS
    by: tuple[str, ...] = ()
    task: str | None = None
    baseline: str | None = None
    margin: tuple[str, ...] = ()
    intervals: bool = True

    @property
    def metric(self) -> str | None:
        """The metric of a figure that has one; None for the figure's own.

        Raises:
            ConfigError: several are given.
        """
        if len(self.metrics) > 1:
            raise ConfigError(f"--metric: expected one number, got {', '.join(self.metrics)}")
        return next(iter(self.metrics), None)

    def given(self) -> list[str]:
        """Return the names of the options that differ from their defaults."""
        default = Options()
        return [name for name in vars(self) if getattr(self, name) != getattr(default, name)]


class Mark(NamedTuple):
    """How a series is drawn.

    Attributes:
        name: the name in the HTML page.
        line: matplotlib's line style; None for the row's own.
        size: of the markers; 0 for none.
        is_band: whether intervals are a band instead of whiskers.
        is_hollow: whether markers are rings.
    """

    name: str
    line: str | None = "none"
    width: float = 1.4
    size: float = 6.0
    alpha: float = 1.0
    is_band: bool = False
    is_hollow: bool = False


LINE = Mark("mean", line=None, size=4.6, is_band=True)
FIT = Mark("fit", line=None, width=1.1, size=0, is_band=True)
DOTTED = Mark("dotted", line=":", width=1.1, size=3.5)
WIDE = Mark("wide", line="-", width=3.0, size=0, alpha=0.5)
JOINED = Mark("joined", line=None, size=5.0)
POINTS = Mark("points")
BANDED = Mark("banded", is_band=True)
FAINT = Mark("faint", size=4.0, alpha=0.4)
RING = Mark("ring", size=10.0, is_hollow=True)
BARS = Mark("bars", size=0, alpha=0.45)
"""x has the edges of the bars, one more than y."""


@dataclass(frozen=True)
class Series:
    """Numbers of one row in a panel: y over x.

    Attributes:
        label: the row's label in the legend; empty for none.
        low, high, x_low, x_high: the ends of the intervals of y and of x; NaN for none.
        n: the number of values that each mean is of.
    """

    label: str
    style: RowStyle
    x: Any
    y: Any
    mark: Mark = LINE
    low: Any = None
    high: Any = None
    n: Any = None
    x_low: Any = None
    x_high: Any = None

    @classmethod
    def of_band(cls, label: str, style: RowStyle, x: Any, band: Band, mark: Mark = LINE) -> Series:
        """Make a series of means over seeds."""
        return cls(label, style, x, band.mean, mark, band.low, band.high, band.n)

    @property
    def records(self) -> list[Record]:
        """The mean, its interval and n at each x."""
        parts = (np.asarray(part).tolist() for part in (self.y, self.low, self.high, self.n))
        return [dict(zip(Band._fields, place, strict=True)) for place in zip(*parts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A heat map.

    Attributes:
        x, y: the edges of the cells.
        values: [y, x], NaN for an empty cell.
        within: the least and the greatest number of the colours.
        texts: what each cell says, by index of y and x.
        label: the label of the colour bar.
        gamma: the power of the colour scale.
        rows: what the cells with each y are, in words.
    """

    x: Sequence[float] | Float[np.ndarray, " edges"]
    y: Sequence[float] | Float[np.ndarray, " edges"]
    values: Float[np.ndarray, "y x"]
    within: tuple[float, float]
    label: str
    texts: Mapping[tuple[int, int], str] = field(default_factory=dict)
    gamma: float = 1.0
    rows: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Axes with series or a heat map.

    Attributes:
        rows: the labels of rows on the y axis, from top to bottom at 0, 1, ...
        x_ticks, y_ticks: places and texts; None for matplotlib's own.
        within: the least and the greatest possible value of y, where bands end.
        threshold: where the y axis turns from linear to logarithmic.
        guides: lines at a value of an axis, `x` or `y`.
        span: a shaded range of x.
        height: inches.
        is_wide: whether it has a row of the chart for itself.
    """

    series: Sequence[Series] = ()
    cells: Cells | None = None
    title: str = ""
    x_label: str = ""
    y_label: str = ""
    rows: Sequence[str] | None = None
    x_ticks: Mapping[Any, str] | None = None
    y_ticks: Mapping[Any, str] | None = None
    x_scale: str = "linear"
    y_scale: str = "linear"
    x_limits: tuple[float, float] | None = None
    y_limits: tuple[float, float] | None = None
    within: tuple[float, float] | None = None
    threshold: float | None = None
    guides: Sequence[tuple[str, float]] = ()
    span: tuple[float, float] | None = None
    height: float = 2.15
    is_wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure of some runs.

    Attributes:
        notes: sentences about the numbers, in the caption.
        records: the numbers as records with equal keys.
        columns: the number of panels next to each other.
        name: the figure's name on the command line.
    """

    title: str
    notes: Sequence[str]
    records: Sequence[Record]
    panels: Sequence[Panel]
    columns: int = 1
    name: str = ""

    @property
    def caption(self) -> str:
        """The notes, in lines that fit below the figure."""
        text = ". ".join(note[:1].upper() + note[1:] for note in self.notes)
        return "\n".join(textwrap.wrap(text + "." * bool(text), _LETTERS))

    @property
    def labels(self) -> list[str]:
        """The labels of the legend."""
        series = (own for panel in self.panels for own in panel.series)
        return list(dict.fromkeys(own.label for own in series if own.label))

    def grid(self) -> list[list[Panel]]:
        """Return the panels in lines."""
        lines: list[list[Panel]] = []
        for panel in self.panels:
            is_full = not lines or len(lines[-1]) == self.columns or lines[-1][0].is_wide
            lines += [[panel]] if is_full or panel.is_wide else []
            if lines[-1][-1] is not panel:
                lines[-1].append(panel)
        return lines

    @property
    def heights(self) -> tuple[float, float]:
        """The inches of title, panels and legend, and those of the caption."""
        panels = sum(max(panel.height for panel in line) for line in self.grid())
        return 0.4 + panels + _legend_height(self.labels), (self.caption.count("\n") + 2) * _LINE


def grid_columns(panels: int) -> int:
    """Return the number of columns, at most three, that leaves few places empty."""
    return math.ceil(panels / math.ceil(panels / 3)) if panels != 3 else 2


def limits(series: Iterable[Series]) -> tuple[float, float]:
    """Return limits that contain the means, and the bands up to 0.6 of the means' span.

    A wider band is cut, as it would flatten the means.
    """
    means, ends = _finite(series)
    if not means.size:
        return 0.0, 1.0
    low, high = float(means.min()), float(means.max())
    span = (high - low) or 0.1 * abs(high) or 1.0
    low = max(low - 0.6 * span, float(ends.min(initial=low)))
    high = min(high + 0.6 * span, float(ends.max(initial=high)))
    margin = 0.05 * (high - low) or 0.5 * span
    return low - margin, high + margin


def cut_note(panels: Iterable[Sequence[Series]]) -> list[str]:
    """Return a note if `limits` cuts any band."""
    for series in panels:
        low, high = limits(series)
        _, ends = _finite(series)
        if ends.size and (ends.min() < low or ends.max() > high):
            return ["bands that leave the axes are wider"]
    return []


def _finite(
    series: Iterable[Series],
) -> tuple[Float[np.ndarray, " means"], Float[np.ndarray, " ends"]]:
    series = list(series)
    means = np.concatenate([np.asarray(own.y, dtype=float) for own in series])
    ends = np.array(
        [
            v
            for own in series
            for end in (own.low, own.high)
            for v in (end if end is not None else ())
        ]
    )
    return means[np.isfinite(means)], ends[np.isfinite(ends)]


def seeds_note(counts: Iterable[int], what: str) -> list[str]:
    """Describe the numbers of seeds of some rows and their intervals.

    Args:
        what: the name of the drawn intervals, such as `bands`.
    """
    numbers = sorted(set(counts))
    listed = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    if numbers[-1] == 1:
        return [f"one seed each, so there are no {what}"]
    notes = [f"means with 95 % Student t {what} over {listed} seeds"]
    if numbers[0] == 1:
        notes.append(f"rows of one seed have no {what}")
    return notes


def estimate_fields(fit: object, *names: str) -> dict[str, float | None]:
    """Return fitted parameters and the ends of their intervals; None without a fit."""
    fields: dict[str, float | None] = {}
    for name in names:
        estimate: Estimate | None = getattr(fit, name, None)
        value, low, high = (None, None, None) if estimate is None else estimate
        fields |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return fields


def check_path(path: Path) -> None:
    """Check the path of a figure before the work of drawing it.

    Raises:
        ReportError: the suffix is not in `SUFFIXES`, or the folder does not exist.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ReportError(
            f"{path}: expected a file ending in {', '.join(SUFFIXES)}, got '{path.suffix}'"
        )
    if not path.parent.is_dir():
        raise ReportError(f"{path}: there is no folder {path.parent}; make it first")


def write(charts: Sequence[Chart], path: Path) -> None:
    """Write figures to one file: one page, or a PDF with a page for each figure.

    Raises:
        ReportError: the path is wrong, or the file cannot be written.
    """
    check_path(path)
    suffix = path.suffix.lower()
    pages = [[chart] for chart in charts] if suffix == ".pdf" else [charts]
    with _settings():
        from matplotlib.backends.backend_pdf import PdfPages

        try:
            figures = [_fixed(_draw_page(page)) for page in pages]
            if suffix != ".pdf":
                figures[0].savefig(path, dpi=_DPI, metadata=_METADATA[suffix])
                return
            with PdfPages(path, metadata=_METADATA[suffix]) as file:
                for figure in figures:
                    file.savefig(figure, dpi=_DPI)
        except OSError as error:
            raise ReportError(f"{path}: cannot be written ({error.strerror})") from error


@contextmanager
def _settings() -> Iterator[None]:
    """Set matplotlib's defaults and ours, whatever the user's settings are."""
    # Its import reads `matplotlibrc` in the working folder.
    with outside_working_folder():
        import matplotlib.style
    with matplotlib.style.context(["default", _RC_PARAMS]):
        yield


def draw_page(charts: Sequence[Chart]) -> Figure:
    """Draw figures below each other; more than three of them in two columns."""
    with _settings():
        return _draw_page(charts)


def _draw_page(charts: Sequence[Chart]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = _columns(charts)
    totals = [[sum(chart.heights) for chart in column] for column in columns]
    tallest = max(map(sum, totals))
    # Padding in inches; shares of the figure would grow with the page.
    layout = ConstrainedLayoutEngine(h_pad=_PAD, w_pad=_PAD, hspace=0, wspace=0)
    figure = Figure(figsize=(_WIDTH * len(columns), tallest), layout=layout)
    places = figure.subfigures(1, len(columns), squeeze=False)[0]
    for column, place, heights in zip(columns, places, totals, strict=True):
        # The empty rest of a shorter column.
        ratios = [*heights, *([tallest - sum(heights)] if sum(heights) < tallest else [])]
        canvases = place.subfigures(len(ratios), 1, height_ratios=ratios, squeeze=False)[:, 0]
        for chart, canvas in zip(column, canvases, strict=False):
            _draw_chart(chart, canvas)
    return figure


def _columns(charts: Sequence[Chart]) -> list[list[Chart]]:
    """Return one column, or two columns of about equal height."""
    if len(charts) <= _IN_ONE_COLUMN:
        return [list(charts)]
    heights = [sum(chart.heights) for chart in charts]
    halves = range(1, len(charts))
    first = min(halves, key=lambda place: max(sum(heights[:place]), sum(heights[place:])))
    return [list(charts[:first]), list(charts[first:])]


def _fixed(figure: Figure) -> Figure:
    """Lay a figure out once, and round the positions.

    The layout solver adds numbers in no fixed order; without rounding, the last bit of a position
    could change the ids in the file.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    parts: list[Any] = [*figure.subfigs]
    for part in parts:
        # The positions of axes are relative to these.
        part.bbox_relative.set_points(part.bbox_relative.get_points().round(6))
        parts += part.subfigs
    for axes in figure.axes:
        left, bottom, width, height = axes.get_position().bounds
        axes.set_position((round(left, 6), round(bottom, 6), round(width, 6), round(height, 6)))
    return figure


def _draw_chart(chart: Chart, canvas: FigureBase) -> None:
    """Draw a figure with its title and its caption."""
    from matplotlib.text import Text

    body, below = canvas.subfigures(2, 1, height_ratios=chart.heights, squeeze=False)[:, 0]
    body.suptitle(chart.title, x=0.012, ha="left", fontsize=10.5, fontweight="bold")
    # A point's width from the left edge, in line with the title.
    below.text(0.012, 1.0, chart.caption, ha="left", va="top", fontsize=_CAPTION, color=GREY)
    lines = chart.grid()
    heights = [max(panel.height for panel in line) for line in lines]
    grid = body.add_gridspec(len(lines), chart.columns, height_ratios=heights)
    meshes: list[tuple[Any, str]] = []
    for row, line in enumerate(lines):
        for column, panel in enumerate(line):
            axes = body.add_subplot(grid[row, :] if panel.is_wide else grid[row, column])
            if panel.cells is not None:
                meshes.append((_draw_cells(axes, panel.cells), panel.cells.label))
            _draw_panel(axes, panel)
    if meshes:
        mesh, label = meshes[0]
        aspect = 10 * sum(heights)
        body.colorbar(
            mesh, ax=body.axes, label=label, aspect=aspect, pad=0.015
        ).outline.set_visible(False)
    if chart.labels:
        _add_legend(chart, body)
    # No dollar sign starts a formula; an SVG must not have control characters.
    for text in canvas.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
        text.set_text(printable(text.get_text()))


def _draw_panel(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(panel.title, fontsize=8.5 if len(panel.title) > 40 else 9)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if panel.span is not None:
        axes.axvspan(*panel.span, color=_SHADE, linewidth=0, zorder=0)
    for axis, value in panel.guides:
        draw = axes.axvline if axis == "x" else axes.axhline
        draw(value, color=GREY, linewidth=0.8, linestyle=":", zorder=0.5)
    for place, series in enumerate(panel.series):
        _draw_series(axes, series, place, len(panel.series), panel.within)
    axes.set_xscale(panel.x_scale)
    axes.set_yscale(panel.y_scale)
    if panel.threshold is not None:
        axes.set_yscale("symlog", linthresh=panel.threshold, linscale=0.5)
    if panel.rows is not None:
        axes.set_yticks(range(len(panel.rows)), panel.rows)
        axes.set_ylim(len(panel.rows) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    if panel.x_ticks is not None:
        axes.set_xticks(list(panel.x_ticks), list(panel.x_ticks.values()))
        axes.minorticks_off()
    elif panel.x_scale == "linear":
        nbins = 7 if panel.rows is None else 4
        axes.xaxis.set_major_locator(MaxNLocator(nbins=nbins, steps=[1, 2, 5, 10]))
    if panel.y_ticks is not None:
        axes.set_yticks(list(panel.y_ticks), list(panel.y_ticks.values()))
    if panel.x_limits is not None:
        axes.set_xlim(*panel.x_limits)
    if panel.y_limits is not None:
        axes.set_ylim(*panel.y_limits)


def _draw_series(
    axes: Axes, series: Series, place: int, among: int, within: tuple[float, float] | None
) -> None:
    """Draw a series; the more bands there are, the paler they are.

    Args:
        place, among: the index of the series, and the number of series.
        within: the least and the greatest possible value.
    """
    mark, style = series.mark, series.style
    if not len(series.x):
        # An empty line that is not clipped would count as one at the origin of the page.
        return
    if mark is BARS:
        axes.stairs(series.y, series.x, fill=True, color=style.colour, alpha=mark.alpha)
        return
    if series.low is not None and series.high is not None and mark.is_band:
        low, high = (np.clip(end, *(within or (None, None))) for end in (series.low, series.high))
        alpha = min(0.14, 0.56 / among)
        axes.fill_between(series.x, low, high, color=style.colour, alpha=alpha, linewidth=0)
    elif series.low is not None or series.x_low is not None:
        axes.errorbar(
            series.x,
            series.y,
            _arms(series.y, series.low, series.high),
            _arms(series.x, series.x_low, series.x_high),
            fmt="none",
            ecolor=style.colour,
            elinewidth=1.1,
            capsize=2.5,
        )
    own = {**style.points, **({"markerfacecolor": "none"} if mark.is_hollow else {})}
    if mark is LINE:
        # A few markers, at other steps than those of other lines.
        every = max(1, len(series.x) // 6)
        own["markevery"] = (min(place * every // max(among, 1), len(series.x) - 1), every)
    axes.plot(
        series.x,
        series.y,
        **own,
        linestyle=style.linestyle if mark.line is None else mark.line,
        linewidth=mark.width,
        markersize=mark.size,
        alpha=mark.alpha,
        solid_joinstyle="round",
        rasterized=len(series.x) > 2000,
        clip_on=mark is not POINTS,
    )


def _arms(middle: Any, low: Any, high: Any) -> Any:
    """Return the lengths of whiskers; of values without an interval none."""
    if low is None:
        return None
    return np.nan_to_num([np.subtract(middle, low), np.subtract(high, middle)])


def _draw_cells(axes: Axes, cells: Cells) -> Any:
    from matplotlib.colors import PowerNorm

    norm = PowerNorm(cells.gamma, *cells.within)
    mesh = axes.pcolormesh(
        cells.x, cells.y, cells.values, norm=norm, cmap="cividis", rasterized=True
    )
    for (row, column), text in cells.texts.items():
        dark = cells.values[row, column] < sum(cells.within) / 2
        x = (cells.x[column] + cells.x[column + 1]) / 2
        y = (cells.y[row] + cells.y[row + 1]) / 2
        colour = "white" if dark else "black"
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color=colour)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return mesh


def _legend_columns(labels: Sequence[str]) -> int:
    longest = max((len(label) for label in labels), default=0)
    fitting = (_LEGEND_LETTERS + 7) // (longest + 7)
    columns = max(1, min(fitting, len(labels)))
    # Columns that the rows do not need would leave the last row nearly empty.
    return math.ceil(len(labels) / math.ceil(len(labels) / columns)) if labels else 1


def _legend_text(label: str) -> str:
    """Return a label in lines that are no longer than the figure is wide."""
    return textwrap.fill(label, _LEGEND_LETTERS)


def _legend_height(labels: Sequence[str]) -> float:
    if not labels:
        return 0.0
    # A label that needs several lines has a row of its own.
    lines = sum(_legend_text(label).count("\n") for label in labels)
    return 0.1 + 0.2 * (math.ceil(len(labels) / _legend_columns(labels)) + lines)


def _add_legend(chart: Chart, canvas: FigureBase) -> None:
    """Add a legend below all axes."""
    from matplotlib.lines import Line2D

    handles: dict[str, Artist] = {}
    shown = [own for panel in chart.panels for own in panel.series]
    for label in chart.labels:
        # A row that has a line anywhere has one here.
        own = [series for series in shown if series.label == label]
        [first, *_] = sorted(own, key=lambda series: series.mark.line == "none")
        line: Any = first.style.linestyle if first.mark.line is None else first.mark.line
        size = 5.2 if any(series.mark.size for series in own) else 0
        handles[label] = Line2D(
            [], [], **first.style.points, markersize=size, linestyle=line, linewidth=1.6
        )
    canvas.legend(
        list(handles.values()),
        [_legend_text(label) for label in handles],
        loc="outside lower center",
        ncols=_legend_columns(list(handles)),
        handlelength=3.2,
    )
