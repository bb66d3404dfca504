r"""Numbers as people and models write them: the one reader of all verifiers.

`read_quantity` takes a text that is one number, with whatever is usual around it: a currency sign,
a unit, LaTeX, a name and an equals sign in front, a remark in parentheses. It returns None for
everything else. So a text with two numbers, a product with a variable or an inequality is no
number, and what cannot be read is never half read.

Whole numbers and fractions are exact; nothing here is a float. The time is linear in the text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation, localcontext
from fractions import Fraction
from typing import NamedTuple

from advsweep.tasks.verifiers.number_notation import UNSPACED, plain_notation

LONGEST_NUMBER = 1000
"""Characters of the longest number that is read."""

_LONGEST_TEXT = 2000
_MOST_DIGITS_OF_A_POWER = 4000  # Python refuses to print more than 4,300
_CACHED = 4096

_PLAIN = re.compile(r"-?(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?", re.ASCII)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Quantity(NamedTuple):
    """A number that was read.

    Attributes:
        value: the number as it is written: 25 for `25%`, 3 for `3 million`.
        factor: what a percent sign or a word such as "million" multiplies it by; else 1.
        decimals: how many decimals are written; None for fractions and powers.
        unit: the words after the number, in lower case; empty if there are none.
    """

    value: Fraction
    factor: Fraction = Fraction(1)
    decimals: int | None = None
    unit: str = ""


# ------------------------------------------------------------------------------ plain numbers


def plain_number(text: str) -> Fraction | None:
    """Return the value of digits with an optional sign, decimals and thousands separators.

    >>> plain_number("-1,234.50")
    Fraction(-2469, 2)
    """
    if len(text) > LONGEST_NUMBER or not _PLAIN.fullmatch(text):
        return None
    return _decimal(text)


def _decimal(text: str) -> Fraction:
    """Return the value of digits, commas, an optional sign and an optional point."""
    whole, point, decimals = text.replace(",", "").partition(".")
    if not point:
        return Fraction(int(whole))
    return Fraction(int(f"{whole}{decimals}"), 10 ** len(decimals))


def spell(value: Fraction) -> str:
    """Return a canonical spelling: decimals if they are finite, else a fraction.

    >>> spell(Fraction(7, 2)), spell(Fraction(1, 3))
    ('3.5', '1/3')
    """
    if value.denominator == 1:
        return str(value.numerator)
    # More digits than any number has that is read here.
    with localcontext(Context(prec=4096, traps=[Inexact, InvalidOperation])):
        try:
            exact = Decimal(value.numerator) / Decimal(value.denominator)
        except Inexact:
            return f"{value.numerator}/{value.denominator}"
        return f"{exact.normalize():f}"


# ------------------------------------------------------------------------------------- tokens

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER = re.compile(
    r"(?<![\w.^\\])(?<![0-9],)(?<!\^[+-])"
    r"(?:"
    r"(?P<whole>[0-9]+)\s+(?P<part>[0-9]+)\s?/\s?(?P<parts>[0-9]+)"
    rf"|(?P<above>(?:{_DIGITS})\.?)\s?/\s?(?P<below>-?(?:{_DIGITS}))"
    rf"|(?P<base>{_DIGITS})\s?(?:\^|\*\*)\s?(?P<power>[+-]?[0-9]{{1,4}})(?![0-9]|\.[0-9])"
    rf"|(?P<digits>{_DIGITS})(?:[eE](?P<e>[+-]?[0-9]{{1,4}})(?![0-9])"
    r"|\s*[*x]\s*10\s?(?:\^|\*\*)\s?(?P<ten>[+-]?[0-9]{1,4})(?![0-9]))?"
    r")(?![0-9]|,[0-9]|\.[0-9]|\s?/\s?[0-9]|\s?\^)"
    r"|(?<![\w.^\\])(?<!\^[+-])(?P<malformed>[0-9][0-9.,/]*)"
)


_FACTORS = {
    "%": Fraction(1, 100),
    "percent": Fraction(1, 100),
    "percentage": Fraction(1, 100),
    "pct": Fraction(1, 100),
    "hundred": Fraction(100),
    "thousand": Fraction(1000),
    "k": Fraction(1000),
    "million": Fraction(10**6),
    "millions": Fraction(10**6),
    "billion": Fraction(10**9),
    "billions": Fraction(10**9),
    "trillion": Fraction(10**12),
    "万": Fraction(10**4),
    "萬": Fraction(10**4),
    "亿": Fraction(10**8),
    "億": Fraction(10**8),
}
_FACTOR_BEHIND = re.compile(
    r"\s?(%|[万萬亿億]|(?:percent|hundred|thousand|million|billion|trillion)(?![a-z]))"
)
_SAYS_EQUAL = re.compile(r"\b(?:is|was|be|equals|to)$")


class Token(NamedTuple):
    """A number in a text, its sign included.

    Attributes:
        quantity: the number; None if it is written like one and has no value, such as `1/0`.
        start, end: where it stands.
    """

    quantity: Quantity | None
    start: int
    end: int


def tokens(text: str) -> list[Token]:
    """Return the numbers of a text in plain notation, from left to right.

    A minus after a number, a letter or a closing bracket is no sign: `10-3` has two positive
    numbers.
    """
    return [_token(text, match) for match in _NUMBER.finditer(text)]


def _token(text: str, match: re.Match[str]) -> Token:
    sign, start = _sign(text, match.start())
    value = _value(match)
    if value is None:
        return Token(None, start, match.end())
    written = match["digits"]
    is_plain = written is not None and match["e"] is None and match["ten"] is None
    decimals = len(written.partition(".")[2]) if is_plain and written is not None else None
    behind = _FACTOR_BEHIND.match(text, match.end())
    factor = _FACTORS[behind[1]] if behind else Fraction(1)
    return Token(Quantity(sign * value, factor, decimals), start, match.end())


def _sign(text: str, start: int) -> tuple[int, int]:
    """Return the sign of the number at `start`, and where the number begins with its sign."""
    before = text[max(0, start - 12) : start]
    unspaced = before.rstrip(" $")
    if not unspaced.endswith(("-", "+")):
        return 1, start
    left = unspaced[:-1]
    begin = start - len(before) + len(left)
    if left.rstrip().endswith(("-", "+")):
        return 1, start
    outside = left.rstrip(" $(")
    if outside and (outside[-1].isdigit() or outside[-1] in ")]}%!/"):
        return 1, start
    if left and (left[-1].isalnum() or left[-1] in "_^"):
        return 1, start
    # A dash between spaces behind a word divides a sentence, or subtracts from a name.
    is_spaced = before.endswith(("- ", "+ ")) and left.endswith(" ")
    if is_spaced and outside and outside[-1].isalpha() and not _SAYS_EQUAL.search(outside):
        return 1, start
    return (-1 if unspaced[-1] == "-" else 1), begin


def _value(match: re.Match[str]) -> Fraction | None:
    if match["malformed"] is not None or match.end() - match.start() > LONGEST_NUMBER:
        return None
    if match["whole"] is not None:
        return _mixed(int(match["whole"]), int(match["part"]), int(match["parts"]))
    if match["above"] is not None:
        below = _decimal(match["below"])
        return _decimal(match["above"]) / below if below else None
    if match["base"] is not None:
        return _power(_decimal(match["base"]), int(match["power"]))
    exponent = int(match["e"] or match["ten"] or 0)
    value = _decimal(match["digits"])
    if not exponent:
        return value
    scale = _power(Fraction(10), exponent)
    return None if scale is None else value * scale


def _mixed(whole: int, part: int, parts: int) -> Fraction | None:
    """Return a mixed number; None if its fraction is none below one, as in `4 10/3`."""
    return whole + Fraction(part, parts) if 0 < part < parts else None


def _power(base: Fraction, exponent: int) -> Fraction | None:
    digits = max(len(str(base.numerator)), len(str(base.denominator)))
    if digits * abs(exponent) > _MOST_DIGITS_OF_A_POWER or (not base and exponent <= 0):
        return None
    return base**exponent


# ------------------------------------------------------------------------------ one whole text

_EQUALS = re.compile(r"(?<![<>!=:])=(?!=)|≈")
_LIST = re.compile(r"[,;]\s|;|\b(?:and|or)\b")
_LABEL = re.compile(r"[A-Za-z][A-Za-z'.:\"\s-]*")
_BRACKETED = re.compile(r"(-?)\s*\(([^()]*)\)")
_SET_OF_ONE = re.compile(r"\[([^\[\]]*)\]|\\\{([^{}\\]*)\\\}")
_BOUND = re.compile(r"\bup to$", re.IGNORECASE)
_REASON = re.compile(r"\s?\(\s?(?:not|since|because|as|i\.e\.|that is)\b[^()]*\)[\s.]*\Z")
_DASH = re.compile(r"-\s|\s-|-$")
_CURRENCY_CODE = re.compile(
    r"(?:(?:US|AU|CA|HK|NZ)(?=\s?\$)|(?:USD|EUR|GBP|INR|CAD|AUD|CNY|RMB|JPY|Rs\.?|RM)(?=\s?[$0-9]))"
)
# After these words a number is not the answer but a bound, or one of several.
_REFUSED = _words(
    "not no nor never neither none or either between than least most under below above over "
    "beyond within minimum maximum cannot unknown unsure know undefined infinite except "
    "unless if maybe perhaps wrong incorrect impossible times plus minus divided multiplied"
)
_REFUSED_CHARACTERS = frozenset("或和与至到不非以及乃または이상이하초과미만")
_REFUSED_FOREIGN = _words("или и не más où não ή και")
_UNSPACED_WORD = re.compile(rf"[{UNSPACED}]+")
_SINGLE_LETTER_UNITS = frozenset("mgshLlAVWNJKCFk")
_SMALL_WORDS = _words("of in to at by on is it he we my an as a")
_SHORT_UNITS = _words(
    "mm cm km kg mg ml mL dl kL in ft yd mi lb lbs oz hr hrs min mins sec secs ms pm am AM "
    "PM mph kph km Hz kHz kW kWh kJ kN Pa kPa eV MeV GeV mol cc st nd rd th yr yrs nm pm um "
    "Mb GB MB TB KB pt pts qt gal sq cu pc pcs ct cts deg rad pct"
)
_FACTOR_WITH_A_VARIABLE = re.compile(
    r"(?:(?!Mb|kg)[A-Za-z](?![\w']))|\s?\\?(?:pi|sqrt)(?![a-z])|\s?[π√]"
)
_VARIABLES = _words("pi sqrt ln log sin cos tan exp inf oo mod ab xy yz xz bc ac")
_LETTER = r"[^\W\d_]"
_WORD = rf"(?:[{UNSPACED}]{{1,8}}|{_LETTER}(?:{_LETTER}|['.-])*)"
_UNIT_WORD = re.compile(_WORD)
_UNIT_POWER = r"(?:\s?\^\s?-?[0-9]{1,2}|(?<=m)[23](?![0-9]))?"
_UNIT = re.compile(
    rf"\s*(?P<percent>%)?\s*(?P<unit>{_WORD}{_UNIT_POWER}(?:[\s,*/]+{_WORD}{_UNIT_POWER})*)?"
    r"[\s/]*(?P<remark>\([^()0-9]*\))?[\s.,;:]*"
)
_PER_UNIT = re.compile(r"\s?/\s?(?=[A-Za-z])")
_DECIMAL_COMMA = re.compile(r"-?[0-9]+,[0-9]{1,2}")
_POINTS_AND_COMMA = re.compile(r"-?[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]{1,2}")
_SPACED = re.compile(r"(?<![0-9.,])([0-9]{1,3})((?: [0-9]{3})+)(?![0-9/]| ?/)")
_INDIAN = re.compile(r"(?<![0-9.,])([0-9]{1,2})((?:,[0-9]{2})+,[0-9]{3})(?![0-9,])")
_APOSTROPHES = re.compile(r"(?<![0-9.,])([0-9]{1,3})((?:'[0-9]{3})+)(?![0-9])")


@functools.lru_cache(_CACHED)
def read_quantity(text: str, *, decimal_comma: bool = False) -> Quantity | None:
    r"""Return the number that a text is; None if it is none, or more than one.

    Args:
        decimal_comma: whether `0,5` may be 0.5. It may be a list of two numbers, too.

    >>> read_quantity(r"x = 3\\frac{1}{2} \\text{ cm}").value
    Fraction(7, 2)
    """
    if len(text) > _LONGEST_TEXT:
        return None
    if _PLAIN.fullmatch(text):
        if len(text) > LONGEST_NUMBER:
            return None
        return Quantity(_decimal(text), decimals=len(text.partition(".")[2]))
    plain = _separators_removed(plain_notation(text), decimal_comma)
    if "(" in plain:
        plain = _REASON.sub("", plain)
    if "=" not in plain and "≈" not in plain:
        return _read_side(plain)
    return _read_equation(plain)


def _separators_removed(text: str, decimal_comma: bool) -> str:
    """Return the text with decimal points and without separators of thousands but commas."""
    bare = text.strip(" $.")
    if _POINTS_AND_COMMA.fullmatch(bare):
        return bare.replace(".", "").replace(",", ".")
    if decimal_comma and _DECIMAL_COMMA.fullmatch(bare):
        return bare.replace(",", ".")
    text = _SPACED.sub(lambda match: match[0].replace(" ", ""), text)
    text = _INDIAN.sub(lambda match: match[0].replace(",", ""), text)
    return _APOSTROPHES.sub(lambda match: match[0].replace("'", ""), text)


def _read_equation(text: str) -> Quantity | None:
    """Return the number at the end of an equation such as `k + m = 7 + 27 = 34`.

    Two numbers that are said to be equal and are not are no answer, but the second may be the first
    one rounded, which then counts.
    """
    if _LIST.search(text):
        return None
    sides = [side.strip() for side in _EQUALS.split(text)]
    if len(sides) == 1:  # an inequality
        return None
    last = _read_side(sides[-1])
    before = _read_side(sides[-2])
    if last is None:
        is_name = len(sides) == 2 and re.fullmatch(r"[A-Za-z][A-Za-z_]*", sides[-1]) is not None
        return before if is_name else None
    if not last.value and _is_equation_in_a_variable(sides[0]):
        return None
    if before is None or before.unit or last.unit:
        return last
    if agree(before, last):
        return last
    return before if is_rounded(before.value, last) else None


def _is_equation_in_a_variable(left: str) -> bool:
    """Return whether a left side is to be solved, as in `x^2 - 1 = 0`, and names no number."""
    return (
        re.search(r"[A-Za-z]\s*\(?\s*[-+*/^]|[-+*/]\s*\(?[A-Za-z]|[0-9]\s?[A-Za-z]", left)
        is not None
    )


def _read_side(text: str) -> Quantity | None:
    """Return the number that a text without an equals sign is."""
    text = _CURRENCY_CODE.sub("", text)
    text = text.strip()
    bracketed = _BRACKETED.fullmatch(text)
    if bracketed is not None:
        text = f"{bracketed[1]}{bracketed[2].strip()}"
    alone = _SET_OF_ONE.fullmatch(text)
    if alone is not None:
        text = (alone[1] or alone[2] or "").strip()
    found = tokens(text)
    if len(found) != 1:
        return None
    token = found[0]
    if token.quantity is None or not _is_label(text[: token.start]):
        return None
    return _with_unit(token.quantity, text[token.end :])


def _is_label(text: str) -> bool:
    """Return whether words in front of a number leave it the answer."""
    text = text.strip(" $\"':(*")
    if not text:
        return True
    if not _LABEL.fullmatch(text) or _DASH.search(text) or _BOUND.search(text):
        return False
    return _REFUSED.isdisjoint(re.findall(r"[a-z]+", text.lower()))


def _with_unit(quantity: Quantity, rest: str) -> Quantity | None:
    """Return the number with what follows it; None if that is no unit."""
    if not rest:
        return quantity
    if rest.startswith("!"):  # a factorial
        return None
    if rest.startswith("..") and not quantity.decimals:  # a sequence that goes on
        return None
    adjacent = not rest.startswith((" ", "-"))
    rest = rest.strip().strip("$\"'").strip()
    if rest.startswith("-") and rest[1:2].isalpha():
        rest = rest[1:]
    per = _PER_UNIT.match(rest)
    if per:
        rest = rest[per.end() :]
    match = _UNIT.fullmatch(rest)
    if match is None:
        return None
    unit = (match["unit"] or "").strip(" .,")
    words = _UNIT_WORD.findall(unit)
    if not _are_units(words, adjacent):
        return None
    factor = Fraction(1, 100) if match["percent"] else Fraction(1)
    if words:
        factor *= _factor_of(words[0])
    return quantity._replace(factor=factor, unit=unit.lower())


def _are_units(words: Sequence[str], adjacent: bool) -> bool:
    """Return whether all words behind a number, which the first may touch, are of its unit."""
    for i, word in enumerate(words):
        if word.lower() in _REFUSED:
            return False
        if not _is_unit(word, adjacent=adjacent and i == 0, last=i == len(words) - 1):
            return False
    return True


def _factor_of(word: str) -> Fraction:
    """Return what the first word behind a number multiplies it by, such as "million" or "万元"."""
    name = word.lower().rstrip(".")
    if not name.isascii():
        name = name[0]
    return _FACTORS.get(name, Fraction(1))


def _is_unit(word: str, *, adjacent: bool, last: bool) -> bool:
    """Return whether a word behind a number is a unit, and no variable or function.

    Args:
        adjacent: whether there is no space between them.
        last: whether no word follows, as one does in "5 a day".
    """
    word = word.rstrip(".'-")
    if not word.isascii():
        return _is_foreign_unit(word)
    if len(word) == 1:
        return word in _SINGLE_LETTER_UNITS or (word == "a" and not last)
    if word in _VARIABLES:
        return False
    if word in _SHORT_UNITS or word.lower() in _SMALL_WORDS:
        return True
    if len(word) == 2 or (len(word) == 3 and adjacent):
        return False
    return any(vowel in word.lower() for vowel in "aeiouy")


def multiplies_a_variable(text: str, token: Token) -> bool:
    r"""Return whether what follows a number makes it a factor, as in `14x` or `14\pi`."""
    behind = _FACTOR_WITH_A_VARIABLE.match(text, token.end)
    return behind is not None and behind[0] not in _SINGLE_LETTER_UNITS


def _is_foreign_unit(word: str) -> bool:
    """Return whether a word with letters beyond A to Z may be a unit; a letter alone is a name."""
    if _UNSPACED_WORD.fullmatch(word):
        return _REFUSED_CHARACTERS.isdisjoint(word)
    return len(word) > 1 and word.lower() not in _REFUSED_FOREIGN


# -------------------------------------------------------------------------------- comparisons

TOLERANCE = 1e-6
"""The largest difference, relative to the reference answer, that counts as rounding."""

# A whole number is exact: an answer may miss it by an error of floating point, not by rounding.
_LARGEST_ERROR_OF_WHOLE = Fraction(1, 1000)


def agree(gold: Quantity, answer: Quantity, tolerance: float = TOLERANCE) -> bool:
    """Return whether an answer is the reference answer.

    A percentage equals the number before the sign and the share that it is: 25% equals 25 and .25.
    But .25% is not .25, which is read as a share. The same holds for words such as "million".

    By default a difference must also be below half a unit of the last decimal of the reference
    answer, and whole numbers must be equal. A fraction with endless decimals, such as 1/3, equals a
    reference answer that is this fraction rounded, such as 0.33.
    """
    if gold.factor == answer.factor:
        return _is_close(gold, gold.value, answer.value, tolerance)
    if gold.factor != 1 and answer.factor != 1:
        return gold.value * gold.factor == answer.value * answer.factor
    golds = _readings(gold)
    answers = _readings(answer)
    return any(
        _is_close(gold, expected, given, tolerance) for expected in golds for given in answers
    )


def _readings(quantity: Quantity) -> set[Fraction]:
    """Return the numbers that a quantity with a factor may stand for."""
    if quantity.factor < 1 and abs(quantity.value) < 1:
        return {quantity.value * quantity.factor}
    return {quantity.value, quantity.value * quantity.factor}


def _is_close(gold: Quantity, expected: Fraction, given: Fraction, tolerance: float) -> bool:
    if expected == given:
        return True
    difference = abs(expected - given)
    if difference <= Fraction(str(tolerance)) * abs(expected):
        return tolerance > TOLERANCE or bool(difference <= _largest_error(gold))
    return _has_endless_decimals(given) and is_rounded(given, gold)


def _largest_error(gold: Quantity) -> Fraction:
    if gold.value.denominator == 1:
        return _LARGEST_ERROR_OF_WHOLE
    if gold.decimals is None:
        return abs(gold.value)
    return Fraction(1, 2 * 10**gold.decimals)


def _has_endless_decimals(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest != 1


def is_rounded(exact: Fraction, rounded: Quantity) -> bool:
    """Return whether a number with two or more decimals is an exact number rounded to them.

    >>> is_rounded(Fraction(1, 3), Quantity(Fraction(33, 100), decimals=2))
    True
    """
    if rounded.decimals is None or rounded.decimals < 2:
        return False
    return bool(abs(exact - rounded.value) * 2 * 10**rounded.decimals <= 1)
