"""Verifiers of answers in a text: a box, a letter, a number, a pattern, or mathematics."""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
from collections import deque
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation, localcontext
from fractions import Fraction
from typing import Any, ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.packages import extra_command
from advsweep.tasks.verifiers.base import (
    UNREADABLE,
    QuickVerifier,
    ReferenceAnswer,
    Verdict,
    Verifier,
    verdict,
)

_OPENING = re.compile(r"\\boxed\s*\{")
_MARKS = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace opens and closes nothing
_BARE = re.compile(r"\\boxed\s+([^\s$.,;{}]+)")
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
    start = text.rfind("\\boxed")
    if start < 0:
        return None
    opening = _OPENING.match(text, start)
    if opening is None:
        bare = _BARE.match(text, start)
        return bare[1] if bare else None
    depth = 1
    for mark in _MARKS.finditer(text, opening.end()):
        depth += {"{": 1, "}": -1}.get(mark[0], 0)
        if depth == 0:
            return text[opening.end() : mark.start()].strip() or None
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
    if value.denominator == 1:
        return str(value.numerator)
    # More digits than any number has that is read here.
    with localcontext(Context(prec=4096, traps=[Inexact, InvalidOperation])):
        try:
            exact = Decimal(value.numerator) / Decimal(value.denominator)
        except Inexact:
            return f"{value.numerator}/{value.denominator}"
        return f"{exact.normalize():f}"


_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")
_LETTER = re.compile(r"\(?([A-Za-z])\)?(?:[).:,\s].*)?", re.DOTALL)
_STATED = re.compile(r"answer\s{0,3}(?:is|:)\s{0,3}\*{0,2}\(?([A-Z])\b", re.IGNORECASE)


@dataclass(kw_only=True)
class Choice(QuickVerifier):
    r"""Correct if the letter in the last `\boxed{...}` is the reference, A to Z.

    Without a box the letter after the last "answer is" or "answer:" counts.
    """

    name: ClassVar[str] = "choice"

    def reads(self, reference: ReferenceAnswer) -> bool:
        return _letter(str(reference["answer"])) is not None

    def judge(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        boxed, stated = last_boxed(completion), _STATED.findall(completion)
        found = stated[-1].upper() if stated else None
        if boxed is not None:
            found = _letter(_WRAPPED.sub(r"\1", boxed))
        return verdict(found == _letter(str(reference["answer"])), found)


def _letter(text: str) -> str | None:
    match = _LETTER.fullmatch(text.strip())
    return match[1].upper() if match else None


_NUMBERS = re.compile(r"[+-]?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


@dataclass(kw_only=True)
class Numeric(QuickVerifier):
    r"""Correct if the number in the last `\boxed{...}` equals the reference answer, a number too.

    Without a box the last number of the completion counts, unless `boxed_only` is set. Thousands
    separators, currency signs and percent signs are ignored.
    """

    name: ClassVar[str] = "numeric"

    tolerance: float = option(1e-6, ge=0, help="largest difference, relative to the gold answer")
    boxed_only: bool = option(False, help="an answer without a box is wrong")

    def reads(self, reference: ReferenceAnswer) -> bool:
        return number(str(reference["answer"])) is not None

    def judge(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        expected = number(str(reference["answer"]))
        text = last_boxed(completion)
        if text is None and not self.boxed_only:
            last = deque(_NUMBERS.finditer(completion), maxlen=1)
            text = last[0][0].rstrip(",") if last else None
        found = None if text is None else number(text)
        if found is None or expected is None:
            return verdict(False, None)
        right = abs(found - expected) <= Fraction(self.tolerance) * abs(expected)
        return verdict(right, spell(found))


@dataclass(kw_only=True)
class Pattern(Verifier):
    """Correct if the last match of a regular expression is the reference answer, as text.

    The answer is the pattern's first group, or the whole match if it has no group. Spaces at both
    ends do not count. Matching may take very long on some texts, so it runs in a process that is
    killed at its deadline.
    """

    name: ClassVar[str] = "regex"

    pattern: str = option(
        r"(?i)answer(?: is|:)\s*(.+?)\.?\s*(?:\n|$)", help="its last match is the answer"
    )
    ignore_case: bool = option(False, help="whether A and a are the same answer")

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(
                f"pattern: expected a regular expression, got {self.pattern!r}: {error}"
            ) from error

    def reads(self, reference: ReferenceAnswer) -> bool:
        return bool(str(reference["answer"]).strip())

    def judge(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        matches = deque(re.finditer(self.pattern, completion), maxlen=1)
        if not matches:
            return verdict(False, None)
        last, expected = matches[0], str(reference["answer"]).strip()
        found = ((last[1] if last.re.groups else last[0]) or "").strip()
        if self.ignore_case:
            return verdict(found.casefold() == expected.casefold(), found.casefold())
        return verdict(found == expected, found)

    def solution(self, reference: ReferenceAnswer) -> str:
        return f"The answer is {reference['answer']}"


_SCIENTIFIC = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?)[eE]([+-]?[0-9]+)")
_EXACT_DIGITS = 15
_CACHED_REFERENCES = 4096


@dataclass(kw_only=True)
class BoxedMath(Verifier):
    r"""Correct if the last `\boxed{...}` equals the reference as mathematics; no box is wrong.

    AVSPO (Advantage Collapse in GRPO), Eq. 39; A-GRAE and AAPO the same. Equality is
    math-verify's: reference first, as it is not symmetric. A boxed answer that cannot be read is
    wrong, a reference answer that cannot be read makes the completion unscorable, and so does an
    error in the comparison. Whole numbers are compared here, with the same result.

    Departures: of several boxes the last one counts, where math-verify may take them for a
    set; `4.5e33` is read as 4.5 · 10³³, where math-verify reads 4.5 · e · 33.
    """

    name: ClassVar[str] = "boxed_math"
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
        _parse("\\frac{1}{2}")  # builds the grammar, which takes most of the first answer's time

    def reads(self, reference: ReferenceAnswer) -> bool:
        return bool(_parse_reference(str(reference["answer"])))

    def judge(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        from math_verify import verify

        expected = _parse_reference(str(reference["answer"]))
        boxed = last_boxed(completion)
        found = [] if boxed is None else _parse(boxed)
        answer = None
        if boxed is not None:  # in a spelling that is the same for most ways to write it
            value = plain_number(boxed)
            same = spell(value) if value is not None else "".join(boxed.split())
            answer = str(found[0]) if found and value is None else same
        if not expected:
            return UNREADABLE._replace(answer=answer)
        if not found:
            return verdict(False, answer)
        right = verify(expected, found, timeout_seconds=None, raise_on_error=True)
        return verdict(right, answer)

    def judge_quickly(self, reference: ReferenceAnswer, completion: str | None) -> Verdict | None:
        text = str(reference["answer"])
        expected = plain_number(text)
        if expected is None:
            return None
        if completion is None:
            return verdict(True, None)
        boxed = last_boxed(completion)
        if boxed is None:
            return verdict(False, None)
        found = plain_number(boxed)
        # math-verify rounds if the reference answer has decimals, and both must fit into a float.
        if found is None or "." in text or max(len(text), len(boxed)) > _EXACT_DIGITS:
            return None
        return verdict(found == expected, spell(found))


def _parse(text: str) -> list[Any]:
    """Return an answer as sympy objects, usually one; empty if it cannot be read."""
    from math_verify import parse

    text = _SCIENTIFIC.sub(r"\1 \\times 10^{\2}", text) if _SCIENTIFIC.fullmatch(text) else text
    # Some answers can be read in one of the forms only: percentages, lists, several lines.
    for form in (f"\\boxed{{{text}}}", f"${text.replace('$', '')}$"):
        found: list[Any] = parse(form, fallback_mode="no_fallback", parsing_timeout=None)
        if found:
            return found
    return []


_parse_reference = functools.lru_cache(_CACHED_REFERENCES)(_parse)
