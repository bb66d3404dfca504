r"""The last `\boxed{...}` of a text."""

from __future__ import annotations

import re
from typing import NamedTuple

_BOX = "box"
_BEFORE = ("\\", "\\f")  # \boxed, \fbox
_OPENING = re.compile(r"\\(?:boxed|fbox)\s*\{")
_MARKS = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace opens and closes nothing
_BARE = re.compile(r"\\boxed\s+([^\s$.,;{}]+)")
# What stands between boxes that are read together. Two with an "or" between them leave open which
# of them is the answer.
_SPACE = r"(?:[\s$]|\\[()\[\],;: ]|\\q?quad(?![a-z]))"
_TEXT = r"(?:\\text\s*\{\s*)?"
_LINK = re.compile(
    rf"{_SPACE}{{0,20}}(?:,{_SPACE}{{0,20}}{_TEXT}(?:and|(?P<or>or))?|{_TEXT}(?:and|(?P<or2>or)))"
    rf"\s?\}}?{_SPACE}{{0,20}}\Z"
)
_LONGEST_LINK = 60
_MOST_BOXES = 20


class _Box(NamedTuple):
    """What a box holds, without spaces at both ends, and where it ends in the text."""

    content: str
    end: int


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}`; None if there is none that can be read.

    >>> last_boxed(r"so \\boxed{1}, or rather \\boxed{\\frac{1}{2}}.")
    '\\\\frac{1}{2}'
    """
    start, box = _last_box(text)
    return box.content if start >= 0 and box is not None else None


def boxed_answer(text: str) -> str | None:
    r"""Return what the boxes of a text give as its answer.

    The last `\boxed{...}` or `\fbox{...}` counts that is not empty. `\boxed 7` is read too, because
    some solutions of MATH use it. Of a box in a box the content of the inner one counts. Boxes with
    nothing but a comma or "and" between them are a list, whose parts are joined by commas. The time
    is linear in the text.

    Returns:
        None if there is no box; an empty text if there is one that is no answer, because it is not
        closed or because an "or" stands between the last two boxes.
    """
    start, box = _last_box(text)
    if start < 0:
        return None
    return "" if box is None else _with_boxes_before(text, start, box.content)


def _last_box(text: str) -> tuple[int, _Box | None]:
    """Return where the last box begins that is not empty, and the box; None if it is not closed.

    The place is -1 where there is no box.
    """
    end = len(text)
    while True:
        start = _rightmost(text, end)
        if start < 0:
            return -1, None
        box = _read(text, start)
        if box is None or box.content:
            return start, box
        end = start  # an empty box repeats the instruction


def _rightmost(text: str, end: int) -> int:
    """Return where the last box before `end` begins; -1 if there is none."""
    while True:
        start = text.rfind(_BOX, 0, end)
        if start < 0:
            return -1
        for before in _BEFORE:
            if text.startswith(before, start - len(before)) and start >= len(before):
                return start - len(before)
        end = start


def _read(text: str, start: int) -> _Box | None:
    """Return the box that begins at `start`; None if it is not closed."""
    opening = _OPENING.match(text, start)
    if opening is None:
        bare = _BARE.match(text, start)
        return _Box(bare[1], bare.end()) if bare else _Box("", start)
    first = opening.end()
    depth = 1
    for mark in _MARKS.finditer(text, first):
        depth += {"{": 1, "}": -1}.get(mark[0], 0)
        if depth == 0:
            return _Box(text[first : mark.start()].strip(), mark.end())
    return None


def _with_boxes_before(text: str, start: int, content: str) -> str:
    """Return the content of the box at `start` and of those that it continues, or an empty text."""
    contents = [content]
    for _ in range(_MOST_BOXES):
        before = text[max(0, start - _LONGEST_LINK) : start]
        link = _LINK.search(before)
        if link is None:
            break
        previous = _rightmost(text, start)
        box = None if previous < 0 else _read(text, previous)
        if box is None or box.end != start - len(before) + link.start():
            break
        if link["or"] or link["or2"]:
            return ""
        if box.content not in contents:
            contents.insert(0, box.content)
        start = previous
    return ", ".join(contents)
