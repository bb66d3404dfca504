"""The spread of several methods that ran the same seeds, estimated from all of them together.

Three seeds determine the spread of a difference within a factor of six, so that a method may look
precise by luck. Methods that share seeds and settings have residuals of about the same size, and a
randomised block ANOVA with the seeds as blocks (Fisher, 1935) estimates it from all of them:

    y[method, seed] = method + seed + residual,   s² = Σ residual² / ((methods - 1)(seeds - 1))

The difference of two methods' means over n seeds has the standard error s √(2/n), and its t has
(methods - 1)(seeds - 1) degrees of freedom. Every method's residuals enter once, the baseline's
too, so that s² and its degrees of freedom are exact although the differences to one baseline are
correlated. Pooled variances of these differences would need smaller degrees of freedom.

A method whose residuals spread otherwise does not belong in the estimate. The F test of its own
residuals against those of the other methods, at 5 % on each side, sets it apart. The differences
of a method with a larger spread then have their own; those of one with a smaller spread keep that
of the others, which is larger. `docs/statistics.md` has the levels of this test and of others,
from `benchmarks/spread_levels.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import fdtr

from advsweep.errors import AdvsweepError
from advsweep.statistics.samples import ROUNDING

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

_TAIL = 0.05
LEAST_METHODS = 3
"""Two methods have one difference, whose own spread is all that there is."""


@dataclass(frozen=True)
class PooledSpread:
    """The standard deviation of the difference of two runs on one seed, from several methods.

    Attributes:
        sd: √2 times that of a residual.
        df: its degrees of freedom.
    """

    sd: float
    df: int


@dataclass(frozen=True)
class BlockSpread:
    """The common spread of methods that ran the same seeds.

    Attributes:
        pooled: the spread of their differences.
        wider: for each method whether its own spread is larger than that of the others, so that
            `pooled` is not for its differences.
    """

    pooled: PooledSpread
    wider: Bool[np.ndarray, " methods"]


def pool_spread(values: ArrayLike) -> BlockSpread | None:
    """Return the common spread of methods that ran the same seeds.

    Args:
        values: [methods, seeds], finite. Methods with the same values are the same runs and
            count once.

    Returns:
        None for fewer than three methods or two seeds, or if fewer than two methods spread alike,
        or nothing varies but the seeds.

    Raises:
        AdvsweepError: the values are not a table.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2:
        raise AdvsweepError(f"expected a row of values for each method, got shape {table.shape}")
    if min(table.shape) < 2:
        return None
    distinct, places = np.unique(table, axis=0, return_inverse=True)
    if len(distinct) < LEAST_METHODS:
        return None
    # In this order: beside one of a much larger spread, all others look narrow.
    wider = _share_below(distinct) > 1 - _TAIL
    alike = distinct[~wider]
    kept = alike[_share_below(alike) >= _TAIL]
    if len(kept) < 2:
        return None
    df = (len(kept) - 1) * (kept.shape[1] - 1)
    sd = math.sqrt(2 * float(_squares(kept).sum()) / df)
    if sd <= ROUNDING * float(np.abs(kept).max()):
        return None
    return BlockSpread(PooledSpread(sd, df), wider[places.reshape(-1)])


def _squares(table: Float[np.ndarray, "methods seeds"]) -> Float[np.ndarray, " methods"]:
    """Return each method's sum of squared residuals."""
    centred = table - table.mean(axis=1, keepdims=True)
    squares: Float[np.ndarray, " methods"] = ((centred - centred.mean(axis=0)) ** 2).sum(axis=1)
    return squares


def _share_below(
    table: Float[np.ndarray, "methods seeds"],
) -> Float[np.ndarray, " methods"]:
    """Return the probability of a smaller spread than each method's own if it varied as the others.

    Two methods cannot be told apart: both get 1/2.

    The contrast of a method with the mean of the others is orthogonal to the residuals among the
    others, so that the sum of squares splits exactly, and the ratio has an F distribution.
    """
    methods, seeds = table.shape
    if methods < LEAST_METHODS:
        return np.full(methods, 0.5)
    squares = _squares(table)
    own = squares * methods / (methods - 1)
    others = np.maximum(squares.sum() - own, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = own * (methods - 2) / others
    below: Float[np.ndarray, " methods"] = fdtr(seeds - 1, (methods - 2) * (seeds - 1), ratio)
    return below
