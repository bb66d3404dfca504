"""The base class of figures, and what figures share: legends, curves, bands and notes."""

from __future__ import annotations

import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import ConfigError, NotFoundError, nearest
from advsweep.printable import printable
from advsweep.report.figures.data import Curve, FigureData
from advsweep.report.figures.style import RowStyle
from advsweep.statistics import Estimate
from advsweep.statistics.intervals import Band

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


class PointUnit(Enum):
    """The points of a regression: runs, or the means of rows over their seeds."""

    RUNS = "runs"
    ROWS = "rows"


WIDTH = 8.0
"""Width of a figure in inches."""

RC_PARAMS: Mapping[str, Any] = {
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
}
GREY = "#555555"
_CAPTION = 7.5  # points
_LINE = _CAPTION * 1.3 / 72  # inches
_LETTERS = 135  # of a caption, to a line
_LEGEND_LETTERS = int((WIDTH - 0.3) / 0.068) - 7  # of a label, beside its sample


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of figures; each figure uses some of them.

    Attributes:
        metrics: the metrics of curves, the outcomes of a forest plot, or the one number of others.
        smooth: the number of steps in the running mean of curves.
        x, y: the config keys of a heat map; x: that of rate and frontier.
        k: the k of pass@k in the bars of levels.
        baseline: the row that others are compared with, as of `advsweep report --baseline`.
        margin: margins of equivalence: a number for every pass@k, or OUTCOME=NUMBER.
        control: the row that repeats the baseline, so that its difference is noise.
        points: the points of the regression.
        by: config keys; each of their values gets a line of its own.
        task: the task of the evaluations; by default the runs' own.
    """

    metrics: tuple[str, ...] = ()
    smooth: int = 1
    x: str | None = None
    y: str | None = None
    k: int | None = None
    points: PointUnit = PointUnit.RUNS
    by: tuple[str, ...] = ()
    task: str | None = None
    baseline: str | None = None
    margin: tuple[str, ...] = ()
    control: str | None = None

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
        """Returns the names of the options that differ from their defaults."""
        default = Options()
        return [name for name in vars(self) if getattr(self, name) != getattr(default, name)]


@dataclass(frozen=True, kw_only=True)
class Chart(ABC):
    """A figure: collect its numbers from a sweep, then draw them or return them as records.

    Attributes:
        name: its name on the command line.
        summary: a line on what it shows, for help texts.
        uses: the options that have an effect on it.
        title: the title above it.
        notes: sentences about the numbers, in the caption.
        height: inches of title, axes and legend at a width of `WIDTH`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    uses: ClassVar[frozenset[str]] = frozenset()
    title: str
    notes: Sequence[str]

    @classmethod
    @abstractmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        """Collects the numbers.

        Raises:
            ReportError, NotFoundError: there is nothing to draw; the message says why.
        """

    @property
    @abstractmethod
    def height(self) -> float: ...

    @abstractmethod
    def draw(self, canvas: FigureBase) -> None:
        """Draws axes and legend."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Returns the numbers as records with equal keys."""


def caption(chart: Chart) -> str:
    """Returns the notes of a figure, in lines that fit below it."""
    text = ". ".join(note[:1].upper() + note[1:] for note in chart.notes)
    return "\n".join(textwrap.wrap(text + "." * bool(text), _LETTERS))


def total_height(chart: Chart) -> float:
    """Returns the height of a figure with its caption, in inches."""
    return chart.height + _caption_height(chart)


def _caption_height(chart: Chart) -> float:
    return (caption(chart).count("\n") + 2) * _LINE


def compose(chart: Chart, canvas: FigureBase) -> None:
    """Draws a figure with its title and its caption; texts are literal."""
    ratios = [chart.height, _caption_height(chart)]
    body, below = canvas.subfigures(2, 1, height_ratios=ratios, squeeze=False)[:, 0]
    body.suptitle(chart.title, x=0.012, ha="left", fontsize=10.5, fontweight="bold")
    chart.draw(body)
    # A point's width from the left edge, in line with the title.
    below.text(0.012, 1.0, caption(chart), ha="left", va="top", fontsize=_CAPTION, color=GREY)
    show_plainly(canvas)


def show_plainly(canvas: FigureBase) -> None:
    """Makes all texts literal.

    A dollar sign starts no formula, and control characters, which an SVG must not have, are
    escaped.
    """
    from matplotlib.text import Text

    for text in canvas.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
        text.set_text(printable(text.get_text()))


def legend_columns(labels: Sequence[str]) -> int:
    """Returns the number of columns of a legend."""
    longest = max((len(label) for label in labels), default=0)
    fitting = (_LEGEND_LETTERS + 7) // (longest + 7)
    columns = max(1, min(fitting, len(labels)))
    # Columns that the rows do not need would leave the last row nearly empty.
    return math.ceil(len(labels) / math.ceil(len(labels) / columns)) if labels else 1


def legend_height(labels: Sequence[str]) -> float:
    """Returns the height of a legend below the axes, in inches."""
    columns = legend_columns(labels)
    # A label that needs several lines has a row of its own.
    lines = sum(_legend_text(label).count("\n") for label in labels)
    return 0.1 + 0.2 * (math.ceil(len(labels) / columns) + lines)


def _legend_text(label: str) -> str:
    """Returns a label in lines that are no longer than the figure is wide."""
    return textwrap.fill(label, _LEGEND_LETTERS)


def add_legend(canvas: FigureBase, handles: Mapping[str, Artist]) -> None:
    """Adds a legend below all axes."""
    canvas.legend(
        list(handles.values()),
        [_legend_text(label) for label in handles],
        loc="outside lower center",
        ncols=legend_columns(list(handles)),
        handlelength=3.2,
    )


def handle(style: RowStyle, *, line: bool = True) -> Artist:
    """Returns the sample of a style in a legend."""
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        **style.points,
        markersize=5.2,
        linestyle=style.linestyle if line else "none",
        linewidth=1.6,
    )


def draw_curve(
    axes: Axes,
    curve: Curve,
    style: RowStyle,
    place: int,
    among: int,
    within: tuple[float, float] | None = None,
) -> None:
    """Draws a line with its band and a few markers, at other steps than those of other lines.

    Args:
        place, among: the index of the line, and the number of lines.
        within: the least and the greatest possible value.
    """
    band = curve.band
    fill_band(axes, curve.steps, band, style, among, within)
    every = max(1, len(curve.steps) // 6)
    axes.plot(
        curve.steps,
        band.mean,
        **style.points,
        linestyle=style.linestyle,
        linewidth=1.4,
        markersize=4.6,
        markevery=(min(place * every // max(among, 1), len(curve.steps) - 1), every),
        solid_joinstyle="round",
    )


def fill_band(
    axes: Axes,
    x: Int[np.ndarray, " places"],
    band: Band,
    style: RowStyle,
    among: int,
    within: tuple[float, float] | None = None,
) -> None:
    """Fills a band within the possible values; the more bands there are, the paler they are."""
    alpha = min(0.14, 0.56 / among)
    low, high = (np.clip(end, *(within or (None, None))) for end in (band.low, band.high))
    axes.fill_between(x, low, high, color=style.colour, alpha=alpha, linewidth=0)


def limits(bands: Sequence[Band]) -> tuple[float, float]:
    """Returns limits that contain the means, and the bands up to 0.6 of the means' span.

    A wider band is cut, as it would flatten the means.
    """
    means, ends = _finite(bands)
    if not means.size:
        return 0.0, 1.0
    low, high = float(means.min()), float(means.max())
    span = (high - low) or 0.1 * abs(high) or 1.0
    low = max(low - 0.6 * span, float(ends.min(initial=low)))
    high = min(high + 0.6 * span, float(ends.max(initial=high)))
    margin = 0.05 * (high - low) or 0.5 * span
    return low - margin, high + margin


def cut_note(panels: Iterable[Sequence[Band]]) -> list[str]:
    """Returns a note if `limits` cuts any band."""
    for bands in panels:
        low, high = limits(bands)
        _, ends = _finite(bands)
        if ends.size and (ends.min() < low or ends.max() > high):
            return ["bands that leave the axes are wider"]
    return []


def _finite(
    bands: Sequence[Band],
) -> tuple[Float[np.ndarray, " means"], Float[np.ndarray, " ends"]]:
    means = np.concatenate([band.mean for band in bands])
    ends = np.concatenate([end for band in bands for end in (band.low, band.high)])
    return means[np.isfinite(means)], ends[np.isfinite(ends)]


def find_label(option: str, text: str, labels: Sequence[str]) -> str:
    """Return the label that a text names, in full or by its first word.

    Raises:
        NotFoundError: no label, or several.
    """
    found = [label for label in labels if label == text]
    found = found or [label for label in labels if label.split()[0] == text]
    if len(found) != 1:
        several = f"several rows are called '{text}'" if found else f"no row is called '{text}'"
        raise NotFoundError(f"{option}: {several}; {nearest(text, labels)}")
    return found[0]


def seeds_note(counts: Sequence[int], what: str) -> list[str]:
    """Describes the numbers of seeds of some rows and their intervals.

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


def band_records(band: Band) -> list[dict[str, Any]]:
    """Returns the fields of a record for each place of a band."""
    places = zip(*(part.tolist() for part in band), strict=True)
    return [dict(zip(band._fields, fields, strict=True)) for fields in places]


def estimate_fields(fit: object, *names: str) -> dict[str, float | None]:
    """Returns fitted parameters and the ends of their intervals; None without a fit."""
    fields: dict[str, float | None] = {}
    for name in names:
        estimate: Estimate | None = getattr(fit, name, None)
        value, low, high = (None, None, None) if estimate is None else estimate
        fields |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return fields
