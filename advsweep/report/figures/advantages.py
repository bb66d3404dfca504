"""Figures of estimators without training: masses over the solve rate, and recorded rollouts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from advsweep.errors import ReportError
from advsweep.report.figures import chart
from advsweep.report.figures.style import MOST_STYLES, choose_styles

NUMBERS = {
    "no_gradient": "groups without a gradient",
    "m_S": "m_S: mass of successes",
    "m_F": "m_F: mass of failures",
    "cosine_grpo": "cosine with GRPO",
    "effective_prompts": "effective prompts",
    "weight_variance": "variance of weights",
    "sign_ratio": "sign ratio",
    "largest": "largest |A|",
}
"""The numbers of a replay, and the title of the panel of each."""

_MASSES = ("m_S", "m_F", "m_S + m_F", "m_S / m_F")
# The axis is logarithmic if the largest number is more than so many times the lower quartile.
_WIDE = 8.0
_MOST_POINTS = 60
# The axis of ratios is logarithmic if a ratio is further from 1 than the first factor; it ends at
# the second.
_FAR, _FARTHEST = 10.0, 100.0


def draw_masses(
    curves: Mapping[str, Sequence[tuple[float, Sequence[float]]]], title: str
) -> chart.Chart:
    """Draw m_S, m_F, their sum and their ratio over the solve rate, as in FADE's Figure 2.

    Args:
        curves: by estimator the solve rates, and the four numbers at each.
    """
    styles = dict(zip(curves, choose_styles(list(curves), list(curves)), strict=True))
    panels = []
    for place, name in enumerate(_MASSES):
        series = [
            chart.Series(
                label,
                styles[label],
                [rate for rate, _ in curve],
                [own[place] if math.isfinite(own[place]) else math.nan for _, own in curve],
                chart.LINE,
            )
            for label, curve in curves.items()
        ]
        values = [v for own in series for v in own.y if math.isfinite(v)]
        axis = _ratio_axis(values) if name == _MASSES[-1] else {"y_limits": _padded(0.0, values)}
        panels.append(
            chart.Panel(
                title=name,
                series=series,
                x_label="solve rate p",
                x_limits=(-0.02, 1.02),
                height=2.6,
                **axis,
            )
        )
    return chart.Chart(title=title, notes=[], records=[], panels=panels, columns=2)


def _padded(mark: float, values: Sequence[float]) -> tuple[float, float]:
    """Return limits that contain the values and a mark."""
    low, high = min([mark, *values]), max([mark, *values])
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin


def _ratio_axis(values: Sequence[float]) -> dict[str, Any]:
    """Return an axis with a line at 1, where weights are balanced.

    A logarithmic axis leaves out ratios of 0 and less, which push successes down.
    """
    guides = {"guides": [("y", 1.0)]}
    positive = [value for value in values if value > 0]
    low, high = min([1.0, *positive]), max([1.0, *positive])
    if max(high, 1 / low) <= _FAR:
        return {**guides, "y_limits": _padded(0.0, [*values, 1.0])}
    ends = (max(low, 1 / _FARTHEST) / 1.3, min(high, _FARTHEST) * 1.3)
    return {**guides, "y_scale": "log", "y_limits": ends}


def draw_replay(
    title: str,
    note: str,
    numbers: Mapping[str, Mapping[str, Sequence[float]]],
    x: Sequence[float],
    x_label: str,
) -> chart.Chart:
    """Draw a line per estimator over steps or solve rates.

    Args:
        numbers: by estimator the `NUMBERS`, one for each of `x`.

    Raises:
        ReportError: there are more estimators than lines can be told apart.
    """
    labels = list(numbers)
    if len(labels) > MOST_STYLES:
        raise ReportError(
            f"expected at most {MOST_STYLES} estimators for a figure of lines, got "
            f"{len(labels)}; choose some with --estimators"
        )
    styles = dict(zip(labels, choose_styles(labels, labels), strict=True))
    width = step_ranges(len(x))
    panels = []
    for name, title_of in NUMBERS.items():
        series = [
            chart.Series(
                label,
                styles[label],
                _ranges(x, width),
                _ranges(values[name], width, greatest=name == "largest"),
                chart.JOINED,
            )
            for label, values in numbers.items()
        ]
        limits, threshold = _value_axis(name, [value for own in series for value in own.y])
        panels.append(
            chart.Panel(
                title=title_of,
                series=series,
                x_label=x_label,
                y_limits=limits,
                threshold=threshold,
                guides=[("y", 1.0)] if name == "sign_ratio" else (),
                height=1.9,
            )
        )
    return chart.Chart(title=title, notes=[note], records=[], panels=panels, columns=2)


def step_ranges(steps: int) -> int:
    """Return how many steps a point of a line is the mean of."""
    return math.ceil(steps / _MOST_POINTS)


def _ranges(values: Sequence[float], width: int, *, greatest: bool = False) -> list[float]:
    """Return the means, or the greatest, of ranges of values, of those that are finite."""
    found = []
    for start in range(0, len(values), width):
        known = [v for v in values[start : start + width] if math.isfinite(v)]
        one = max(known, default=0.0) if greatest else math.fsum(known) / max(len(known), 1)
        found.append(one if known else math.nan)
    return found


def _value_axis(name: str, values: Sequence[float]) -> tuple[tuple[float, float], float | None]:
    """Return chart.limits, and the threshold above which the axis is logarithmic."""
    known = [value for value in values if math.isfinite(value)]
    if name == "no_gradient":
        return (-0.04, 1.04), None
    if name == "cosine_grpo":
        return (min([0.0, *known]) - 0.06, 1.06), None
    sizes = sorted(abs(value) for value in known if value)
    if not sizes or sizes[-1] <= _WIDE * sizes[len(sizes) // 4]:
        return _padded(0.0, known), None
    # Zeros, and a few numbers that are much larger than the rest.
    threshold = 10.0 ** math.floor(math.log10(sizes[len(sizes) // 4]))
    low = min(known)
    return (0.8 * low if low > 0 else low - 0.3 * threshold, 1.3 * max(known)), threshold
