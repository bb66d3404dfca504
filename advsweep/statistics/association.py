"""Association of two quantities: intervals of a correlation, and rank correlation."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from advsweep.errors import FitError, counted
from advsweep.statistics.samples import ROUNDING, as_pairs, check_share

if TYPE_CHECKING:
    from jaxtyping import Float

_ALL_ORDERS = 8  # largest number of points for which all orders are tried: 40,320
_DRAWS = 9_999  # number of random orders for more points


class RankCorrelation(NamedTuple):
    """Spearman's rank correlation.

    Attributes:
        low, high: the ends of its interval; NaN for fewer than five points and for ±1.
        p_value: two-sided, by permutation.
    """

    value: float
    low: float
    high: float
    p_value: float
    n: int


def correlation_interval(r: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return Fisher's interval of a correlation, tanh(artanh r ± z/√(n-3)).

    Returns:
        NaN for n < 4; ±1 has an interval without width.
    """
    check_share("level", level)
    if n < 4 or math.isnan(r):
        return math.nan, math.nan
    if abs(r) >= 1:
        return r, r
    half = float(ndtri((1 + level) / 2)) / math.sqrt(n - 3)
    return math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def correlation_p_value(r: float, n: int, bound: float) -> float:
    """Return the two-sided p of the hypothesis that a correlation is `bound`, by Fisher's z.

    Returns:
        NaN for n < 4.
    """
    if n < 4 or math.isnan(r):
        return math.nan
    if abs(r) >= 1 or abs(bound) >= 1:
        return float(r == bound)
    z = (math.atanh(r) - math.atanh(bound)) * math.sqrt(n - 3)
    return float(2 * ndtr(-abs(z)))


def rank_correlation(
    x: ArrayLike, y: ArrayLike, level: float = 0.95, seed: int = 0
) -> RankCorrelation:
    """Estimate Spearman's ρ: the correlation of the ranks, equal values sharing a mean rank.

    p is the share of all orders of y whose |ρ| is at least the observed one; above eight points
    it comes from 9,999 random orders and the observed one. Four points cannot reach .05: two of
    their 24 orders have |ρ| = 1. The interval is tanh(artanh ρ ± z √((1 + ρ²/2)/(n-3))) (Bonett
    and Wright, 2000, eq. 4).

    Args:
        x, y: [points]. Points with a value that is not finite are left out.
        seed: seed of the random orders.

    Raises:
        FitError: fewer than 3 points, or all points have the same x or y.
        AdvsweepError: not two lists of the same length, or the level is not in (0, 1).
    """
    check_share("level", level)
    all_x, all_y = as_pairs(x, y)
    whole = np.isfinite(all_x) & np.isfinite(all_y)
    of_x, of_y = _ranks(all_x[whole]), _ranks(all_y[whole])
    n = of_x.size
    if n < 3:
        raise FitError(f"{counted(n, 'point')}: a rank correlation needs at least 3")
    if not of_x.any() or not of_y.any():
        axis = "y" if of_x.any() else "x"
        raise FitError(f"all {n} points have the same {axis}, so that ranks tell nothing")
    rho = float(np.clip(of_x @ of_y, -1, 1))
    low = high = math.nan
    if n > 4 and abs(rho) < 1 - ROUNDING:
        error = math.sqrt((1 + rho**2 / 2) / (n - 3))
        half = float(ndtri((1 + level) / 2)) * error
        low, high = (math.tanh(math.atanh(rho) + side) for side in (-half, half))
    return RankCorrelation(rho, low, high, _permuted(of_x, of_y, abs(rho), seed), n)


def _ranks(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return centred ranks of unit length; zeros if all values are equal."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    ranks = mean_ranks[which] if values.size else values
    centred = ranks - ranks.mean() if values.size else ranks
    length = math.sqrt(float(centred @ centred))
    return centred / length if length else centred


def _permuted(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], observed: float, seed: int
) -> float:
    if x.size <= _ALL_ORDERS:
        orders = np.array(list(itertools.permutations(range(x.size))))
        return float((np.abs(y[orders] @ x) >= observed - ROUNDING).mean())
    rng = np.random.default_rng(seed)
    shuffled = rng.permuted(np.broadcast_to(y, (_DRAWS, y.size)), axis=1)
    return float(((np.abs(shuffled @ x) >= observed - ROUNDING).sum() + 1) / (_DRAWS + 1))
