r"""The verifier `boxed_math`: mathematics in the last box, by value and by math-verify."""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
from dataclasses import dataclass
from typing import ClassVar

from advsweep.errors import ConfigError
from advsweep.packages import extra_command
from advsweep.tasks.verifiers import math_notation, math_parsing
from advsweep.tasks.verifiers.base import UNREADABLE, ReferenceAnswer, Verdict, Verifier, verdict
from advsweep.tasks.verifiers.boxes import boxed_answer
from advsweep.tasks.verifiers.math_words import compare_words
from advsweep.tasks.verifiers.number_reader import Quantity, agree, read_quantity, spell

_CACHED_REFERENCES = 4096


@dataclass(kw_only=True)
class BoxedMath(Verifier):
    r"""Correct if the last `\boxed{...}` equals the reference as mathematics; no box is wrong.

    AVSPO (Advantage Collapse in GRPO), Eq. 39; A-GRAE and AAPO the same. Numbers, words, times of
    day and ratios are compared here; everything else by math-verify, reference first, as it is not
    symmetric. A boxed answer that cannot be read as a whole is wrong, a reference answer that
    cannot be read makes the completion unscorable, and so does an error in the comparison.

    Departures: math-verify takes differences below 1e-15 for none, drops parts that it cannot read,
    and takes several boxes for a set. docs/verifiers.md lists where the verdicts differ.
    """

    name: ClassVar[str] = "boxed_math"
    revision: ClassVar[int] = 3  # 2 had math-verify's verdict on everything but whole numbers
    distribution: ClassVar[str | None] = "math-verify"

    def check(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError(
                "task.verifier: 'boxed_math' needs math-verify, which is not installed; "
                f"install it with `{extra_command('math')}`, or take verifier=numeric for plain "
                "numbers"
            )

    def prepare(self) -> None:
        logging.getLogger("math_verify").setLevel(logging.CRITICAL)
        math_parsing.parse("\\sqrt{2}")  # builds the grammar: most of the first answer's time

    def reads(self, reference: ReferenceAnswer) -> bool:
        return _can_be_read(str(reference["answer"]))

    def judge(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        gold = str(reference["answer"])
        answer = boxed_answer(completion)
        spelt = _spelling(answer) if answer else None
        if not _can_be_read(gold):
            return UNREADABLE._replace(answer=spelt)
        if not answer:
            return verdict(False, None)
        return verdict(_are_equal(gold, answer), spelt)

    def judge_quickly(self, reference: ReferenceAnswer, completion: str | None) -> Verdict | None:
        """Decide where both sides are numbers, as `judge` does."""
        gold = str(reference["answer"])
        expected = _gold_quantity(gold)
        if expected is None:
            return None
        if completion is None:
            return verdict(True, None)
        answer = boxed_answer(completion)
        if not answer:
            return verdict(False, None)
        given = _answer_quantity(expected, answer)
        if given is None or not _names_fit(gold, answer):
            return None
        return verdict(_same_number(expected, given), spell(given.value))


@functools.lru_cache(_CACHED_REFERENCES)
def _can_be_read(gold: str) -> bool:
    if _gold_quantity(gold) is not None or compare_words(gold, gold) is not None:
        return True
    return math_parsing.parse_reference(gold) is not None


def _spelling(answer: str) -> str:
    """Return an answer in a spelling that is the same for most ways to write it."""
    quantity = read_quantity(answer)
    if quantity is not None:
        return spell(quantity.value)
    parsed = math_parsing.parse(answer)
    return "".join(answer.split()) if parsed is None else str(parsed)


_SPACES = re.compile(r"(?<![0-9])\s+|\s+(?![0-9])")


def _spaces_removed(text: str) -> str:
    """Return a text without spaces, but those between two digits."""
    return _SPACES.sub("", text.strip())


def _are_equal(gold: str, answer: str) -> bool:
    """Return whether two texts are the same answer; the first that can tell decides."""
    if _spaces_removed(gold) == _spaces_removed(answer):
        return True
    by_words = compare_words(gold, answer)
    if by_words is not None:
        return by_words
    expected = _gold_quantity(gold)
    if expected is not None:
        given = _answer_quantity(expected, answer)
        if given is not None and _names_fit(gold, answer):
            return _same_number(expected, given)
    return math_parsing.are_equal(gold, answer)


_FORMULA = re.compile(r"[-+*/^<>]|[0-9]\s*[A-Za-z\\]")


def _gold_quantity(gold: str) -> Quantity | None:
    """Return the number that a reference answer is; None for an equation such as `2x + y = 1`."""
    left, equals, _ = gold.partition("=")
    if equals and any(character.isalpha() for character in left) and _FORMULA.search(left):
        return None
    return read_quantity(gold)


def _answer_quantity(gold: Quantity, answer: str) -> Quantity | None:
    if math_notation.has_open_dollar(answer):
        return None
    # A comma between digits is a decimal comma only where a list makes no sense.
    return read_quantity(answer, decimal_comma=bool(gold.decimals))


def _names_fit(gold: str, answer: str) -> bool:
    """Return whether two equations give the value of the same thing, or one of them is none."""
    if "=" not in gold or "=" not in answer:
        return True
    return "".join(gold.split("=")[0].split()) == "".join(answer.split("=")[0].split())


def _same_number(gold: Quantity, answer: Quantity) -> bool:
    return agree(gold, answer) and not _units_differ(gold.unit, answer.unit)


# Different units of one kind: an answer in the wrong one is wrong.
_UNITS = {
    spelling: (kind, unit)
    for kind, units in {
        "length": (
            ("mm", "millimeter", "millimetre"),
            ("cm", "centimeter", "centimetre"),
            ("m", "meter", "metre"),
            ("km", "kilometer", "kilometre"),
            ("in", "inch", "inche"),
            ("ft", "foot", "feet"),
            ("yd", "yard"),
            ("mi", "mile"),
        ),
        "time": (
            ("s", "sec", "second"),
            ("min", "minute"),
            ("h", "hr", "hour"),
            ("day",),
            ("week",),
            ("month",),
            ("year", "yr"),
        ),
        "mass": (
            ("mg", "milligram"),
            ("g", "gram"),
            ("kg", "kilogram"),
            ("lb", "pound"),
            ("oz", "ounce"),
        ),
        "speed": (("m/s",), ("km/h", "kph"), ("mph", "miles per hour")),
        "money": (("cent", "¢"), ("dollar",)),
        "angle": (("degree", "deg"), ("radian", "rad")),
    }.items()
    for unit, spellings in enumerate(units)
    for spelling in spellings
}


def _units_differ(gold: str, answer: str) -> bool:
    """Return whether two known units measure the same and are not the same."""
    expected, power = _known_unit(gold)
    given, other_power = _known_unit(answer)
    if expected is None or given is None or expected[0] != given[0]:
        return False
    return expected != given or power != other_power


_POWER = re.compile(r"(?P<base>.*?[a-z])\s?\^?\s?(?P<power>[23])")
_SQUARE_OR_CUBIC = re.compile(r"(?P<word>square|sq\.?|cubic|cu\.?)\s+(?P<base>.+)")


def _known_unit(text: str) -> tuple[tuple[str, int] | None, int]:
    """Return the kind and the place of a unit, None if it is not known, and its power."""
    power = 1
    raised = _POWER.fullmatch(text)
    named = _SQUARE_OR_CUBIC.fullmatch(text)
    if raised is not None:
        text = raised["base"]
        power = int(raised["power"])
    elif named is not None:
        text = named["base"]
        power = 2 if named["word"].startswith("s") else 3
    return _UNITS.get(text) or _UNITS.get(text.removesuffix("s")), power
