"""Intervals of means: Student's t over seeds, and the bootstrap over problems and runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy as sp
from numpy.typing import ArrayLike

from advsweep.errors import AdvsweepError

if TYPE_CHECKING:
    from jaxtyping import Float

# The level of every interval.
LEVEL = 0.95

# Relative size below which a difference or a spread counts as rounding error.
ROUNDING = 1e-12


def as_sample(values: ArrayLike) -> Float[np.ndarray, " n"]:
    """Return numbers as a one-dimensional array.

    Raises:
        AdvsweepError: the argument is not a list of numbers.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1:
        raise AdvsweepError(f"expected a list of numbers, got an array of shape {sample.shape}")
    return sample


def as_pairs(x: ArrayLike, y: ArrayLike) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return two lists of numbers as arrays of the same length.

    Raises:
        AdvsweepError: the arguments are not two lists of numbers of the same length.
    """
    xs = np.asarray(x, dtype=np.float64)
    ys = np.asarray(y, dtype=np.float64)
    if xs.ndim != 1 or xs.shape != ys.shape:
        raise AdvsweepError(
            f"expected two lists of numbers of the same length, got arrays of shapes {xs.shape} "
            f"and {ys.shape}"
        )
    return xs, ys


def sample_sd(values: Float[np.ndarray, " n"], scale: float) -> float:
    """Return the sample standard deviation; exactly 0 if it is only rounding error.

    Args:
        scale: magnitude of the numbers from which the values were computed.
    """
    sd = float(values.std(ddof=1))
    return sd if sd > ROUNDING * scale else 0.0


_AT_ONCE = 4_000_000  # numbers drawn at a time


class Interval(NamedTuple):
    """A mean with its interval.

    Attributes:
        low, high: the interval's ends; NaN when n < 2, since one value has no spread.
        n: number of values.
    """

    mean: float
    low: float
    high: float
    n: int


class Estimate(NamedTuple):
    """An estimated parameter with its interval.

    Attributes:
        low, high: the interval's ends; NaN if the data leave them undefined.
    """

    value: float
    low: float
    high: float


def student_t_interval(values: ArrayLike, level: float = LEVEL) -> Interval:
    """Return the mean of some values and its Student t interval, mean ± t · s/√n.

    s is the sample standard deviation and t the quantile of n-1 degrees of freedom. Without
    values the mean is NaN too.

    Raises:
        AdvsweepError: the values are not a list of numbers.
    """
    sample = as_sample(values)
    n = sample.size
    mean = float(sample.mean()) if n else math.nan
    if n < 2:
        return Interval(mean, math.nan, math.nan, n)
    t = float(sp.special.stdtrit(n - 1, (1 + level) / 2))
    half = t * float(sample.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def bootstrap_over_problems(
    per_problem_values: ArrayLike, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Return the mean over the problems of one run, and its interval over similar problems.

    The interval shows how much the mean would change with other problems, not with other seeds.
    To compare two runs on the same problems, pass the list of differences. NaN (a problem
    without a value) is left out.

    The ends are quantiles of the means of resampled problems. Such means spread too little by
    the factor √((n-1)/n), and as if the spread were known. The quantiles therefore lie farther
    out, at Φ(∓t · √(n/(n-1))), which gives Student's t on normal data (Hesterberg, 2015,
    "expanded percentile interval"). If all problems have the same value the interval has width
    0, because resampling cannot produce other values.

    Args:
        per_problem_values: [problems], such as pass@k of each.

    Raises:
        AdvsweepError: the values are not a list of numbers.
    """
    sample = as_sample(per_problem_values)
    sample = sample[~np.isnan(sample)]
    n = sample.size
    mean = float(sample.mean()) if n else math.nan
    if n < 2:
        return Interval(mean, math.nan, math.nan, n)
    # Problems have few distinct values, so drawing how often each occurs is a resample, and
    # much quicker than drawing problems.
    distinct, counts = np.unique(sample, return_counts=True)
    rng = np.random.default_rng(seed)
    # In portions, so that many distinct values do not fill the memory.
    most = max(_AT_ONCE // distinct.size, 1)
    sizes = [min(most, resamples - done) for done in range(0, resamples, most)]
    means = np.concatenate(
        [rng.multinomial(n, counts / n, size=size) @ distinct / n for size in sizes]
    )
    t = float(sp.special.stdtrit(n - 1, (1 + LEVEL) / 2))
    tail = float(sp.special.ndtr(-t * math.sqrt(n / (n - 1))))
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(mean, float(low), float(high), n)
