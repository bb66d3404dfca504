"""Intervals of a mean over seeds."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from advsweep.errors import AdvsweepError


class Interval(NamedTuple):
    """A mean with its interval.

    Attributes:
        low, high: the interval's ends; NaN when n < 2, since one value has no spread.
        n: how many values stand behind it.
    """

    mean: float
    low: float
    high: float
    n: int


def student_t_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """The mean of some values and its Student t interval, mean ± t · s/√n.

    s is the sample standard deviation and t the quantile of n-1 degrees of freedom. Without
    values the mean is NaN too.

    Raises:
        AdvsweepError: the values are not a list of numbers, or the level is not in (0, 1).
    """
    if not 0 < level < 1:
        raise AdvsweepError(f"level: expected a number in (0, 1), got {level:g}")
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1:
        raise AdvsweepError(f"expected a list of numbers, got an array of shape {sample.shape}")
    n = sample.size
    mean = float(sample.mean()) if n else math.nan
    if n < 2:
        return Interval(mean, math.nan, math.nan, n)
    t = float(stdtrit(n - 1, (1 + level) / 2))
    half = t * float(sample.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)
