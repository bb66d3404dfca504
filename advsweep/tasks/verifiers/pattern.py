"""Answers by a regular expression of the user's, compared as texts."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.tasks.verifiers.base import Gold, Verdict, Verifier, verdict


@dataclass(kw_only=True)
class Pattern(Verifier):
    """Correct if the last match of a regular expression is the gold answer, as text.

    The answer is the pattern's first group, or all of the match where it has none. Space at
    both ends does not count. A pattern may take very long on some texts: it is tried in a
    process that is killed at its deadline.
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

    def reads(self, gold: Gold) -> bool:
        return bool(str(gold["answer"]).strip())

    def reads_quickly(self, gold: Gold) -> bool:
        return self.reads(gold)

    def judge(self, gold: Gold, completion: str) -> Verdict:
        matches = deque(re.finditer(self.pattern, completion), maxlen=1)
        if not matches:
            return verdict(False, None)
        last, expected = matches[0], str(gold["answer"]).strip()
        found = ((last[1] if last.re.groups else last[0]) or "").strip()
        if self.ignore_case:
            return verdict(found.casefold() == expected.casefold(), found.casefold())
        return verdict(found == expected, found)

    def solution(self, gold: Gold) -> str:
        return f"The answer is {gold['answer']}"
