"""What counts as a point where a line is laid through a sweep."""

from __future__ import annotations

import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

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
    """What is a point of a regression: each run, or each row's mean over its seeds."""

    RUNS = "runs"
    ROWS = "rows"


WIDTH = 8.0
"""Inches that a figure is wide."""

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
_LEGEND_LETTER = 0.068  # inches


@dataclass(frozen=True, kw_only=True)
class Options:
    """What can be asked of figures.

    Attributes:
        metrics: of curves, of which there may be several, and of heat maps.
        smooth: steps that curves are averaged over.
        x, y: config keys of a heat map.
        k: of the bars of levels.
        points: what is a point of the regression.
        by: config keys of which each value has a line of its own.
        task: whose evaluations are drawn; by default those of the runs' own.
    """

    metrics: tuple[str, ...] = ()
    smooth: int = 1
    x: str | None = None
    y: str | None = None
    k: int | None = None
    points: PointUnit = PointUnit.RUNS
    by: tuple[str, ...] = ()
    task: str | None = None

    def given(self) -> list[str]:
        """The names of those that are not as they are by default."""
        default = Options()
        return [name for name in vars(self) if getattr(self, name) != getattr(default, name)]


@dataclass(frozen=True, kw_only=True)
class Chart(ABC):
    """A figure: collected from a sweep, then drawn, or given as numbers.

    Attributes:
        name: what it is asked for by.
        summary: what it shows, in a line.
        uses: the options that it heeds.
        title: above it.
        notes: what there is to know of the numbers, below it.
        height: in inches, of title, axes and legend, at a width of `WIDTH`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    uses: ClassVar[frozenset[str]] = frozenset()
    title: str
    notes: Sequence[str]

    @classmethod
    @abstractmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        """Puts its numbers together.

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
        """Its numbers, as records with the same keys."""


def caption(chart: Chart) -> str:
    """The notes of a figure, in lines that fit below it."""
    text = ". ".join(note[:1].upper() + note[1:] for note in chart.notes)
    return "\n".join(textwrap.wrap(text + "." * bool(text), _LETTERS))


def total_height(chart: Chart) -> float:
    """Inches of a figure with its caption."""
    return chart.height + _caption_height(chart)


def _caption_height(chart: Chart) -> float:
    return (caption(chart).count("\n") + 2) * _LINE


def compose(chart: Chart, canvas: FigureBase) -> None:
    """Draws a figure with its title and its caption.

    Texts stand there as they are: a dollar sign begins no formula, and control characters, which
    an SVG must not have, are escaped.
    """
    ratios = [chart.height, _caption_height(chart)]
    body, below = canvas.subfigures(2, 1, height_ratios=ratios, squeeze=False)[:, 0]
    body.suptitle(chart.title, x=0.012, ha="left", fontsize=10.5, fontweight="bold")
    chart.draw(body)
    # A point's width from the left edge, in line with the title.
    below.text(0.012, 1.0, caption(chart), ha="left", va="top", fontsize=_CAPTION, color=GREY)
    _show_plainly(canvas)


def _show_plainly(canvas: FigureBase) -> None:
    from matplotlib.text import Text

    for text in canvas.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
        text.set_text(printable(text.get_text()))


def legend_columns(labels: Sequence[str]) -> int:
    """How many labels stand beside each other in a legend."""
    longest = max((len(label) for label in labels), default=0)
    fitting = int((WIDTH - 0.3) / ((longest + 7) * _LEGEND_LETTER))
    columns = max(1, min(fitting, len(labels)))
    # As few columns as the rows need look tidier.
    return math.ceil(len(labels) / math.ceil(len(labels) / columns)) if labels else 1


def legend_height(labels: Sequence[str]) -> float:
    """Inches of a legend below the axes."""
    return 0.1 + 0.2 * math.ceil(len(labels) / legend_columns(labels))


def add_legend(canvas: FigureBase, handles: Mapping[str, Artist]) -> None:
    """A legend below all axes."""
    canvas.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=legend_columns(list(handles)),
        handlelength=3.2,
    )


def handle(style: RowStyle, *, line: bool = True) -> Artist:
    """The sample of a style in a legend."""
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
    """A line with its band and a few markers, which those of other lines do not hide.

    Args:
        place, among: which of how many lines it is.
        within: the least and the greatest value that there can be.
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
    """The area of a band, the paler the more there are; of a share no further than it can be."""
    alpha = min(0.14, 0.56 / among)
    low, high = (np.clip(end, *(within or (None, None))) for end in (band.low, band.high))
    axes.fill_between(x, low, high, color=style.colour, alpha=alpha, linewidth=0)


def limits(bands: Sequence[Band]) -> tuple[float, float]:
    """Limits that hold the means, and of the bands as much as leaves them readable.

    A wide band does not flatten the means: beyond 0.6 of their span it is cut.
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
    """That bands are cut by `limits`, where some are."""
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


def seeds_note(counts: Sequence[int], what: str) -> list[str]:
    """How many runs stand behind some rows, and what that means for their intervals.

    Args:
        what: how an interval is drawn, such as `bands`.
    """
    numbers = sorted(set(counts))
    listed = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    if numbers[-1] == 1:
        return [f"one seed each, so there are no {what}"]
    notes = [f"means with 95 % Student t {what} over {listed} seeds"]
    if numbers[0] == 1:
        notes.append(f"rows of one seed have no {what}")
    return notes


def estimate_fields(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """A fitted parameter and the ends of its interval, for records; None where none was fitted."""
    if estimate is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
