"""What every figure of a sweep is: numbers of some runs, and a way to draw them."""

from __future__ import annotations

import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from advsweep.report.figures.looks import Look
from advsweep.report.figures.material import Curve, Material

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

WIDTH = 8.0
"""Inches that a figure is wide."""

STYLE: Mapping[str, Any] = {
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
    """

    metrics: tuple[str, ...] = ()
    smooth: int = 1
    x: str | None = None
    y: str | None = None
    k: int | None = None

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
    def collect(cls, material: Material, options: Options) -> Self:
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


def whole_height(chart: Chart) -> float:
    """Inches of a figure with its caption."""
    return chart.height + _caption_height(chart)


def _caption_height(chart: Chart) -> float:
    return (caption(chart).count("\n") + 2) * _LINE


def compose(chart: Chart, canvas: FigureBase) -> None:
    """Draws a figure with its title and its caption."""
    ratios = [chart.height, _caption_height(chart)]
    body, below = canvas.subfigures(2, 1, height_ratios=ratios, squeeze=False)[:, 0]
    body.suptitle(chart.title, x=0.012, ha="left", fontsize=10.5, fontweight="bold")
    chart.draw(body)
    # A point's width from the left edge, in line with the title.
    below.text(0.012, 1.0, caption(chart), ha="left", va="top", fontsize=_CAPTION, color=GREY)


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
        handlelength=2.6,
    )


def handle(look: Look, *, line: bool = True) -> Artist:
    """The sample of a look in a legend."""
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        color=look.colour,
        marker=look.marker,
        markersize=4.5,
        linestyle=look.linestyle if line else "none",
        linewidth=1.6,
    )


def draw_curve(axes: Axes, curve: Curve, look: Look, place: int, among: int) -> None:
    """A line with its band and a few markers, which those of other lines do not hide.

    Args:
        place, among: which of how many lines it is.
    """
    band = curve.band
    axes.fill_between(curve.steps, band.low, band.high, color=look.colour, alpha=0.13, linewidth=0)
    every = max(1, len(curve.steps) // 6)
    axes.plot(
        curve.steps,
        band.mean,
        color=look.colour,
        linestyle=look.linestyle,
        linewidth=1.4,
        marker=look.marker,
        markersize=4,
        markevery=(min(place * every // max(among, 1), len(curve.steps) - 1), every),
        solid_joinstyle="round",
    )


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
