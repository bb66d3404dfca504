"""Charts: what a figure shows, as records and as panels of lines, points and cells.

A figure's function makes a `Chart` from a store: the records of `advsweep plot --format csv`, and
panels that say what is drawn. `draw.write` draws any chart; the HTML page draws the same panels.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from advsweep.report.figures.style import RowStyle
from advsweep.statistics.intervals import LEVEL, Estimate

if TYPE_CHECKING:
    from jaxtyping import Float

Record = dict[str, Any]

_LETTERS = 135  # of a caption, to a line


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
JOINED = Mark("joined", line=None, size=5.0)
POINTS = Mark("points")
BANDED = Mark("banded", is_band=True)
FAINT = Mark("faint", size=4.0, alpha=0.4)
RING = Mark("ring", size=10.0, is_hollow=True)


@dataclass(frozen=True)
class Series:
    """Numbers of one row in a panel: y over x.

    Attributes:
        label: the row's label in the legend; empty for none.
        low, high, x_low, x_high: the ends of the intervals of y and of x; NaN for none.
    """

    label: str
    style: RowStyle
    x: Any
    y: Any
    mark: Mark = LINE
    low: Any = None
    high: Any = None
    x_low: Any = None
    x_high: Any = None


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A heat map: the cell of row i and column j is centred at (j, i).

    Attributes:
        values: [y, x], NaN for an empty cell.
        texts: what each cell says, by index of y and x; empty cells have none.
        candidates: the cells that may be the best.
        limits: the values at the ends of the colours, common to all panels.
        label: the label of the colour bar.
    """

    values: Float[np.ndarray, "y x"]
    texts: Mapping[tuple[int, int], str]
    candidates: Sequence[tuple[int, int]]
    limits: tuple[float, float]
    label: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Axes with series, or with the cells of a heat map.

    Attributes:
        rows: the labels of rows on the y axis, from top to bottom at 0, 1, ...
        x_ticks, y_ticks: places and texts; None for matplotlib's own.
        within: the least and the greatest possible value of y, where bands end.
        threshold: where the y axis turns from linear to logarithmic.
        guides: lines at a value of an axis, `x` or `y`.
        span: a shaded range of x.
        height: inches.
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


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure of some runs.

    Attributes:
        notes: sentences about the numbers, in the caption.
        make_records: makes the numbers as records with equal keys; for `records`, since some take
            seconds that a picture does not need.
        columns: the number of panels next to each other.
        name: the figure's name on the command line.
    """

    title: str
    panels: Sequence[Panel]
    notes: Sequence[str] = ()
    make_records: Callable[[], Sequence[Record]] = list
    columns: int = 1
    name: str = ""

    @cached_property
    def records(self) -> Sequence[Record]:
        """The numbers of the figure, with equal keys."""
        return self.make_records()

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


def means(frame: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Return the mean of `value`, its Student t interval and n, by some columns of a frame.

    Values that are not finite count as missing. The first column keeps its order.
    """
    first = pd.Categorical(frame[by[0]], frame[by[0]].unique())
    values = frame["value"].astype(float)  # an empty frame has objects
    known = values.where(np.isfinite(values))
    grouped = known.groupby([first, *(frame[name] for name in by[1:])], observed=True)
    found = grouped.agg(mean="mean", n="count", sd="std")
    half = stdtrit(found["n"] - 1.0, (1 + LEVEL) / 2) * found["sd"] / np.sqrt(found["n"])
    ends = {"mean": found["mean"], "low": found["mean"] - half, "high": found["mean"] + half}
    table = pd.DataFrame({**ends, "n": found["n"]}).rename_axis(list(by)).reset_index()
    return table.astype({by[0]: object})


def lines(
    frame: pd.DataFrame, styles: Mapping[str, RowStyle], x: str, mark: Mark = LINE
) -> list[Series]:
    """Return a series for each `row` of a frame of means over `x`."""
    return [
        Series(label, styles[label], own[x], own["mean"], mark, low=own["low"], high=own["high"])
        for label, own in frame.groupby("row", sort=False)
    ]


def grid_columns(panels: int) -> int:
    """Return the number of columns, at most three, that leaves few places empty."""
    return math.ceil(panels / math.ceil(panels / 3)) if panels != 3 else 2


def limits(
    series: Iterable[Series], within: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Return limits that contain the means, and the bands up to 0.6 of the means' span.

    A wider band is cut, as it would flatten the means.

    Args:
        within: the least and greatest possible value, past which there is only a margin; None
            without bounds.
    """
    series = list(series)
    means = np.concatenate([np.asarray(own.y, dtype=float) for own in series])
    ends = np.concatenate(
        [np.asarray(end) for own in series for end in (own.low, own.high) if end is not None]
    )
    means, ends = means[np.isfinite(means)], ends[np.isfinite(ends)]
    if not means.size:
        return 0.0, 1.0
    low, high = float(means.min()), float(means.max())
    span = (high - low) or 0.1 * abs(high) or 1.0
    low = max(low - 0.6 * span, float(ends.min(initial=low)))
    high = min(high + 0.6 * span, float(ends.max(initial=high)))
    if within is not None:
        low = max(low, within[0])
        high = min(high, within[1])
    margin = 0.05 * (high - low) or 0.5 * span
    return low - margin, high + margin


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
