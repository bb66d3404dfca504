"""Prediction by a straight line, with an interval for one value to come."""

from __future__ import annotations

import math

from numpy.typing import ArrayLike
from scipy.special import stdtrit

from advsweep.statistics.intervals import Interval
from advsweep.statistics.samples import as_pairs


def predict(x: ArrayLike, y: ArrayLike, at: float, level: float = 0.95) -> Interval:
    """What a line of least squares through (x, y) says of one more value of y at `at`.

    The interval is ŷ ± t · s · √(1 + 1/n + (at - x̄)²/Σ(x - x̄)²), with s² the squared
    residuals' sum over n-2 and t the quantile of n-2 degrees of freedom: it holds a single
    new value, and grows where the line explains little or is followed beyond its points.
    Its ends are NaN for n < 3; where all x are equal so is ŷ.

    Raises:
        AdvsweepError: x and y are not two lists of numbers of the same length.
    """
    xs, ys = as_pairs(x, y)
    n = xs.size
    spread = float(((xs - xs.mean()) ** 2).sum()) if n else 0.0
    if spread == 0:
        return Interval(math.nan, math.nan, math.nan, n)
    slope = float(((xs - xs.mean()) * (ys - ys.mean())).sum()) / spread
    fitted = float(ys.mean()) + slope * (at - float(xs.mean()))
    if n < 3:
        return Interval(fitted, math.nan, math.nan, n)
    residuals = ys - ys.mean() - slope * (xs - xs.mean())
    s = math.sqrt(float((residuals**2).sum()) / (n - 2))
    t = float(stdtrit(n - 2, (1 + level) / 2))
    half = t * s * math.sqrt(1 + 1 / n + (at - float(xs.mean())) ** 2 / spread)
    return Interval(fitted, fitted - half, fitted + half, n)
