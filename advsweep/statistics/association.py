"""Association of two quantities: correlations, and ratios of means."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np
import scipy as sp

from advsweep.statistics.intervals import LEVEL, Estimate


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


# What tells seeds apart: numbers, or what stands for an unknown one.
Seed = TypeVar("Seed", bound=Hashable)

_ROUNDING = 1e-9  # relative spread below which ratios of spreads mean nothing


def ratio_of_means(a: Mapping[Seed, float], b: Mapping[Seed, float]) -> Estimate:
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
    a = _finite(a)
    b = _finite(b)
    shared = [seed for seed in a if seed in b]
    if len(shared) > 1:
        of_a, of_b = (np.array([values[seed] for seed in shared]) for values in (a, b))
        cov = np.cov(of_a, of_b) / len(shared)
        aa = cov[0, 0]
        ab = cov[0, 1]
        bb = cov[1, 1]
        df = len(shared) - 1
    else:
        of_a, of_b = (np.array(list(values.values())) for values in (a, b))
        df = min(of_a.size, of_b.size) - 1
        if df < 1:
            both = of_a.size and of_b.size and of_b.mean()
            return Estimate(
                float(of_a.mean() / of_b.mean()) if both else math.nan, *(math.nan,) * 2
            )
        aa = of_a.var(ddof=1) / of_a.size
        ab = 0.0
        bb = of_b.var(ddof=1) / of_b.size
    x = float(of_a.mean())
    y = float(of_b.mean())
    t2 = float(sp.special.stdtrit(df, (1 + LEVEL) / 2)) ** 2
    # (x - ρ y)² = t² Var(a - ρ b), a quadratic equation in ρ.
    square = y * y - t2 * bb
    middle = x * y - t2 * ab
    rest = x * x - t2 * aa
    # mean(b) may be 0: the ratios that fit have no end, or lie outside of two.
    if square <= 0:
        return Estimate(x / y if y else math.nan, math.nan, math.nan)
    root = math.sqrt(max(middle * middle - square * rest, 0.0))
    return Estimate(x / y, (middle - root) / square, (middle + root) / square)


def _finite(values: Mapping[Seed, float]) -> dict[Seed, float]:
    return {seed: value for seed, value in values.items() if math.isfinite(value)}
