"""Where a text without a box states its answer: behind "the answer is" and the like."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_ANSWER = ("answer",)
_OF_OTHER_LANGUAGES = ("respuesta", "antwort", "risposta", "resposta")
_IN_OTHER_SCRIPTS = ("réponse", "ответ", "答案", "正解", "答え", "정답")
_LONGEST_STATEMENT = 400
_MOST_STATEMENTS = 20

# What may stand between the word and its answer: "**Answer:** ", "answer to this question is ".
_LINK = re.compile(
    r"s?[*_\s\"'\])]{0,6}"
    r"(?:(?:correcta|correcte|correta|corretta|finale?)(?:\s|(?=[:：])))?"
    r"(?:(?:to|of|for|in|choice|option|here)\b[^.:\n=?!]{0,60}?\s)?"
    r"(?:(?:is|are|was|will be|would be|should be|must be|has to be|seems to be|be"
    r"|es|ist|est|è|é)\b"
    r"|】[:：]?|(?:选项|选择)?(?:应该|应)?[:：=为是选は은]|[-–—](?=\s)"
    r"|(?P<heading>[*_]{0,2}:?\n))"
    r"[:：\s]*"
)
_ENDS_WITH_FINAL = re.compile(r"(?:final|the|correct|my)\s*$|^\W*$|\n\W*$", re.IGNORECASE)


def thought_removed(text: str) -> str:
    """Return what a text says behind its last `</think>`; all of it where there is none."""
    return text.rpartition("</think>")[2] if "</think>" in text else text


def statements(text: str, words: Sequence[str] = _ANSWER) -> Iterator[str]:
    """Yield what follows each "answer is", "Answer:" or `<answer>`, the last one first.

    Of a long text with very many of them the last 20 are looked at, and each is cut after 400
    characters, so that the time is linear in the text.

    Args:
        words: the words that announce an answer, in lower case.
    """
    lower = text.lower()
    if len(lower) != len(text):  # some letters become two in lower case
        lower = text
    announcing = (*words, *_OF_OTHER_LANGUAGES)
    if not lower.isascii():
        announcing += _IN_OTHER_SCRIPTS
    present = [word for word in announcing if word in lower]
    end = len(lower)
    for _ in range(_MOST_STATEMENTS):
        start, word = max(((lower.rfind(word, 0, end), word) for word in present), default=(-1, ""))
        if start < 0:
            return
        first = _first_character(lower, start, start + len(word))
        if first is not None:
            yield text[first : first + _LONGEST_STATEMENT]
        end = start


def _first_character(text: str, start: int, end: int) -> int | None:
    """Return where the answer begins that the word at `start` announces; None if it does not."""
    if text[end : end + 1] == ">":
        return end + 1 if text[start - 1 : start] == "<" else None
    if text[start - 1 : start] == "[" and text[end : end + 1] == "]":
        return end + 1
    link = _LINK.match(text, end)
    if link is None:
        return None
    before = text[max(0, start - 12) : start]
    if link["heading"] is not None and not _ENDS_WITH_FINAL.search(before):
        return None
    return link.end()
