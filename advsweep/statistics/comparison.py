"""The comparison of two methods: their difference, its uncertainty and its effect size.

Seeds are the unit. They are paired where both methods ran the same seeds: the effect of a seed on
both methods (initial weights, order of prompts) then cancels in the difference.

The formulas stand here, on scipy.special, instead of calls of scipy.stats. scipy.stats takes
longer to import than a report takes to print, and its tests return NaN or warn for differences
that are all equal, which a cost or a finished benchmark has.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import scipy as sp
from numpy.typing import ArrayLike

from advsweep.errors import AdvsweepError
from advsweep.statistics.intervals import LEVEL, ROUNDING, as_pairs, as_sample, sample_sd

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

# What tells seeds apart: numbers, or what stands for an unknown one.
Seed = TypeVar("Seed", bound=Hashable)
K = TypeVar("K", bound=Hashable)

_TAIL = 0.05
# Two methods have one difference, whose own spread is all that there is.
LEAST_METHODS = 3


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
    # The same runs under two names (an A/A row that shares them) would halve the spread.
    distinct, places = np.unique(table, axis=0, return_inverse=True)
    if len(distinct) < LEAST_METHODS:
        return None
    # The usual moderated t (limma) shrinks each arm's variance towards a prior that is estimated
    # from the others. With three to nine arms there are too few variances to estimate one, so
    # that one wild arm would lend its spread to all. Here an arm either shares the common spread
    # or does not: F tests set apart first those that vary more than the others, which keep their
    # own t-test, then leave out those that vary less, which would make it too small. In this
    # order: next to an arm of a much larger spread, all others look narrow.
    wider = _share_below(distinct) > 1 - _TAIL
    # The second test is among those that are left: they vary alike, or less.
    alike = distinct[~wider]
    kept = alike[_share_below(alike) >= _TAIL]
    if len(kept) < 2:
        return None
    # Residuals of the layout methods x seeds lose a degree of freedom for each mean. A difference
    # of two runs on one seed has twice the variance of a residual.
    df = (len(kept) - 1) * (kept.shape[1] - 1)
    sd = math.sqrt(2 * float(_squares(kept).sum()) / df)
    # A cost that only methods and seeds change has no spread: its differences are exact.
    if sd <= ROUNDING * float(np.abs(kept).max()):
        return None
    return BlockSpread(PooledSpread(sd, df), wider[places.reshape(-1)])


def _squares(table: Float[np.ndarray, "methods seeds"]) -> Float[np.ndarray, " methods"]:
    """Return each method's sum of squared residuals."""
    # Without the mean of the method and that of the seed: what a seed does to all cancels.
    centred = table - table.mean(axis=1, keepdims=True)
    squares: Float[np.ndarray, " methods"] = ((centred - centred.mean(axis=0)) ** 2).sum(axis=1)
    return squares


def _share_below(table: Float[np.ndarray, "methods seeds"]) -> Float[np.ndarray, " methods"]:
    """Return the probability of a smaller spread than each method's own if it varied as the others.

    Two methods cannot be told apart: both get 1/2.

    The contrast of a method with the mean of the others is orthogonal to the residuals among the
    others, so that the sum of squares splits exactly, and the ratio has an F distribution.
    """
    methods, seeds = table.shape
    if methods < LEAST_METHODS:
        return np.full(methods, 0.5)
    squares = _squares(table)
    # A method's residuals also carry its share of the seeds' means, hence the factor.
    scaled = squares * methods / (methods - 1)
    others = np.maximum(squares.sum() - scaled, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = scaled * (methods - 2) / others
    below: Float[np.ndarray, " methods"] = sp.special.fdtr(
        seeds - 1, (methods - 2) * (seeds - 1), ratio
    )
    return below


# Five differences have 32 patterns of signs, so their p-value is at least 2/32 = .0625.
SEEDS_FOR_PERMUTATION = 6

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
    paired: bool
    pooled: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether the interval excludes 0, so that the sign of the difference is clear."""
        return self.low > 0 or self.high < 0


def compare_paired(
    a: ArrayLike, b: ArrayLike, level: float = LEVEL, pooled: PooledSpread | None = None
) -> Comparison:
    """Compare two methods on the same seeds by the paired t-test.

    Args:
        a, b: [seeds], in the same order. Pairs with a value that is not finite are left out.
        pooled: the spread of the differences as `pool_spread` estimates it from several methods;
            by default that of these differences alone.

    Raises:
        AdvsweepError: not two lists of the same length.
    """
    all_a, all_b = as_pairs(a, b)
    whole = np.isfinite(all_a) & np.isfinite(all_b)
    of_a = all_a[whole]
    of_b = all_b[whole]
    n = of_a.size
    difference, scale = _difference(of_a, of_b)
    sd = df = math.nan
    if n > 1 and pooled is None:
        sd = sample_sd(of_a - of_b, scale)
        df = n - 1
    elif n > 1 and pooled is not None:
        sd = pooled.sd
        df = pooled.df
    return Comparison(
        difference,
        *_judge(difference, sd / math.sqrt(max(n, 1)), df, level),
        p_permutation=permutation_p_value(of_a - of_b),
        effect_size=_effect_size(difference, sd, df),
        sd=sd,
        df=df,
        n=n,
        paired=True,
        pooled=pooled is not None,
    )


def compare_unpaired(a: ArrayLike, b: ArrayLike, level: float = LEVEL) -> Comparison:
    """Compare two methods that share no seeds by Welch's t-test.

    The methods may have different variances. For the same number of seeds it has less power
    than `compare_paired` if a seed affects both methods alike.

    Args:
        a, b: [seeds of each]. Values that are not finite are left out.

    Raises:
        AdvsweepError: the values are not lists of numbers.
    """
    # Sorted, so that sums do not depend on the order in which logs were read.
    of_a, of_b = (np.sort(sample[np.isfinite(sample)]) for sample in map(as_sample, (a, b)))
    n_a = of_a.size
    n_b = of_b.size
    difference, scale = _difference(of_a, of_b)
    sd = pooled = error = df = math.nan
    if min(n_a, n_b) > 1:
        var_a = sample_sd(of_a, scale) ** 2
        var_b = sample_sd(of_b, scale) ** 2
        sd = math.sqrt(var_a + var_b)
        error = math.sqrt(var_a / n_a + var_b / n_b)
        if error:
            df = error**4 / ((var_a / n_a) ** 2 / (n_a - 1) + (var_b / n_b) ** 2 / (n_b - 1))
        pooled = math.sqrt(((n_a - 1) * var_a + (n_b - 1) * var_b) / (n_a + n_b - 2))
    return Comparison(
        difference,
        *_judge(difference, error, df, level),
        p_permutation=math.nan,
        effect_size=_effect_size(difference, pooled, n_a + n_b - 2),
        sd=sd,
        df=df,
        n=min(n_a, n_b),
        paired=False,
    )


def compare_seeds(
    a: Mapping[Seed, float], b: Mapping[Seed, float], pooled: PooledSpread | None = None
) -> Comparison:
    """Compare two methods by their seeds: paired if they share at least two, else unpaired.

    A paired comparison leaves out seeds that only one method has; an unpaired one uses all.

    Args:
        a, b: the value of each seed, in any type that tells seeds apart. Values that are not
            finite count as missing.
        pooled: of a paired comparison, as in `compare_paired`.
    """
    # One shared seed has no spread of differences, while two samples may have one each.
    usable = shared_seeds(a, b)
    if len(usable) < 2:
        return compare_unpaired(list(a.values()), list(b.values()))
    of_a, of_b = ([by_seed[seed] for seed in usable] for by_seed in (a, b))
    return compare_paired(of_a, of_b, pooled=pooled)


@dataclass(frozen=True)
class DesignSpread(Generic[K]):
    """The common spread of the arms of a design on some seeds.

    Attributes:
        pooled: the spread of the difference of two of them; None if they have none in common.
        wider: the arms whose own spread is larger: `pooled` is not for their differences.
    """

    pooled: PooledSpread | None
    wider: frozenset[K]

    def of(self, one: K, other: K) -> PooledSpread | None:
        """Return the spread of the difference of two arms; None if they have one of their own."""
        return None if one in self.wider or other in self.wider else self.pooled


def spread_of_design(
    arms: Mapping[K, Mapping[Seed, float]], seeds: Sequence[Seed]
) -> DesignSpread[K]:
    """Return the common spread of the arms that ran some seeds, each on these seeds alone.

    Arms that lack one of the seeds take no part.

    Args:
        arms: the value of each seed, of all arms of a design: those that ran the same tasks from
            the same bases. Values that are not finite count as missing.
        seeds: those that the two arms of a difference share.
    """
    whole: dict[K, list[float]] = {}
    for name, by_seed in arms.items():
        values = [by_seed.get(seed, math.nan) for seed in seeds]
        if all(map(math.isfinite, values)):
            whole[name] = values
    spread = pool_spread([*whole.values()]) if whole and seeds else None
    if spread is None:
        return DesignSpread(None, frozenset())
    wider = [name for name, is_wider in zip(whole, spread.wider, strict=True) if is_wider]
    return DesignSpread(spread.pooled, frozenset(wider))


def compare_arms(arms: Mapping[K, Mapping[Seed, float]], one: K, other: K) -> Comparison:
    """Compare two arms of a design, as reports do: with the spread of all of its arms.

    This is the rule of every interval of the project; `advsweep.report` adds what tells designs
    apart. Pass all arms of the design, whichever of them are of interest.

    Args:
        arms: as of `spread_of_design`.
        one, other: names of two arms; the difference is that of `one` less `other`.
    """
    seeds = shared_seeds(arms[one], arms[other])
    pooled = None
    if not differ_equally(arms[one], arms[other]):
        pooled = spread_of_design(arms, seeds).of(one, other)
    return compare_seeds(arms[one], arms[other], pooled)


def shared_seeds(a: Mapping[Seed, float], b: Mapping[Seed, float]) -> tuple[Seed, ...]:
    """Return the seeds that have a finite value in both, in the order of the first."""
    return tuple(seed for seed in a if seed in b and math.isfinite(a[seed] - b[seed]))


def differ_equally(a: Mapping[Seed, float], b: Mapping[Seed, float]) -> bool:
    """Tell whether two arms differ by the same number on every seed: it has no spread to test.

    Costs do, and the same runs, whose difference is 0.
    """
    seeds = shared_seeds(a, b)
    differences = np.array([a[seed] - b[seed] for seed in seeds])
    scale = max((max(abs(a[seed]), abs(b[seed])) for seed in seeds), default=0.0)
    return len(differences) > 1 and sample_sd(differences, scale) == 0


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
    of_a, of_b = (sample[np.isfinite(sample)] for sample in map(as_sample, (a, b)))
    if not of_a.size or not of_b.size:
        return math.nan
    return float((np.sign(of_a[:, None] - of_b).mean() + 1) / 2)


def _difference(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " m"]) -> tuple[float, float]:
    """Return the difference of the means, 0 if it is rounding error, and the values' magnitude."""
    if not a.size or not b.size:
        return math.nan, 0.0
    scale = float(max(np.abs(a).max(), np.abs(b).max()))
    difference = float(a.mean() - b.mean())
    return difference if abs(difference) > ROUNDING * scale else 0.0, scale


def _judge(difference: float, error: float, df: float, level: float) -> tuple[float, float, float]:
    """Return the interval's ends and p of a difference with a standard error."""
    if error == 0:
        # As a limit: a spread that vanishes leaves no doubt of the difference.
        return difference, difference, float(difference == 0)
    half = float(sp.special.stdtrit(df, (1 + level) / 2)) * error
    return (
        difference - half,
        difference + half,
        float(2 * sp.special.stdtr(df, -abs(difference) / error)),
    )


def _effect_size(difference: float, sd: float, df: float) -> float:
    """Return Hedges' unbiased d · Γ(m/2) / (√(m/2) Γ((m-1)/2)) for m degrees of freedom."""
    if not (df >= 2 and sd > 0):
        return math.nan
    log_correction = (
        sp.special.gammaln(df / 2) - sp.special.gammaln((df - 1) / 2) - math.log(df / 2) / 2
    )
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


@dataclass(frozen=True)
class RankInterval:
    """The place of a method among others, 1 for the best.

    Attributes:
        place: the place by the means alone.
        low, high: the best and the worst place that the tests leave open.
    """

    place: int
    low: int
    high: int


def rank_intervals(
    methods: Sequence[Mapping[Seed, float]], *, higher: bool
) -> list[RankInterval | None]:
    """Return the interval of each method's rank.

    A method has at least as many others before it as are better by a paired t-test over seeds,
    and as many behind it as are worse. The p-values of a method's comparisons are adjusted after
    Holm, so that the interval misses the method's true rank in at most 5 % of all cases,
    whatever the other differences are.

    Source: Mogstad, Romano, Shaikh and Wilhelm (2024), "Inference for Ranks with Applications to
    Mobility across Neighbourhoods and Academic Achievement across Countries", marginal intervals.

    Departures: Holm's adjustment of t-tests in the place of a bootstrap of the largest statistic,
    as a handful of seeds has too few different resamples: four have 35.

    Args:
        methods: the value of each seed; values that are not finite count as missing.
        higher: whether higher values are better.

    Returns:
        None for a method with fewer than two finite values, which takes no part.
    """
    sign = 1.0 if higher else -1.0
    finite = [{s: sign * v for s, v in m.items() if math.isfinite(v)} for m in methods]
    ranked = [i for i, values in enumerate(finite) if len(values) > 1]
    means = {i: math.fsum(finite[i].values()) / len(finite[i]) for i in ranked}
    intervals: list[RankInterval | None] = [None] * len(methods)
    for i in ranked:
        # Own spreads: pooling would need methods that ran the same seeds.
        tests = [compare_seeds(finite[i], finite[j]) for j in ranked if j != i]
        adjusted = holm([test.p_value for test in tests])
        settled = [t for t, p in zip(tests, adjusted, strict=True) if p <= 1 - LEVEL]
        intervals[i] = RankInterval(
            place=1 + sum(means[j] > means[i] for j in ranked),
            low=1 + sum(test.difference < 0 for test in settled),
            high=len(ranked) - sum(test.difference > 0 for test in settled),
        )
    return intervals


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple tests so that no call is false at all (Holm, 1979).

    The i-th smallest of m values becomes max over j ≤ i of min(1, (m - j + 1) p₍ⱼ₎).
    """
    values = as_sample(p_values)
    order = np.argsort(values, kind="stable")
    bounded = np.fmin(values[order] * np.arange(values.size, 0, -1), 1)
    adjusted = np.empty(values.size)
    adjusted[order] = np.maximum.accumulate(bounded)
    return [*adjusted.tolist()]


def seeds_needed(sd_of_differences: float, difference: float, power: float = 0.8) -> int:
    """Return the least number of seeds, at least 2, that detect a difference with this power.

    Args:
        sd_of_differences: the standard deviation of the pairs' differences
            (`Comparison.sd`), above 0. An estimate from few seeds is rough: from five, the true
            value is .6 to 2.9 times the estimate with 95 % confidence, and the number of seeds
            grows with its square.
        difference: the true difference to detect, not 0: no number of seeds tells methods apart
            that are alike.
        power: above the 5 % of false calls.

    Raises:
        AdvsweepError: an argument out of its range.
    """
    size = abs(difference) / sd_of_differences if sd_of_differences > 0 else math.nan
    if not (0 < size < math.inf and 1 - LEVEL < power < 1):
        raise AdvsweepError(
            "expected a standard deviation above 0, a difference other than 0 and a power between "
            f"{1 - LEVEL:.2g} and 1, got {sd_of_differences:g}, {difference:g} and {power:g}"
        )
    # Power rises with n: double until it suffices, then halve the bracket.
    low = 1
    high = 2
    while _power(size, high) < power:
        low = high
        high = 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(size, middle) >= power else (middle, high)
    return high


def _power(size: float, n: int) -> float:
    t = float(sp.special.stdtrit(n - 1, (1 + LEVEL) / 2))
    shift = size * math.sqrt(n)
    # SciPy returns NaN for a tail of the wrong sign that is too thin to matter.
    tails = sp.special.nctdtr(n - 1, np.array([-shift, shift]), -t)
    return float(tails[0] + np.nan_to_num(tails[1]))
