"""Power of the two-sided paired t-test: seeds needed, and differences that can be detected.

All results are exact, from the noncentral t distribution.
"""

from __future__ import annotations

import math

from scipy.special import nctdtr, stdtrit

from advsweep.errors import AdvsweepError
from advsweep.statistics.samples import check_share


def power_of_test(sd: float, difference: float, n: int, level: float = 0.95) -> float:
    """Return the chance that n pairs of seeds show a difference: p < 1 - level.

    It is P(|T| > t), with t the quantile for n-1 degrees of freedom and T noncentral t with
    noncentrality difference · √n / sd. Results with the wrong sign, which are rare, count too.

    Args:
        sd: standard deviation of the pairs' differences, above 0.
        n: pairs, at least 2.

    Raises:
        AdvsweepError: an argument out of its range.
    """
    check_share("level", level)
    _check_sd(sd)
    if n < 2:
        raise AdvsweepError(f"expected at least 2 seeds, got {n}: one has no spread")
    return _power(abs(difference) / sd, n, level)


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
    _check_chances(power, level)
    _check_sd(sd_of_differences)
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


def detectable_difference(
    sd_of_differences: float, n: int, power: float = 0.8, level: float = 0.95
) -> float:
    """Return the least difference that n pairs of seeds detect with this power.

    Args:
        sd_of_differences: as in `seeds_needed`.

    Returns:
        NaN for fewer than two pairs, which have no spread.

    Raises:
        AdvsweepError: an argument out of its range.
    """
    _check_chances(power, level)
    _check_sd(sd_of_differences)
    if n < 2:
        return math.nan
    from scipy.optimize import brentq

    largest = 1.0
    while _power(largest, n, level) < power:
        largest *= 2
    size = brentq(lambda size: _power(size, n, level) - power, 0, largest)
    return float(size) * sd_of_differences


def _power(size: float, n: int, level: float) -> float:
    t = float(stdtrit(n - 1, (1 + level) / 2))
    shift = size * math.sqrt(n)
    wrong_sign = float(nctdtr(n - 1, shift, -t))
    # SciPy returns NaN for a tail that is too thin to matter.
    return float(nctdtr(n - 1, -shift, -t)) + (0.0 if math.isnan(wrong_sign) else wrong_sign)


def _check_sd(sd: float) -> None:
    if not (math.isfinite(sd) and sd > 0):
        raise AdvsweepError(f"standard deviation: expected a number above 0, got {sd:g}")


def _check_chances(power: float, level: float) -> None:
    check_share("level", level)
    check_share("power", power)
    if power <= 1 - level:
        raise AdvsweepError(
            f"power: expected more than 1 - level = {1 - level:g}, the chance of a false call, "
            f"got {power:g}"
        )
