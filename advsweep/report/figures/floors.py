"""Floors in figures: dotted lines without intervals and laws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from advsweep.report.figures.style import RowStyle
from advsweep.statistics.intervals import Band

if TYPE_CHECKING:
    from jaxtyping import Int
    from matplotlib.artist import Artist

    from advsweep.tasks.base import Floor


class FloorRow(NamedTuple):
    """A floor of the evaluated task.

    Attributes:
        parts: the floor and the evaluated problems; of each seed if seeds have their own.
    """

    label: str
    style: RowStyle
    parts: Sequence[tuple[Floor, Sequence[str]]]

    @property
    def help(self) -> str:
        return self.parts[0][0].help

    def band(self, ks: Int[np.ndarray, " points"]) -> Band:
        """Returns the mean over the problems of pass@k, at each k; it has no interval."""
        means = np.mean(
            [
                [floor.pass_at(int(k), problems).mean() for k in ks]
                for floor, problems in self.parts
            ],
            axis=0,
        )
        unknown = np.full(len(ks), np.nan)
        return Band(means, unknown, unknown, np.ones(len(ks), dtype=np.int64))


def dotted(style: RowStyle) -> dict[str, Any]:
    """Returns the properties of a floor's line for matplotlib."""
    return {**style.points, "linestyle": ":", "linewidth": 1.1, "markersize": 3.5}


def dotted_handle(style: RowStyle) -> Artist:
    """Returns the sample of a floor's line in a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **dotted(style))
