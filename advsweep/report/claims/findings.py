"""What the data say about what one claim claims, before the other claims of its list count."""

from __future__ import annotations

import math
from dataclasses import dataclass

from advsweep.report.claims.expressions import ClaimVerdict
from advsweep.report.tables.comparison import LEVEL
from advsweep.report.tables.types import Difference

_WORST_FIRST = (
    *(ClaimVerdict.CONTRADICTED, ClaimVerdict.EQUAL, ClaimVerdict.STEP_NOT_MATCHED),
    *(ClaimVerdict.AT_CHANCE, ClaimVerdict.CANNOT_TELL, ClaimVerdict.NOT_SETTLED),
    ClaimVerdict.HOLDS,
)
RANK = {verdict: rank for rank, verdict in enumerate(_WORST_FIRST)}
"""The verdict with the lowest rank among those on the parts of a claim is the claim's."""


@dataclass(frozen=True)
class Finding:
    """What the data say about a claim by themselves.

    Attributes:
        reason: a sentence with the numbers, without the verdict.
        difference, low, high: the number that decides and its 95 % interval; NaN where there is
            none. A relative change or a ratio of spreads is given minus 1.
        n: the number of seeds, points or runs.
        p_value: two-sided p of the test that decides; NaN where there is nothing to test.
        needed: seeds (points of a trend) that would decide with a power of 80 %.
        tested: the primary difference that decides, whose adjusted p is the claim's; None for
            any other comparison.
        family: what that p is adjusted over.
        unit: what n counts.
    """

    verdict: ClaimVerdict
    reason: str
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    p_value: float = math.nan
    needed: int | None = None
    tested: Difference | None = None
    family: str = ""
    unit: str = "seeds"


def by_interval(low: float, high: float, sign: int = 1) -> ClaimVerdict:
    """Returns the verdict on the claim that a number is above 0, or below 0 for the sign -1."""
    low, high = (low, high) if sign > 0 else (-high, -low)
    if low > 0:
        return ClaimVerdict.HOLDS
    return ClaimVerdict.CONTRADICTED if high < 0 else ClaimVerdict.CANNOT_TELL


def by_p_value(value: float, p_value: float, sign: int = 1) -> ClaimVerdict:
    """Returns the verdict on the sign of a number whose test has this two-sided p."""
    if not p_value <= LEVEL or not value:
        return ClaimVerdict.CANNOT_TELL
    return ClaimVerdict.HOLDS if value * sign > 0 else ClaimVerdict.CONTRADICTED


def interval_text(low: float, high: float) -> str:
    return f"95 % interval [{low:+.4g}, {high:+.4g}]"
