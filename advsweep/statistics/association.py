"""Association of two quantities: correlations, ratios of means and spreads, and shares of runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy as sp
from numpy.typing import ArrayLike

from advsweep.errors import FitError, counted
from advsweep.statistics.intervals import LEVEL, ROUNDING, Estimate, as_pairs

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


def correlation_interval(r: float, n: int) -> tuple[float, float]:
    """Return Fisher's interval of a correlation, tanh(artanh r ± z/√(n-3)).

    Returns:
        NaN for n < 4; ±1 has an interval without width.
    """
    if n < 4 or math.isnan(r):
        return math.nan, math.nan
    if abs(r) >= 1:
        return r, r
    half = float(sp.special.ndtri((1 + LEVEL) / 2)) / math.sqrt(n - 3)
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
    return float(2 * sp.special.ndtr(-abs(z)))


def rank_correlation(x: ArrayLike, y: ArrayLike, seed: int = 0) -> RankCorrelation:
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
        AdvsweepError: not two lists of the same length.
    """
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
        half = float(sp.special.ndtri((1 + LEVEL) / 2)) * error
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


_ROUNDING = 1e-9  # relative spread below which ratios of spreads mean nothing


def ratio_of_means(a: Mapping[int, float], b: Mapping[int, float]) -> Estimate:
    """Estimate mean(a) / mean(b) with Fieller's interval.

    It holds the ratios ρ for which the t-test of a - ρ b finds no difference from 0 (Fieller,
    1954): paired by seed if they share two or more, or else of two samples, with the degrees of
    freedom of the smaller one.

    Args:
        a, b: the value of each seed. Values that are not finite count as missing.

    Returns:
        An interval of NaN if it has no ends: for fewer than two seeds, and where mean(b) is not
        clearly different from 0.
    """
    a, b = _finite(a), _finite(b)
    shared = sorted(a.keys() & b.keys())
    if len(shared) > 1:
        of_a, of_b = (np.array([values[seed] for seed in shared]) for values in (a, b))
        cov = np.cov(of_a, of_b) / len(shared)
        aa, ab, bb, df = cov[0, 0], cov[0, 1], cov[1, 1], len(shared) - 1
    else:
        of_a, of_b = (np.array(list(values.values())) for values in (a, b))
        df = min(of_a.size, of_b.size) - 1
        if df < 1:
            both = of_a.size and of_b.size and of_b.mean()
            return Estimate(
                float(of_a.mean() / of_b.mean()) if both else math.nan, *(math.nan,) * 2
            )
        aa, ab, bb = of_a.var(ddof=1) / of_a.size, 0.0, of_b.var(ddof=1) / of_b.size
    x, y = float(of_a.mean()), float(of_b.mean())
    t2 = float(sp.special.stdtrit(df, (1 + LEVEL) / 2)) ** 2
    # (x - ρ y)² = t² Var(a - ρ b), a quadratic equation in ρ.
    square, middle, rest = y * y - t2 * bb, x * y - t2 * ab, x * x - t2 * aa
    # mean(b) may be 0: the ratios that fit have no end, or lie outside of two.
    if square <= 0:
        return Estimate(x / y if y else math.nan, math.nan, math.nan)
    root = math.sqrt(max(middle * middle - square * rest, 0.0))
    return Estimate(x / y, (middle - root) / square, (middle + root) / square)


class SpreadRatio(NamedTuple):
    """The standard deviation of a over that of b, over seeds.

    Attributes:
        low, high: the ends of its interval.
        p_value: two-sided p of the hypothesis that they are equal.
        n: number of pairs; without pairs the size of the smaller sample.
        paired: whether seeds are paired.
    """

    value: float
    low: float
    high: float
    p_value: float
    n: int
    paired: bool


def ratio_of_spreads(a: Mapping[int, float], b: Mapping[int, float]) -> SpreadRatio:
    """Compare two standard deviations over seeds.

    If they share three seeds or more it is the test of Pitman and Morgan (1939): variances are
    equal if sums and differences of the pairs are uncorrelated. With r the correlation of the
    pairs, w = s_a²/s_b² and K = 1 + 2 (1 - r²) t²/(n-2), the interval of the variances' ratio is
    w (K ± √(K² - 1)). Otherwise it is the F test. Both are exact for normal values and sensitive
    to heavy tails; Levene's test is less so, but finds next to nothing with the three to five
    seeds that sweeps have.

    Args:
        a, b: the value of each seed. Values that are not finite count as missing.

    Returns:
        NaN for too few seeds, or where one of them does not vary.
    """
    a, b = _finite(a), _finite(b)
    shared = sorted(a.keys() & b.keys())
    paired = len(shared) > 2
    of_a = np.array([a[s] for s in shared] if paired else list(a.values()))
    of_b = np.array([b[s] for s in shared] if paired else list(b.values()))
    n = min(of_a.size, of_b.size)
    nothing = SpreadRatio(math.nan, math.nan, math.nan, math.nan, n, paired)
    if n < 2:
        return nothing
    s_a, s_b = float(of_a.std(ddof=1)), float(of_b.std(ddof=1))
    if min(s_a, s_b) <= _ROUNDING * float(np.abs(np.concatenate([of_a, of_b])).max()):
        return nothing
    w = (s_a / s_b) ** 2
    if not paired:
        df = of_a.size - 1, of_b.size - 1
        tails = (1 - LEVEL) / 2, (1 + LEVEL) / 2
        low, high = (w / float(sp.special.fdtri(*df, tail)) for tail in reversed(tails))
        below = float(sp.special.fdtr(*df, w))
        p_value = 2 * min(below, 1 - below)
        return SpreadRatio(math.sqrt(w), math.sqrt(low), math.sqrt(high), p_value, n, paired)
    r = float(np.clip(np.corrcoef(of_a, of_b)[0, 1], -1, 1))
    t = float(sp.special.stdtrit(n - 2, (1 + LEVEL) / 2))
    k = 1 + 2 * (1 - r * r) * t * t / (n - 2)
    side = math.sqrt(k * k - 1)
    statistic = (s_a**2 - s_b**2) * math.sqrt(n - 2) / (2 * s_a * s_b)
    error = math.sqrt(max(1 - r * r, 0.0))
    p_value = (
        float(2 * sp.special.stdtr(n - 2, -abs(statistic) / error)) if error else float(w == 1)
    )
    ends = math.sqrt(w * (k - side)), math.sqrt(w * (k + side))
    return SpreadRatio(math.sqrt(w), *ends, p_value, n, paired)


def fisher_p_value(hits: int, n: int, other_hits: int, other_n: int) -> float:
    """Return the two-sided p of Fisher's exact test that two shares are equal.

    It is the sum over all tables with the same margins that are at most as probable as the
    observed one. Without a run in a sample it is 1.
    """
    total = hits + other_hits

    def weight(k: int) -> int:
        return math.comb(n, k) * math.comb(other_n, total - k)

    tables = range(max(0, total - other_n), min(n, total) + 1)
    # Integers: equally probable tables are recognised exactly.
    observed = weight(hits)
    return sum(weight(k) for k in tables if weight(k) <= observed) / math.comb(n + other_n, total)


def difference_of_shares(hits: int, n: int, other_hits: int, other_n: int) -> Estimate:
    """Estimate hits/n - other_hits/other_n, with the interval from Wilson's (Newcombe, 1998).

    Method 10: with the shares p and q and their Wilson intervals (l, u) and (l', u') it is
    p - q - √((p-l)² + (u'-q)²) to p - q + √((u-p)² + (q-l')²).

    Returns:
        NaN if a sample is empty.
    """
    if not n or not other_n:
        return Estimate(math.nan, math.nan, math.nan)
    # Wald's interval has no width at 0 or n hits, which sweeps often have.
    z = float(sp.special.ndtri((1 + LEVEL) / 2))
    p, q = hits / n, other_hits / other_n
    (l_p, u_p), (l_q, u_q) = _wilson(p, n, z), _wilson(q, other_n, z)
    low, high = math.hypot(p - l_p, u_q - q), math.hypot(u_p - p, q - l_q)
    return Estimate(p - q, p - q - low, p - q + high)


def _wilson(share: float, n: int, z: float) -> tuple[float, float]:
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return middle - half, middle + half


def _finite(values: Mapping[int, float]) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if math.isfinite(value)}
