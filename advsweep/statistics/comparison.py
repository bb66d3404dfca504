"""The comparison of two methods: their difference, its uncertainty and its effect size.

Seeds are the unit. They are paired where both methods ran the same seeds: the effect of a seed on
both methods (initial weights, order of prompts) then cancels in the difference.

The formulas stand here, on scipy.special, instead of calls of scipy.stats. scipy.stats takes
longer to import than a report takes to print, and its tests return NaN or warn for differences
that are all equal, which a cost or a finished benchmark has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, stdtr, stdtrit

from advsweep.errors import AdvsweepError
from advsweep.statistics.blocks import PooledSpread
from advsweep.statistics.samples import ROUNDING, as_pairs, as_sample, check_share, sample_sd

if TYPE_CHECKING:
    from jaxtyping import Float

SEEDS_FOR_PERMUTATION = 6
"""Five differences have 32 patterns of signs, so their p-value is at least 2/32 = .0625."""

_ALL_PATTERNS = 20  # largest number of differences for which all patterns of signs are tried
_DRAWS = 9_999


@dataclass(frozen=True)
class Comparison:
    """The difference of two methods' means over seeds, a - b.

    Equal differences have no spread: the interval then has width 0, p is 0 (or 1 if all
    differences are 0), and the effect size is NaN. That is right for a cost that no seed
    changes; elsewhere it means that seeds have no effect. Such comparisons have sd = 0.

    Attributes:
        low, high: the ends of the t interval; NaN for fewer than two seeds.
        p_value: p of the two-sided t-test; NaN for fewer than two seeds.
        p_permutation: p of the two-sided sign-flip test; NaN for fewer than six pairs, where it
            cannot reach .05, and without pairs.
        effect_size: the difference in standard deviations with Hedges' correction for few
            seeds: d_z of the differences if paired, else d_s of the pooled samples; NaN for
            fewer than three seeds in total.
        sd: the standard deviation of the difference of two single runs, which determines the
            number of seeds needed: that of the pairs' differences, one pooled over several
            methods, or √(s_a² + s_b²).
        df: the degrees of freedom of the t-test; NaN without one.
        n: number of pairs; without pairs the size of the smaller sample.
        left_out: number of seeds without a partner or a finite value; without pairs, of values.
        paired: whether seeds are paired.
        pooled: whether the spread is pooled over several methods.
    """

    difference: float
    low: float
    high: float
    p_value: float
    p_permutation: float
    effect_size: float
    sd: float
    df: float
    n: int
    left_out: int
    paired: bool
    pooled: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether the interval excludes 0, so that the sign of the difference is clear."""
        return self.low > 0 or self.high < 0


def compare_paired(
    a: ArrayLike,
    b: ArrayLike,
    level: float = 0.95,
    seed: int = 0,
    pooled: PooledSpread | None = None,
) -> Comparison:
    """Compare two methods on the same seeds by the paired t-test.

    Args:
        a, b: [seeds], in the same order. Pairs with a value that is not finite are left out.
        seed: seed of the random patterns of signs for n > 20.
        pooled: the spread of the differences as `pool_spread` estimates it from several methods;
            by default that of these differences alone.

    Raises:
        AdvsweepError: not two lists of the same length, or the level is not in (0, 1).
    """
    check_share("level", level)
    all_a, all_b = as_pairs(a, b)
    whole = np.isfinite(all_a) & np.isfinite(all_b)
    of_a, of_b = all_a[whole], all_b[whole]
    n = of_a.size
    scale = _scale(of_a, of_b)
    difference = _mean_difference(of_a, of_b, scale)
    sd = df = math.nan
    if n > 1 and pooled is None:
        sd, df = sample_sd(of_a - of_b, scale), n - 1
    elif n > 1 and pooled is not None:
        sd, df = pooled.sd, pooled.df
    low, high, p_value = _judge(difference, sd / math.sqrt(max(n, 1)), df, level)
    return Comparison(
        difference=difference,
        low=low,
        high=high,
        p_value=p_value,
        p_permutation=permutation_p_value(of_a - of_b, seed),
        effect_size=_effect_size(difference, sd, df),
        sd=sd,
        df=df,
        n=n,
        left_out=int((~whole).sum()),
        paired=True,
        pooled=pooled is not None,
    )


def compare_unpaired(a: ArrayLike, b: ArrayLike, level: float = 0.95) -> Comparison:
    """Compare two methods that share no seeds by Welch's t-test.

    The methods may have different variances. For the same number of seeds it has less power
    than `compare_paired` if a seed affects both methods alike.

    Args:
        a, b: [seeds of each]. Values that are not finite are left out.

    Raises:
        AdvsweepError: the values are not lists of numbers, or the level is not in (0, 1).
    """
    check_share("level", level)
    all_a, all_b = as_sample(a), as_sample(b)
    of_a, of_b = all_a[np.isfinite(all_a)], all_b[np.isfinite(all_b)]
    n_a, n_b = of_a.size, of_b.size
    scale = _scale(of_a, of_b)
    difference = _mean_difference(of_a, of_b, scale)
    sd = pooled = error = df = math.nan
    if min(n_a, n_b) > 1:
        var_a, var_b = sample_sd(of_a, scale) ** 2, sample_sd(of_b, scale) ** 2
        sd = math.sqrt(var_a + var_b)
        error = math.sqrt(var_a / n_a + var_b / n_b)
        if error:
            df = error**4 / ((var_a / n_a) ** 2 / (n_a - 1) + (var_b / n_b) ** 2 / (n_b - 1))
        pooled = math.sqrt(((n_a - 1) * var_a + (n_b - 1) * var_b) / (n_a + n_b - 2))
    low, high, p_value = _judge(difference, error, df, level)
    return Comparison(
        difference=difference,
        low=low,
        high=high,
        p_value=p_value,
        p_permutation=math.nan,
        effect_size=_effect_size(difference, pooled, n_a + n_b - 2),
        sd=sd,
        df=df,
        n=min(n_a, n_b),
        left_out=all_a.size - n_a + all_b.size - n_b,
        paired=False,
    )


def compare_seeds(
    a: Mapping[int, float],
    b: Mapping[int, float],
    level: float = 0.95,
    pooled: PooledSpread | None = None,
) -> Comparison:
    """Compare two methods by their seeds: paired if they share at least two, else unpaired.

    A paired comparison leaves out seeds that only one method has; an unpaired one uses all.

    Args:
        a, b: the value of each seed. Values that are not finite count as missing.
        pooled: of a paired comparison, as in `compare_paired`.

    Raises:
        AdvsweepError: the level is not in (0, 1).
    """
    usable = [seed for seed in a.keys() & b.keys() if math.isfinite(a[seed] - b[seed])]
    if len(usable) < 2:
        return compare_unpaired(list(a.values()), list(b.values()), level)
    seeds = sorted(a.keys() | b.keys())
    return compare_paired(
        [a.get(seed, math.nan) for seed in seeds],
        [b.get(seed, math.nan) for seed in seeds],
        level,
        pooled=pooled,
    )


def permutation_p_value(differences: ArrayLike, seed: int = 0) -> float:
    """Return the two-sided p of paired differences by a sign-flip permutation test.

    If the methods are equal, each difference is as likely to have the other sign. p is the share
    of the 2ⁿ patterns of signs whose mean is at least as far from 0 as the observed mean. It is
    exact up to n = 20; above, it comes from 9,999 random patterns and the observed one. The test
    does not assume a normal distribution.

    Args:
        differences: [pairs], finite.

    Returns:
        NaN for fewer than six differences.

    Raises:
        AdvsweepError: the differences are not a list of numbers.
    """
    sample = as_sample(differences)
    n = sample.size
    if n < SEEDS_FOR_PERMUTATION:
        return math.nan
    # Sums that differ only by rounding are ties, which are frequent for accuracies.
    bound = abs(float(sample.sum())) - ROUNDING * float(np.abs(sample).sum())
    if n > _ALL_PATTERNS:
        flipped = np.random.default_rng(seed).integers(0, 2, size=(_DRAWS, n), dtype=np.int8)
        as_far = int((np.abs((1.0 - 2 * flipped) @ sample) >= bound).sum())
        return (as_far + 1) / (_DRAWS + 1)
    # A pattern and its opposite are equally far from 0, so the first sign can stay fixed.
    sums = sample[:1]
    for difference in sample[1:]:
        sums = np.concatenate([sums + difference, sums - difference])
    return float((np.abs(sums) >= bound).mean())


def improvement_share(a: ArrayLike, b: ArrayLike) -> float:
    """Estimate the probability that a run of a beats a run of b: P(a > b) + P(a = b)/2.

    The estimate is the share of all pairs of a seed of a and a seed of b, ties counting half
    (Agarwal et al., 2021; the Mann-Whitney U over n_a n_b). Higher is taken as better.

    Args:
        a, b: [seeds of each]. Values that are not finite are left out.

    Returns:
        NaN if a sample is empty.

    Raises:
        AdvsweepError: the values are not lists of numbers.
    """
    of_a, of_b = (own[np.isfinite(own)] for own in map(as_sample, (a, b)))
    if not of_a.size or not of_b.size:
        return math.nan
    return float((np.sign(of_a[:, None] - of_b).mean() + 1) / 2)


def _scale(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " m"]) -> float:
    return float(max(np.abs(a).max(initial=0), np.abs(b).max(initial=0)))


def _mean_difference(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " m"], scale: float) -> float:
    if not a.size or not b.size:
        return math.nan
    difference = float(a.mean() - b.mean())
    return difference if abs(difference) > ROUNDING * scale else 0.0


def _judge(difference: float, error: float, df: float, level: float) -> tuple[float, float, float]:
    """Return the interval's ends and p of a difference with a standard error."""
    if error == 0:
        return difference, difference, float(difference == 0)
    half = float(stdtrit(df, (1 + level) / 2)) * error
    return difference - half, difference + half, float(2 * stdtr(df, -abs(difference) / error))


def _effect_size(difference: float, sd: float, df: float) -> float:
    """Return Hedges' unbiased d · Γ(m/2) / (√(m/2) Γ((m-1)/2)) for m degrees of freedom."""
    if not (df >= 2 and sd > 0):
        return math.nan
    log_correction = gammaln(df / 2) - gammaln((df - 1) / 2) - math.log(df / 2) / 2
    return difference / sd * math.exp(log_correction)


def benjamini_hochberg(p_values: ArrayLike) -> Float[np.ndarray, " tests"]:
    """Return p-values adjusted for multiple tests (Benjamini & Hochberg, 1995).

    The i-th smallest of m values becomes min over j ≥ i of m p₍ⱼ₎/j. If values up to α are called
    differences, the expected share of false calls is at most α. This holds for independent tests
    and for positively dependent ones, such as many methods against one baseline.

    Args:
        p_values: [tests]; NaN (a test that could not be made) stays NaN and does not count.

    Raises:
        AdvsweepError: not a list of numbers, or one outside [0, 1].
    """
    values = as_sample(p_values)
    made = np.flatnonzero(~np.isnan(values))
    if ((values[made] < 0) | (values[made] > 1)).any():
        raise AdvsweepError("p-values: expected numbers in [0, 1], or NaN for tests not made")
    falling = made[np.argsort(-values[made])]
    ranks = np.arange(made.size, 0, -1)
    adjusted = np.full(values.shape, np.nan)
    adjusted[falling] = np.minimum.accumulate(np.minimum(values[falling] * (made.size / ranks), 1))
    return adjusted
