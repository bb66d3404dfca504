"""Gradient masses over the solve rate, as in FADE (arXiv:2607.01490), Figure 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from advsweep.report.figures.chart import RC_PARAMS, WIDTH, add_legend, legend_height
from advsweep.report.figures.style import COLOURS, house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The axis of ratios is logarithmic if a ratio is further from 1 than the first factor; it ends at
# the second.
_WIDE, _WIDEST = 10.0, 100.0
_RATIO = "$m_S\\,/\\,m_F$"


@dataclass(frozen=True, kw_only=True)
class MassCurve:
    """The masses of one estimator.

    Attributes:
        label: its name in the figure.
        rates: solve rates p, ascending.
        success, failure: m_S and m_F at each rate.
        total, ratio: m_S + m_F and m_S / m_F; the figure leaves non-finite ratios out.
    """

    label: str
    rates: Sequence[float]
    success: Sequence[float]
    failure: Sequence[float]
    total: Sequence[float]
    ratio: Sequence[float]


class _LineStyle(NamedTuple):
    """The colour, dashes and width of a line."""

    colour: str
    dashes: tuple[float, ...]
    width: float


_STROKES: tuple[tuple[tuple[float, ...], float], ...] = (
    ((), 2.8),
    ((4, 1.5), 2.2),
    ((1, 1.2), 2.0),
    ((6, 1.5, 1, 1.5), 1.6),
)
_SUM = _LineStyle("#000000", (1, 3), 1.2)


def _line_style(i: int) -> _LineStyle:
    """Chooses strokes of different width and density, so that equal curves are all visible."""
    return _LineStyle(COLOURS[i % len(COLOURS)], *_STROKES[i % len(_STROKES)])


def draw_masses(
    curves: Sequence[MassCurve], *, title: str, compare: bool = False, points: bool = False
) -> Figure:
    """Draws m_S, m_F, their sum and their ratio over p.

    Args:
        curves: one or more curves.
        title: the title above the figure.
        compare: draw all curves in the same axes, one for each quantity; otherwise each curve has
            a row, with the masses in the first axes and the ratio in the second.
        points: mark the values, for rates that have no others between them.
    """
    with house_style(RC_PARAMS):
        return (_overlaid if compare else _in_rows)(curves, title, points)


def _in_rows(curves: Sequence[MassCurve], title: str, points: bool) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.0 + 2.6 * len(curves)), layout="constrained")
    figure.suptitle(title)
    rows = figure.subplots(len(curves), 2, squeeze=False, sharex=True)
    for curve, (masses, ratio) in zip(curves, rows, strict=True):
        _line(masses, curve.rates, curve.success, "$m_S$", _line_style(0), points)
        _line(masses, curve.rates, curve.failure, "$m_F$", _line_style(1), points)
        _line(masses, curve.rates, curve.total, "$m_S + m_F$", _SUM, points)
        _line(ratio, curve.rates, curve.ratio, _RATIO, _line_style(0), points)
        masses.set_title(curve.label, loc="left")
        masses.set_ylabel("mass per rollout")
        ratio.set_ylabel(_RATIO)
        _fit(masses, [*curve.success, *curve.failure, *curve.total])
        _fit_ratio(ratio, curve.ratio)
    for axes in rows[-1]:
        axes.set_xlabel("solve rate $p$")
    figure.legend(
        *rows[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    return figure


def _overlaid(curves: Sequence[MassCurve], title: str, points: bool) -> Figure:
    from matplotlib.figure import Figure

    height = 6 + legend_height([curve.label for curve in curves])
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.suptitle(title)
    panels = list(figure.subplots(2, 2, sharex=True).flat)
    quantities = {
        "$m_S$": [curve.success for curve in curves],
        "$m_F$": [curve.failure for curve in curves],
        "$m_S + m_F$": [curve.total for curve in curves],
        _RATIO: [curve.ratio for curve in curves],
    }
    for axes, (name, lines) in zip(panels, quantities.items(), strict=True):
        axes.set_title(name)
        for i, (curve, values) in enumerate(zip(curves, lines, strict=True)):
            _line(axes, curve.rates, values, curve.label, _line_style(i), points)
        everything = [value for values in lines for value in values]
        (_fit_ratio if name == _RATIO else _fit)(axes, everything)
    for axes in panels[2:]:
        axes.set_xlabel("solve rate $p$")
    for axes in panels[::2]:
        axes.set_ylabel("per rollout")
    handles, labels = panels[0].get_legend_handles_labels()
    add_legend(figure, dict(zip(labels, handles, strict=True)))
    return figure


def _line(
    axes: Axes,
    rates: Sequence[float],
    values: Sequence[float],
    label: str,
    style: _LineStyle,
    points: bool,
) -> None:
    axes.plot(
        rates,
        [value if math.isfinite(value) else math.nan for value in values],
        color=style.colour,
        linewidth=style.width,
        linestyle=(0, style.dashes) if style.dashes else "-",
        marker="o" if points else None,
        markersize=4,
        label=label,
        zorder=3 - style.width / 10,  # narrow lines on top
    )


def _fit(axes: Axes, values: Sequence[float]) -> None:
    """Sets limits that contain the values and 0."""
    _set_limits(axes, min([0.0, *values]), max([0.0, *values]))
    _style_axes(axes)


def _fit_ratio(axes: Axes, values: Sequence[float]) -> None:
    """Sets limits that contain the ratios and 1, where a line marks balanced weights.

    For ratios below 1/10 or above 10 the axis is logarithmic from 1/100 to 100. It leaves out
    ratios of 0 and less, which push successes down.
    """
    _style_axes(axes)
    axes.axhline(1.0, color="#555555", linewidth=0.8, linestyle=":", zorder=0)
    finite = [value for value in values if math.isfinite(value)]
    positive = [value for value in finite if value > 0]
    low, high = min([1.0, *positive]), max([1.0, *positive])
    if not finite:
        _set_limits(axes, 0.0, 2.0)
        axes.text(0.5, 1.25, "undefined: $m_F = 0$", ha="center", va="center", color="#555555")
    elif max(high, 1 / low) > _WIDE:
        axes.set_yscale("log")
        axes.set_ylim(max(low, 1 / _WIDEST) / 1.3, min(high, _WIDEST) * 1.3)
    else:
        _set_limits(axes, min([0.0, *finite]), 1.1 * high)


def _set_limits(axes: Axes, low: float, high: float) -> None:
    """Sets limits with a margin below, too, as a line at 0 would lie on the frame."""
    margin = 0.04 * (high - low) or 1.0
    axes.set_ylim(low - margin, high + margin)


def _style_axes(axes: Axes) -> None:
    axes.set_xlim(-0.02, 1.02)
    axes.grid(color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
