"""The bound of numbers that come from outside: logs, tables, dumps, command lines.

Sums, squares and products of a few numbers below it stay finite in double precision, so that one
absurd value of a log can make no report, no estimator and no test overflow.
"""

from __future__ import annotations

LARGEST = 1e100
"""Numbers from outside are smaller than this in absolute value; others count like NaN."""

BEYOND = "of 1e100 or more in absolute value"
"""What is said of finite values that are left out for it."""


def is_bounded(number: float) -> bool:
    """Return whether a number is finite and smaller than `LARGEST` in absolute value.

    >>> [is_bounded(number) for number in (0.5, -1e99, 1e100, float("inf"), float("nan"))]
    [True, True, False, False, False]
    """
    return -LARGEST < number < LARGEST
