"""Ratios over seeds: of two means, of two standard deviations, and shares of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import fdtr, fdtri, ndtri, stdtr, stdtrit

from advsweep.statistics.intervals import Estimate
from advsweep.statistics.samples import check_share

_ROUNDING = 1e-9


def ratio_of_means(a: Mapping[int, float], b: Mapping[int, float], level: float = 0.95) -> Estimate:
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
    check_share("level", level)
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
    t2 = float(stdtrit(df, (1 + level) / 2)) ** 2
    # (x - ρ y)² = t² Var(a - ρ b), a quadratic equation in ρ.
    square, middle, rest = y * y - t2 * bb, x * y - t2 * ab, x * x - t2 * aa
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


def ratio_of_spreads(
    a: Mapping[int, float], b: Mapping[int, float], level: float = 0.95
) -> SpreadRatio:
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
    check_share("level", level)
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
        tails = (1 - level) / 2, (1 + level) / 2
        low, high = (w / float(fdtri(*df, tail)) for tail in reversed(tails))
        below = float(fdtr(*df, w))
        p_value = 2 * min(below, 1 - below)
        return SpreadRatio(math.sqrt(w), math.sqrt(low), math.sqrt(high), p_value, n, paired)
    r = float(np.clip(np.corrcoef(of_a, of_b)[0, 1], -1, 1))
    t = float(stdtrit(n - 2, (1 + level) / 2))
    k = 1 + 2 * (1 - r * r) * t * t / (n - 2)
    side = math.sqrt(k * k - 1)
    statistic = (s_a**2 - s_b**2) * math.sqrt(n - 2) / (2 * s_a * s_b)
    error = math.sqrt(max(1 - r * r, 0.0))
    p_value = float(2 * stdtr(n - 2, -abs(statistic) / error)) if error else float(w == 1)
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


def difference_of_shares(
    hits: int, n: int, other_hits: int, other_n: int, level: float = 0.95
) -> Estimate:
    """Estimate hits/n - other_hits/other_n, with the interval from Wilson's (Newcombe, 1998).

    Method 10: with the shares p and q and their Wilson intervals (l, u) and (l', u') it is
    p - q - √((p-l)² + (u'-q)²) to p - q + √((u-p)² + (q-l')²).

    Returns:
        NaN if a sample is empty.
    """
    check_share("level", level)
    if not n or not other_n:
        return Estimate(math.nan, math.nan, math.nan)
    z = float(ndtri((1 + level) / 2))
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
