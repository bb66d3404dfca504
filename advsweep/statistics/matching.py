"""Curves compared where they are equal in something: rollouts, tokens, seconds, or pass@1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from advsweep.statistics.samples import as_pairs

if TYPE_CHECKING:
    from jaxtyping import Float


def value_at(x: ArrayLike, y: ArrayLike, at: ArrayLike) -> Float[np.ndarray, "*places"]:
    """The value of y where a curve's x first reaches `at`, by linear interpolation.

    The points are in the order of training. A budget spent only grows; pass@1 also falls, so
    that a curve may pass the same value several times. The first time counts: it lies between
    the first point that is at or above `at` and the point before. For x that never falls
    this is plain interpolation, and of points with the same x the first counts.

    Args:
        x: [points], what is to be equal.
        y: [points]. A point that has NaN for x or y is left out.
        at: places, of any shape.

    Returns:
        NaN where x starts above `at` or never reaches it: nothing is extrapolated.

    Raises:
        AdvsweepError: x and y are not two lists of numbers of the same length.
    """
    xs, ys = as_pairs(x, y)
    known = ~(np.isnan(xs) | np.isnan(ys))
    xs, ys = xs[known], ys[known]
    places = np.asarray(at, dtype=np.float64)
    if not xs.size:
        return np.full(places.shape, np.nan)
    # Only a point above all before it can be the first at or above a place.
    highest = np.maximum.accumulate(xs)
    after = np.searchsorted(highest, places)
    reached = (after < xs.size) & (places >= xs[0])
    after = np.where(reached, after, 0)
    before = np.maximum(after - 1, 0)
    step = xs[after] - xs[before]
    share = np.where(step > 0, (places - xs[before]) / np.where(step > 0, step, 1.0), 0.0)
    return np.where(reached, ys[before] + share * (ys[after] - ys[before]), np.nan)
