"""Verifiers of short answers: the letter of an option, a number, or the match of a pattern."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.tasks.verifiers.base import (
    UNREADABLE_REFERENCE,
    Outcome,
    QuickVerifier,
    ReferenceAnswer,
    Verdict,
    Verifier,
    verdict,
)
from advsweep.tasks.verifiers.extraction import last_boxed, number, spell

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
        expected = _letter(str(reference["answer"]))
        if expected is None:
            return Verdict(Outcome.UNSCORABLE, reason=UNREADABLE_REFERENCE)
        found = _find(completion)
        return verdict(found == expected, found)

    def solution(self, reference: ReferenceAnswer) -> str:
        return f"\\boxed{{{reference['answer']}}}"


def _find(completion: str) -> str | None:
    boxed = last_boxed(completion)
    if boxed is not None:
        return _letter(_WRAPPED.sub(r"\1", boxed))
    stated = _STATED.findall(completion)
    return stated[-1].upper() if stated else None


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
        if expected is None:
            return Verdict(Outcome.UNSCORABLE, reason=UNREADABLE_REFERENCE)
        found = self._find(completion)
        if found is None:
            return verdict(False, None)
        right = abs(found - expected) <= Fraction(self.tolerance) * abs(expected)
        return verdict(right, spell(found))

    def solution(self, reference: ReferenceAnswer) -> str:
        return f"\\boxed{{{reference['answer']}}}"

    def _find(self, completion: str) -> Fraction | None:
        boxed = last_boxed(completion)
        if boxed is not None:
            return number(boxed)
        if self.boxed_only:
            return None
        last = deque(_NUMBERS.finditer(completion), maxlen=1)
        return number(last[0][0].rstrip(",")) if last else None


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

    def reads_quickly(self, reference: ReferenceAnswer) -> bool:
        return self.reads(reference)

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
