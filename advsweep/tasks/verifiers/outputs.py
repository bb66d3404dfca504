"""Compares what a script printed with the expected output."""

from __future__ import annotations

import re
from decimal import Decimal

# Digits of ASCII alone: Python's own readers also take underscores and the digits of other
# scripts. A number with a leading zero is a text, such as a bit string.
_WHOLE = r"[+-]?(?:0|[1-9][0-9]*)"
_NUMBER = re.compile(_WHOLE + r"(?:\.[0-9]*)?", re.ASCII)
_FRACTION = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)


def same_output(printed: str, expected: str, tolerance: float) -> bool:
    """Compare outputs line by line, without spaces around lines and empty lines at the end.

    In lines of numbers, a whole number is compared by its value and exactly. One that is expected
    with a fraction or an exponent may differ by `tolerance`, absolutely or relative to it.
    """
    ours = _lines(printed)
    theirs = _lines(expected)
    if len(ours) != len(theirs):
        return False
    pairs = zip(ours, theirs, strict=True)
    return all(one == other or _same_numbers(one, other, tolerance) for one, other in pairs)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.rstrip().split("\n")]


def _same_numbers(printed: str, expected: str, tolerance: float) -> bool:
    ours = printed.split()
    theirs = expected.split()
    if len(ours) != len(theirs):
        return False
    return all(map(lambda one, other: _same_number(one, other, tolerance), ours, theirs))


def _same_number(printed: str, expected: str, tolerance: float) -> bool:
    if re.fullmatch(_WHOLE, expected):
        return bool(_NUMBER.fullmatch(printed)) and Decimal(printed) == Decimal(expected)
    if not _FRACTION.fullmatch(expected) or not _FRACTION.fullmatch(printed):
        return False
    if "." not in expected and "e" not in expected.lower():
        return False  # digits with a leading zero
    ours = Decimal(printed)
    theirs = Decimal(expected)
    if ours == theirs:
        return True
    return abs(ours - theirs) <= Decimal(tolerance) * max(Decimal(1), abs(theirs))
