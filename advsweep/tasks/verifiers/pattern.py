"""The verifier `regex`: the last match of a pattern."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.tasks.verifiers.base import ReferenceAnswer, Verdict, Verifier, verdict

# The answer ends with its line, or with a full stop before a capital letter; the full stop of an
# abbreviation, such as "St. Louis", ends nothing.
_DEFAULT = (
    r"(?i)answer(?:\*\*|\")?(?: is|:)+\s*(.+?)"
    r"(?:\s*(?:\n|$)|(?:(?<=\d)|(?<=[^\W\d]{4})|(?<=\*\*)|(?-i:(?<=\b[a-z]{2})|(?<=\b[a-z]{3})))\.(?-i:\s+[A-Z]))"
)
_MARKS = " \t\r\n*_`\"'“”‘’"


@dataclass(kw_only=True)
class Pattern(Verifier):
    """Correct if the last match of a regular expression is the reference answer, as text.

    The answer is the pattern's first group, or the whole match if it has no group. Spaces,
    quotation marks and Markdown's stars at both ends do not count, and neither does a full stop at
    the end. Matching may take very long on some texts, so it runs in a process that is killed at
    its deadline.
    """

    name: ClassVar[str] = "regex"
    revision: ClassVar[int] = 3  # in 2, a full stop and stars were part of the answer

    pattern: str = option(_DEFAULT, help="its last match is the answer")
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
        last = matches[0]
        answer = _bare((last[1] if last.re.groups else last[0]) or "")
        gold = _bare(str(reference["answer"]))
        if self.ignore_case:
            answer = answer.casefold()
            gold = gold.casefold()
        return verdict(answer == gold, answer)

    def solution(self, reference: ReferenceAnswer) -> str:
        return f"The answer is {reference['answer']}"


def _bare(text: str) -> str:
    """Return a text without marks at both ends and a full stop; the text itself if all is that."""
    bare = text.strip(_MARKS).removesuffix(".").strip(_MARKS)
    return bare or text.strip()
