"""Finds the reference answer in the text of a column, and says which texts a verifier can read."""

from __future__ import annotations

import re
from typing import Literal

from advsweep.tasks.verifiers.boxes import last_boxed
from advsweep.tasks.verifiers.number_reader import agree, read_quantity

# Which part of the answer column is the reference answer; a missing part cannot be read.
AnswerPart = Literal["auto", "whole", "hashes", "boxed", "stated"]

# "The answer is: 42", "Answer: 42" and the like in the last line.
_STATED = re.compile(
    r"(?:^|\b(?:so|thus|therefore|hence|[.!?])?,?\s*)(?:the\s+)?(?:final\s+)?\banswer\s*"
    r"(?:is\s*:?|[:=])\s*(?P<answer>\S.*?)\s*$",
    re.IGNORECASE,
)
# The tags of R1 at the end of a text.
_TAGGED = re.compile(r"<answer>(?P<answer>(?:(?!<answer>).)*)</answer>\s*$", re.DOTALL)
_LONGEST_ANSWER = 200  # characters; longer ones are running text
_MOST_WORDS = 6
_LATEX = re.compile(r"\\[a-zA-Z]+")
_WORD = re.compile(r"[^\W\d_]{3,}")
_MATHEMATICAL = re.compile(r"[0-9=+*/^\\|<>(){}\[\]]")


def reference_part(text: str, part: AnswerPart = "auto") -> str:
    """Return the answer in a text; empty if the marked part is missing.

    The whole text does not replace a missing part, because solutions contain other numbers too.

    >>> reference_part("6 * 7 = 42\\n#### 42\\nThe answer is: 42"), reference_part("42")
    ('42', '42')
    """
    if "\\boxed" not in text:
        text = text.replace("\\fbox", "\\boxed")  # some solutions of MATH use it
    if part == "auto":
        part = _part_in(text)
    if part == "hashes":
        _, mark, after = text.rpartition("####")
        lines = after.strip().splitlines()
        return lines[0].strip() if mark and lines else ""
    if part == "boxed":
        return last_boxed(text) or ""
    if part == "whole":
        return text.strip()
    tagged = _TAGGED.search(text)
    if tagged is not None and part == "auto":
        return tagged["answer"].strip()
    lines = text.strip().splitlines()
    match = _STATED.search(lines[-1]) if lines else None
    if match is not None:
        return match["answer"].removesuffix(".").strip()
    return "" if part == "stated" else text.strip()


def _part_in(text: str) -> AnswerPart:
    """Return which part a text marks as its answer; `auto` where it does so by tags or words."""
    if "####" in text:
        return "hashes"
    if "\\boxed" in text:
        return "boxed"
    return "auto"


def is_readable(text: str) -> bool:
    """Return whether a text is an answer, and no running text that only contains one."""
    text = text.strip()
    if not text or len(text) > _LONGEST_ANSWER or "\n" in text:
        return False
    if text.startswith("{") and text.endswith("}") and '":' in text:
        return False  # an object
    if read_quantity(text) is not None:
        return True
    words = _WORD.findall(_LATEX.sub(" ", text))
    return len(words) <= _MOST_WORDS


def is_words(text: str) -> bool:
    """Return whether an answer is a name or a word, and not mathematics.

    >>> [is_words(text) for text in ("Sinclair Lewis", "yes", "x + 1", "5 miles", "\\\\pi")]
    [True, True, False, False, False]
    """
    return not _MATHEMATICAL.search(text) and bool(re.search(r"[^\W\d_]{2,}", text))


def are_equal(first: str, second: str) -> bool:
    """Return whether two answers are the same number, or the same text but for case and spaces."""
    one = read_quantity(first)
    two = read_quantity(second)
    if one is not None and two is not None:
        return agree(one, two)
    return _plain(first) == _plain(second)


def _plain(text: str) -> str:
    return "".join(text.casefold().replace("$", "").replace("dfrac", "frac").split())
