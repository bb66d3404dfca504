"""Whether two methods are equivalent: two one-sided t-tests (Schuirmann, *J. Pharmacokinet.
Biopharm.* 15, 1987).

A difference that is not significant does not show that two methods are alike. They are equivalent
within a margin if both one-sided tests, that the difference is above minus and below plus the
margin, reject at 5 %: if the 90 % interval of the difference lies within the margin.
"""

from __future__ import annotations

import math

import scipy as sp

from advsweep.statistics.comparison import Comparison
from advsweep.statistics.intervals import LEVEL

_TAIL = 0.05


def equivalence_margin(comparison: Comparison) -> float:
    """Return the smallest margin within which two methods are equivalent at 5 %.

    Args:
        comparison: with its 95 % interval.

    Returns:
        NaN where nothing varies or there is no test.
    """
    error = _standard_error(comparison)
    if math.isnan(error):
        return math.nan
    quantile = float(sp.special.stdtrit(comparison.df, 1 - _TAIL))
    return abs(comparison.difference) + quantile * error


def equivalence_p_value(comparison: Comparison, margin: float) -> float:
    """Return p of the two one-sided tests that a difference is smaller than a margin.

    Args:
        comparison: with its 95 % interval.
        margin: above 0.

    Returns:
        NaN where nothing varies or there is no test.
    """
    error = _standard_error(comparison)
    if math.isnan(error):
        return math.nan
    # The larger p of the two is that of the nearer end of the margin.
    distance = margin - abs(comparison.difference)
    return float(sp.special.stdtr(comparison.df, -distance / error))


def _standard_error(comparison: Comparison) -> float:
    """Return the standard error that an interval was made with; NaN without a spread."""
    half = (comparison.high - comparison.low) / 2
    if not comparison.sd > 0 or not half > 0:
        return math.nan
    return half / float(sp.special.stdtrit(comparison.df, (1 + LEVEL) / 2))
