r"""Answers that are no formulas: words, letters of choices, times of day, ratios, bases.

math-verify takes words for products of their letters, so that "east" equals "seat", and divides the
hours of a time by its minutes.
"""

from __future__ import annotations

import re

from advsweep.tasks.verifiers.choice import labelled_letter

_STYLES = r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox)"
_STYLED = re.compile(rf"{_STYLES}\s*\{{([^{{}}]*)\}}")
_SPACES = re.compile(r"\\[,;:! ]|~|\\quad")
_ENDS = " \t\n$.\"'"


def compare_words(gold: str, answer: str) -> bool | None:
    """Return whether two answers that are no formulas are equal; None if the reference is one."""
    for compare in (
        _compare_dots,
        _compare_choices,
        _compare_times,
        _compare_ratios,
        _compare_bases,
    ):
        equal = compare(gold, answer)
        if equal is not None:
            return equal
    return _compare_plain_words(gold, answer)


def _bare(text: str) -> str:
    """Return a text without LaTeX's styles and spaces, and without quotation marks around it."""
    for _ in range(2):
        text = _STYLED.sub(r" \1 ", text)
    return " ".join(_SPACES.sub(" ", text).strip(_ENDS).split())


# --------------------------------------------------------------------------------------- dots

_DOTS = re.compile(r"\\(?:ldots|dots|cdots|dotsc|dotsb)(?![a-z])|\.\.\.|…")
_LOOSE = re.compile(r"\s|\\[,;:! ]|\\(?:left|right)(?![a-z])|[{}$]")


def _compare_dots(gold: str, answer: str) -> bool | None:
    r"""Compare lists with `\ldots`, of which math-verify drops the dots and what they stand for."""
    if not _DOTS.search(gold):
        return None
    return _undotted(gold) == _undotted(answer)


def _undotted(text: str) -> str:
    return _LOOSE.sub("", _DOTS.sub("...", text)).strip(".")


# ------------------------------------------------------------------------------------- choices

_LETTER_ALONE = re.compile(r"[A-J]")
_CHOICE = re.compile(r"\(\s*([A-Z])\s*\)")
_LABELLED_OPTION = re.compile(r"\(\s*[A-Z]\s*\)(?!\s*[-+*/^=_]).*", re.DOTALL)
_STYLED_LETTER = re.compile(rf"{_STYLES}\s*\{{\s*\(?([A-Z])\)?\s*\}}")


def _compare_choices(gold: str, answer: str) -> bool | None:
    bare = gold.strip(_ENDS)
    match = _CHOICE.fullmatch(_bare(gold)) or _STYLED_LETTER.fullmatch(bare)
    if match is not None:
        return labelled_letter(answer) == match[1]
    if _LETTER_ALONE.fullmatch(bare) and _LABELLED_OPTION.fullmatch(_bare(answer)):
        return labelled_letter(answer) == bare
    return None


# --------------------------------------------------------------------------------------- times

_TIME = re.compile(
    r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-5][0-9])(?::(?P<second>[0-5][0-9]))?\s*(?P<half>[ap]\.?\s?m\.?)?",
    re.IGNORECASE,
)


def _compare_times(gold: str, answer: str) -> bool | None:
    expected = _time(gold)
    if expected is None:
        return None
    given = _time(answer)
    if given is None:
        # 3:10 may be a ratio too.
        return None if expected[1] is None and ":" in gold and not _is_oclock(gold) else False
    if expected[1] is not None and given[1] is not None:
        return _minutes(*expected) == _minutes(*given)
    return expected[0] == given[0] or _minutes(*expected) == _minutes(*given)


def _time(text: str) -> tuple[tuple[int, int, int], str | None] | None:
    """Return hour, minute and second, and "a" or "p" if one is given."""
    match = _TIME.fullmatch(_bare(text))
    if match is None or int(match["hour"]) > 24:
        return None
    clock = (int(match["hour"]), int(match["minute"]), int(match["second"] or 0))
    return clock, match["half"][0].lower() if match["half"] else None


def _minutes(clock: tuple[int, int, int], half: str | None) -> tuple[int, int, int]:
    """Return a time of the 24-hour clock."""
    hour, minute, second = clock
    if half is not None:
        hour = hour % 12 + (12 if half == "p" else 0)
    return hour, minute, second


def _is_oclock(text: str) -> bool:
    return _bare(text).endswith(":00")


# -------------------------------------------------------------------------------------- ratios

_RATIO = re.compile(r"[0-9]{1,12}(?:\s*:\s*[0-9]{1,12})+")


def _compare_ratios(gold: str, answer: str) -> bool | None:
    expected = _ratio(gold)
    given = _ratio(answer)
    if expected is None or given is None:
        # math-verify divides the parts of 1:2:3 one by the other.
        return False if expected is not None and len(expected) > 2 else None
    if len(expected) != len(given) or 0 in expected + given:
        return expected == given
    pairs = zip(expected, given, strict=True)
    return all(left * given[0] == right * expected[0] for left, right in pairs)


def _ratio(text: str) -> list[int] | None:
    bare = _bare(text).replace("\\colon", ":").replace("{:}", ":")
    if _RATIO.fullmatch(bare) is None:
        return None
    return [int(part) for part in bare.split(":")]


# --------------------------------------------------------------------------------------- bases

_BASED = re.compile(
    r"\(?(?P<digits>[0-9A-Za-z]+)\)?\s*_\s*\{?\s*\(?(?P<base>[0-9]{1,2}|\w{3,12})\)?\s*\}?"
)


def _compare_bases(gold: str, answer: str) -> bool | None:
    """Compare numbers in a base, whose subscript math-verify drops; the base may be left out."""
    expected = _based(gold)
    given = _based(answer)
    if expected is None and given is None:
        return None
    if expected is not None and given is not None:
        return expected == given
    based = expected or given
    other = _bare(answer if expected is not None else gold)
    if based is None or other.lower() != based[0]:
        return False
    return expected is not None or based[1] in {"10", "ten"}


def _based(text: str) -> tuple[str, str] | None:
    match = _BASED.fullmatch(_bare(text))
    if match is None or not match["digits"][0].isdigit():
        return None
    names = {
        "two": "2",
        "three": "3",
        "four": "4",
        "five": "5",
        "six": "6",
        "seven": "7",
        "eight": "8",
    }
    base = match["base"].lower()
    return match["digits"].lower(), names.get(base, base)


# --------------------------------------------------------------------------------------- words

_LETTERS = re.compile(r"[A-Za-z][A-Za-z'’-]*(?: [A-Za-z][A-Za-z'’-]*){0,7}")
_FORMULA_WORDS = (
    "pi sqrt sin cos tan cot sec csc log ln exp infinity inf infty arcsin arccos arctan mod"
)
_FORMULAS = frozenset(_FORMULA_WORDS.split())
_SHORTEST_WORD = 4


def _compare_plain_words(gold: str, answer: str) -> bool | None:
    expected = _without_article(_bare(gold))
    if _says_no_solution(gold) and _says_no_solution(answer):
        return True
    if not _LETTERS.fullmatch(expected):
        return None
    given = _without_article(_bare(answer))
    are_styled = "\\text" in gold or "\\math" in gold or "\\text" in answer or " " in expected
    if not are_styled and not _is_word(expected):
        return None
    if len(expected) == 1 and len(given) != 1:
        return None
    if any(word in _FORMULAS for word in expected.lower().split()):
        return None
    if not _LETTERS.fullmatch(given):
        return None if len(expected) == 1 else False
    if len(expected) == 1:  # the names of variables
        return expected == given
    return expected.casefold() == given.casefold()


_ARTICLE = re.compile(r"(?:(?:it is|it's)\s+)?(?:(?:a|an|the)\s+)?(?=[A-Za-z]{3})", re.IGNORECASE)


def _without_article(text: str) -> str:
    match = _ARTICLE.match(text)
    return text[match.end() :] if match else text


_NO_SOLUTION = frozenset(
    {"no solution", "no solutions", "\\emptyset", "\\varnothing", "∅", "\\{\\}", "\\{ \\}"}
)


def _says_no_solution(text: str) -> bool:
    return _bare(text).lower() in _NO_SOLUTION


def _is_word(text: str) -> bool:
    """Return whether letters are a word and no product of variables."""
    return len(text) >= _SHORTEST_WORD and any(vowel in text.lower() for vowel in "aeiou")
