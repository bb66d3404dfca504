"""Power of the two-sided paired t-test: the number of seeds needed.

All results are exact, from the noncentral t distribution.
"""

from __future__ import annotations

import math

from scipy.special import nctdtr, stdtrit

from advsweep.errors import AdvsweepError
from advsweep.statistics.samples import check_share


def seeds_needed(
    sd_of_differences: float, difference: float, power: float = 0.8, level: float = 0.95
) -> int:
    """Return the least number of seeds, at least 2, that detect a difference with this power.

    Args:
        sd_of_differences: the standard deviation of the pairs' differences
            (`Comparison.sd`), above 0. An estimate from few seeds is rough: from five, the true
            value is .6 to 2.9 times the estimate with 95 % confidence, and the number of seeds
            grows with its square.
        difference: the true difference to detect, not 0.

    Raises:
        AdvsweepError: an argument out of its range.
    """
    check_share("level", level)
    check_share("power", power)
    if power <= 1 - level:
        raise AdvsweepError(
            f"power: expected more than 1 - level = {1 - level:g}, the chance of a false call, "
            f"got {power:g}"
        )
    if not (math.isfinite(sd_of_differences) and sd_of_differences > 0):
        raise AdvsweepError(
            f"standard deviation: expected a number above 0, got {sd_of_differences:g}"
        )
    if not (math.isfinite(difference) and difference):
        raise AdvsweepError(
            f"difference: expected a number other than 0, got {difference:g}: no number of "
            "seeds tells methods apart that are alike"
        )
    size = abs(difference) / sd_of_differences
    low, high = 1, 2
    while _power(size, high, level) < power:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(size, middle, level) >= power else (middle, high)
    return high


def _power(size: float, n: int, level: float) -> float:
    t = float(stdtrit(n - 1, (1 + level) / 2))
    shift = size * math.sqrt(n)
    wrong_sign = float(nctdtr(n - 1, shift, -t))
    # SciPy returns NaN for a tail that is too thin to matter.
    return float(nctdtr(n - 1, -shift, -t)) + (0.0 if math.isnan(wrong_sign) else wrong_sign)
