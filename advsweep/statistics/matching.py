"""Two curves read where one number is equal, such as diversity at equal pass@1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from advsweep.statistics.curves import value_at
from advsweep.statistics.intervals import as_pairs

# The longest line that is read from, as a share of the way from the start of a curve to the level.
# A straight line from the base model to the first evaluation beyond the level would say nothing
# of the curve between them.
MAX_SHARE = 0.5


@dataclass(frozen=True)
class Reading:
    """A curve read where it first reaches a level of x.

    Attributes:
        value: y there, on the straight line between the points before and after it. NaN where x
            starts above the level or never reaches it, and where the points are too far apart.
        gap: the distance in x between the two points; 0 at a point, NaN without a value.
    """

    value: float
    gap: float


@dataclass(frozen=True)
class MatchedPair:
    """Two curves read at the same level of x.

    Attributes:
        level: where they are read; NaN if a curve has no point.
    """

    level: float
    one: Reading
    other: Reading

    @property
    def difference(self) -> float:
        """The value of the one less that of the other; NaN where one of them has none."""
        return self.one.value - self.other.value

    @property
    def gap(self) -> float:
        """The larger gap of the two."""
        return max(self.one.gap, self.other.gap)


def match_curves(
    one: tuple[ArrayLike, ArrayLike],
    other: tuple[ArrayLike, ArrayLike],
    level: float | None = None,
) -> MatchedPair:
    """Read two curves where their x first reaches the same level.

    Curves of one training that only runs ahead of the other have the same y at the same x. What
    remains is not the speed of the training.

    Args:
        one, other: x and y of each curve, [points], in the order of the training. Points with NaN
            for either are left out.
        level: where to read them; by default the lower of the two ends, which is as far as both
            come.

    Raises:
        AdvsweepError: x and y are not two lists of numbers of the same length.
    """
    if level is None:
        level = min(_end_of(*one), _end_of(*other))
    return MatchedPair(level, read_at(*one, level), read_at(*other, level))


def read_at(x: ArrayLike, y: ArrayLike, level: float) -> Reading:
    """Read a curve where its x first reaches a level, as `value_at` does.

    Nothing is read from a line that is longer than `MAX_SHARE` of the way from the start of the
    curve to the level.
    """
    value = float(value_at(x, y, level))
    if math.isnan(value):
        return Reading(math.nan, math.nan)
    xs = _points(x, y)
    after = int(np.argmax(xs >= level))
    gap = 0.0 if xs[after] == level else float(xs[after] - xs[after - 1])
    if gap > MAX_SHARE * (level - xs[0]):
        return Reading(math.nan, math.nan)
    return Reading(value, gap)


def _points(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Return x of the points that have both numbers."""
    xs, ys = as_pairs(x, y)
    whole: np.ndarray = xs[~(np.isnan(xs) | np.isnan(ys))]
    return whole


def _end_of(x: ArrayLike, y: ArrayLike) -> float:
    xs = _points(x, y)
    return float(xs[-1]) if xs.size else math.nan
