"""Plain numbers, compared as numbers."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from advsweep.components import option
from advsweep.tasks.verifiers.base import (
    UNREADABLE_GOLD,
    Gold,
    Outcome,
    QuickVerifier,
    Verdict,
    verdict,
)
from advsweep.tasks.verifiers.extraction import last_boxed, number, spell

_NUMBERS = re.compile(r"[+-]?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


@dataclass(kw_only=True)
class Numeric(QuickVerifier):
    r"""Correct if the number in the last `\boxed{...}` equals the gold answer, a number too.

    Without a box the last number of the completion counts, unless one is asked for. Commas at
    thousands, signs of currency and of percent are left out.
    """

    name: ClassVar[str] = "numeric"

    tolerance: float = option(1e-6, ge=0, help="largest difference, relative to the gold answer")
    boxed_only: bool = option(False, help="an answer without a box is wrong")

    def reads(self, gold: Gold) -> bool:
        return number(str(gold["answer"])) is not None

    def judge(self, gold: Gold, completion: str) -> Verdict:
        expected = number(str(gold["answer"]))
        if expected is None:
            return Verdict(Outcome.UNSCORABLE, reason=UNREADABLE_GOLD)
        found = self._find(completion)
        if found is None:
            return verdict(False, None)
        right = abs(found - expected) <= Fraction(self.tolerance) * abs(expected)
        return verdict(right, spell(found))

    def solution(self, gold: Gold) -> str:
        return f"\\boxed{{{gold['answer']}}}"

    def _find(self, completion: str) -> Fraction | None:
        boxed = last_boxed(completion)
        if boxed is not None:
            return number(boxed)
        if self.boxed_only:
            return None
        last = deque(_NUMBERS.finditer(completion), maxlen=1)
        return number(last[0][0].rstrip(",")) if last else None
