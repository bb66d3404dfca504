"""What estimators would do with recorded rollouts: dots of all steps, or lines over parts."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from advsweep.errors import ReportError
from advsweep.report.figures.chart import (
    GREY,
    RC_PARAMS,
    add_legend,
    legend_height,
    show_plainly,
)
from advsweep.report.figures.style import COLOURS, MOST_STYLES, choose_styles, house_style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

PANELS: dict[str, tuple[str, ...]] = {
    "groups without\na gradient": ("no_gradient",),
    "masses m_S (dot)\nand m_F (ring)": ("m_S", "m_F"),
    "sign ratio": ("sign_ratio",),
    "effective\nprompts": ("effective_prompts",),
    "variance\nof weights": ("weight_variance",),
    "cosine with\nGRPO": ("cosine_grpo",),
    "largest |A|": ("largest",),
}
"""Title and numbers of each panel of dots."""

LINES = {
    "no_gradient": "groups without a gradient",
    "m_S": "m_S: mass of successes",
    "m_F": "m_F: mass of failures",
    "cosine_grpo": "cosine with GRPO",
    "effective_prompts": "effective prompts",
    "weight_variance": "variance of weights",
    "sign_ratio": "sign ratio",
    "largest": "largest |A|",
}
"""Title of each panel of lines."""

# The axis is logarithmic if the largest number is more than so many times the lower quartile.
_WIDE = 8.0
_MOST_POINTS = 60
_ROW, _NOTE = 0.21, 0.4  # inches


@dataclass(frozen=True, kw_only=True)
class ReplayFigure:
    """Numbers of a figure.

    Attributes:
        title, note: the texts above and below.
        numbers: by estimator the numbers by name, one for each of `x`, or one.
        x: steps or solve rates; None for all steps together.
        x_label: what `x` is.
    """

    title: str
    note: str
    numbers: Mapping[str, Mapping[str, Sequence[float]]]
    x: Sequence[float] | None = None
    x_label: str = ""


def draw_replay(data: ReplayFigure) -> Figure:
    """Draws a row of dots per estimator, or a line per estimator if there are several numbers.

    Raises:
        ReportError: there are more estimators than lines can be told apart.
    """
    if data.x is not None and len(data.numbers) > MOST_STYLES:
        raise ReportError(
            f"expected at most {MOST_STYLES} estimators for a figure of lines, got "
            f"{len(data.numbers)}; choose some with --estimators"
        )
    with house_style(RC_PARAMS):
        figure = _dots(data) if data.x is None else _lines(data, data.x)
        show_plainly(figure)
    return figure


def _dots(data: ReplayFigure) -> Figure:
    from matplotlib.figure import Figure

    rows = list(data.numbers)
    height = 1.2 + _ROW * len(rows)
    figure = Figure(figsize=(12.5, height + _NOTE), layout="constrained")
    panels = _body(figure, data, height, 200).subplots(1, len(PANELS), sharey=True)
    for number, (axes, (title, names)) in enumerate(zip(panels, PANELS.items(), strict=True)):
        axes.set_title(title, fontsize=8.5)
        for row in range(0, len(rows), 2):
            axes.axhspan(row - 0.5, row + 0.5, color="#f4f4f4", linewidth=0, zorder=0)
        axes.grid(visible=False, axis="y")
        for i, name in enumerate(names):
            values = [data.numbers[label][name][0] for label in rows]
            colour = COLOURS[i]
            axes.plot(
                values,
                range(len(rows)),
                "o",
                markersize=5 if i == 0 else 6.5,
                markerfacecolor=colour if i == 0 else "none",
                markeredgecolor=colour,
                markeredgewidth=0 if i == 0 else 1.3,
                clip_on=False,
                zorder=3,
            )
        _scale(axes, names, [data.numbers[label][n][0] for label in rows for n in names], "x")
        axes.tick_params(axis="y", length=0)
        if number == 0:
            axes.set_yticks(range(len(rows)), rows)
            axes.set_ylim(len(rows) - 0.5, -0.5)
    return figure


def _lines(data: ReplayFigure, x: Sequence[float]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    labels = list(data.numbers)
    height = 7.4 + legend_height(labels)
    figure = Figure(figsize=(8, height + _NOTE), layout="constrained")
    body = _body(figure, data, height, 125)
    panels = list(body.subplots(4, 2, sharex=True).flat)
    width = step_ranges(len(x))
    handles: dict[str, Artist] = {}
    styles = choose_styles(labels, labels)
    for axes, (name, title) in zip(panels, LINES.items(), strict=True):
        axes.set_title(title)
        everything = []
        for i, (label, style) in enumerate(zip(labels, styles, strict=True)):
            values = _ranges(data.numbers[label][name], width, greatest=name == "largest")
            everything += values
            line = {
                "linestyle": style.linestyle,
                "linewidth": 1.8 - 0.5 * i / len(labels),
                "markersize": 4.2 if len(values) <= 20 else 0,
            }
            axes.plot(_ranges(x, width), values, **style.points, **line, zorder=3 + i / 100)
            handles[label] = Line2D([], [], **style.points, **{**line, "markersize": 4.6})
        _scale(axes, (name,), everything, "y")
    for axes in panels[-2:]:
        axes.set_xlabel(data.x_label)
    add_legend(body, handles)
    return figure


def _body(figure: Figure, data: ReplayFigure, height: float, letters: int) -> FigureBase:
    """Writes the title and the note; returns the part of the figure between them."""
    body, below = figure.subfigures(2, 1, height_ratios=[height, _NOTE], squeeze=False)[:, 0]
    body.suptitle(data.title, x=0.012, ha="left", fontsize=10.5, fontweight="bold")
    note = "\n".join(textwrap.wrap(data.note, letters))
    below.text(0.012, 0.95, note, ha="left", va="top", fontsize=7.5, color=GREY)
    found: FigureBase = body
    return found


def step_ranges(steps: int) -> int:
    """Returns how many steps a point of a line is the mean of."""
    return math.ceil(steps / _MOST_POINTS)


def _ranges(values: Sequence[float], width: int, *, greatest: bool = False) -> list[float]:
    """Returns the means, or the greatest, of ranges of values, of those that are finite."""
    found = []
    for start in range(0, len(values), width):
        known = [v for v in values[start : start + width] if math.isfinite(v)]
        one = max(known, default=0.0) if greatest else math.fsum(known) / max(len(known), 1)
        found.append(one if known else math.nan)
    return found


def _scale(axes: Axes, names: Sequence[str], values: Sequence[float], which: str) -> None:
    """Sets the scale and limits of the axis of values."""
    axis: Any = getattr(axes, f"{which}axis")
    set_limits: Any = getattr(axes, f"set_{which}lim")
    known = [value for value in values if math.isfinite(value)]
    if "no_gradient" in names:
        set_limits(-0.04, 1.04)
        return
    if "cosine_grpo" in names:
        set_limits(min([0.0, *known]) - 0.06, 1.06)
        return
    if "sign_ratio" in names:
        mark: Any = axes.axvline if which == "x" else axes.axhline
        mark(1.0, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
    sizes = sorted(abs(value) for value in known if value)
    if sizes and sizes[-1] > _WIDE * sizes[len(sizes) // 4]:
        from matplotlib.ticker import FuncFormatter, NullFormatter

        # Zeros, and a few numbers that are much larger than the rest.
        threshold = 10.0 ** math.floor(math.log10(sizes[len(sizes) // 4]))
        getattr(axes, f"set_{which}scale")("symlog", linthresh=threshold, linscale=0.5)
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
        low = min(known)
        set_limits(0.8 * low if low > 0 else low - 0.3 * threshold, 1.3 * max(known))
        return
    low, high = min([0.0, *known]), max([0.0, *known])
    margin = 0.05 * (high - low) or 0.5
    set_limits(low - margin, high + margin)
