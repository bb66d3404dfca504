"""Answers in the texts of models: the last box, plain numbers. Linear in the text's length."""

from __future__ import annotations

import re
from fractions import Fraction

_BOX = "\\boxed"
_BARE = re.compile(r"\s+([^\s$.,;{}]+)")
_LONGEST_NUMBER = 60
_PLAIN = re.compile(r"-?(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")
_NUMBER = re.compile(
    r"(?P<value>[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?)"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,3}))?(?:/(?P<denominator>[0-9]+))?"
)


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}`; None if there is none or it is not closed.

    `\boxed 7` is read too, because some solutions of MATH use it.

    >>> last_boxed(r"so \\boxed{1}, or rather \\boxed{\\frac{1}{2}}.")
    '\\\\frac{1}{2}'
    """
    start = text.rfind(_BOX)
    if start < 0:
        return None
    start += len(_BOX)
    opening = start
    while opening < len(text) and text[opening].isspace():
        opening += 1
    if text[opening : opening + 1] != "{":
        bare = _BARE.match(text, start)
        return bare[1] if bare else None
    depth, place = 0, opening
    while place < len(text):
        character = text[place]
        if character == "\\":
            place += 1  # skip an escaped brace
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[opening + 1 : place].strip() or None
        place += 1
    return None


def plain_number(text: str) -> Fraction | None:
    """Return the value of digits with an optional sign, decimals and thousands separators.

    >>> plain_number("-1,234.50")
    Fraction(-2469, 2)
    """
    if len(text) > _LONGEST_NUMBER or not _PLAIN.fullmatch(text):
        return None
    return Fraction(text.replace(",", ""))


def number(text: str) -> Fraction | None:
    """Return the value of a number as people write it: also `$5`, `25%`, `.5`, `2.5e3` and `3/4`.

    A percent sign is ignored: 25% is 25.
    """
    text = text.strip().strip("$").replace("\\%", "").replace("\\$", "").replace("\\,", "")
    text = text.removesuffix("%").replace(" ", "").removesuffix(".").removeprefix("$")
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST_NUMBER else None
    if not match or not any(c.isdigit() for c in match["value"]):
        return None
    value = Fraction(match["value"].replace(",", ""))
    if match["exponent"]:
        value *= Fraction(10) ** int(match["exponent"])
    if match["denominator"]:
        if not int(match["denominator"]):
            return None
        value /= int(match["denominator"])
    return value


def spell(value: Fraction) -> str:
    """Return a canonical spelling: decimals if they are finite, else a fraction.

    >>> spell(Fraction(7, 2)), spell(Fraction(1, 3))
    ('3.5', '1/3')
    """
    places = 0
    denominator = value.denominator
    while denominator % 10 == 0:
        denominator //= 10
        places += 1
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
            places += 1
    if denominator != 1:
        return f"{value.numerator}/{value.denominator}"
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    text = digits[: len(digits) - places] + ("." + digits[-places:] if places else "")
    text = text.rstrip("0").rstrip(".") if places else text
    return "-" * (value < 0) + text
