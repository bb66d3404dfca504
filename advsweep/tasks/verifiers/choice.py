"""Multiple choice: the letter of an option."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from advsweep.tasks.verifiers.base import (
    UNREADABLE_GOLD,
    Gold,
    Outcome,
    QuickVerifier,
    Verdict,
    verdict,
)
from advsweep.tasks.verifiers.extraction import last_boxed

_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")
_LETTER = re.compile(r"\(?([A-Za-z])\)?(?:[).:,\s].*)?", re.DOTALL)
_STATED = re.compile(r"answer\s{0,3}(?:is|:)\s{0,3}\*{0,2}\(?([A-Z])\b", re.IGNORECASE)


@dataclass(kw_only=True)
class Choice(QuickVerifier):
    r"""Correct if the letter in the last `\boxed{...}` is the gold one, A to Z.

    Without a box the letter after the last "answer is" or "answer:" counts.
    """

    name: ClassVar[str] = "choice"

    def reads(self, gold: Gold) -> bool:
        return _letter(str(gold["answer"])) is not None

    def judge(self, gold: Gold, completion: str) -> Verdict:
        expected = _letter(str(gold["answer"]))
        if expected is None:
            return Verdict(Outcome.UNSCORABLE, reason=UNREADABLE_GOLD)
        found = _find(completion)
        return verdict(found == expected, found)

    def solution(self, gold: Gold) -> str:
        return f"\\boxed{{{gold['answer']}}}"


def _find(completion: str) -> str | None:
    boxed = last_boxed(completion)
    if boxed is not None:
        return _letter(_WRAPPED.sub(r"\1", boxed))
    stated = _STATED.findall(completion)
    return stated[-1].upper() if stated else None


def _letter(text: str) -> str | None:
    match = _LETTER.fullmatch(text.strip())
    return match[1].upper() if match else None
