"""The verifier `choice`: the letter that a text gives as its answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from advsweep.tasks.verifiers.base import QuickVerifier, ReferenceAnswer, Verdict, verdict
from advsweep.tasks.verifiers.boxes import boxed_answer
from advsweep.tasks.verifiers.number_notation import UNSPACED
from advsweep.tasks.verifiers.signs import FULL_WIDTH
from advsweep.tasks.verifiers.statements import statements, thought_removed


@dataclass(kw_only=True)
class Choice(QuickVerifier):
    r"""Correct if the letter in the last `\boxed{...}` is the reference, A to Z.

    A box with two letters, or with none, is wrong. Without a box the letter counts that follows the
    last "answer is", "answer:" or "option is", else the one that ends the text, as in "so C" or
    "(C)". The article "a" and the pronoun "I" are no letters, and two letters are no answer.
    """

    name: ClassVar[str] = "choice"
    revision: ClassVar[int] = 2  # 1 took articles for letters, and the first of two letters

    def reads(self, reference: ReferenceAnswer) -> bool:
        return labelled_letter(str(reference["answer"])) is not None

    def judge(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        answer = chosen_letter(completion)
        right = answer is not None and answer == labelled_letter(str(reference["answer"]))
        return verdict(right, answer)


def chosen_letter(text: str) -> str | None:
    """Return the letter that a text gives as its answer, in upper case; None if it is unclear."""
    boxed = boxed_answer(text)
    if boxed is not None:
        return labelled_letter(boxed)
    text = _half_width(thought_removed(text))
    for statement in statements(text, words=_ANNOUNCING):
        is_statement, letter = _read_statement(statement)
        if is_statement:
            return letter
    return _last_letter(text)


_ANNOUNCING = ("answer", "option", "choice", "选项")
_FULL_WIDTH = str.maketrans(FULL_WIDTH)


_UNSPACED_LETTER = re.compile(rf"(?<=[{UNSPACED}])(?=[A-Z])|(?<=[A-Z])(?=[{UNSPACED}])")


def _half_width(text: str) -> str:
    """Return a text with ASCII's own signs, and spaces between letters and Chinese characters."""
    if text.isascii():
        return text
    return _UNSPACED_LETTER.sub(" ", text.translate(_FULL_WIDTH))


# ---------------------------------------------------------------- the text of a box is the answer

_STYLED = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox|boxed)\s*\{")
_DECORATION = re.compile(r"\\[,;:! ]|\\(?:quad|qquad|rm|bf|displaystyle)(?![a-z])|[${}*_`\"'~\\]")
_LABELLED = re.compile(
    r"(?:(?:the|correct|final|right|answer|option|choice|is)(?: ?: ?| ))*"
    r"(?P<open>[(\[])? ?(?P<letter>[A-Za-z])(?![A-Za-z0-9'’]) ?(?P<close>[)\]])?(?P<rest>.*)",
    re.DOTALL | re.IGNORECASE,
)
_FORMULA = re.compile(r"[A-Za-z]\s*[_^+#]\s*[\w{+]|[A-Za-z][+#]")
_ANOTHER_LABEL = re.compile(r"(?<!\w)\([A-Z]\)")
_LABEL_END = (".", ":", ")", "]", "-", "=")
_LONGEST_LABEL = 1000


def labelled_letter(text: str) -> str | None:
    r"""Return the letter that a text is, or that labels it, as in `(C) 12`; None for anything else.

    >>> labelled_letter(r"\\textbf{(C) }12"), labelled_letter("C and D"), labelled_letter("a prime")
    ('C', None, None)
    """
    if len(text) == 1:
        return text.upper() if text.isascii() and text.isalpha() else None
    if len(text) > _LONGEST_LABEL:
        return None
    if _FORMULA.search(text):
        return None
    bare = _DECORATION.sub(" ", _STYLED.sub(" ", _half_width(text)))
    bare = " ".join(bare.split())  # so that the pattern has no choice between spaces
    match = _LABELLED.fullmatch(bare)
    if match is None:
        return None
    rest = match["rest"]
    if _names_another(rest) or _ANOTHER_LABEL.search(rest):
        return None
    is_label = (
        match["close"] is not None or not rest.strip() or rest.lstrip().startswith(_LABEL_END)
    )
    if not is_label and _goes_on_as_sentence(match["letter"], rest):
        return None
    return match["letter"].upper()


def _goes_on_as_sentence(letter: str, rest: str) -> bool:
    """Return whether a letter begins a phrase, as in "a prime" or "I don't know"."""
    if letter.islower():
        return True
    word = _WORD.match(rest)
    return word is not None and word[1] not in _REASONS


# --------------------------------------------------------------------- statements of the answer

_WORD = re.compile(r"[\s,]*([a-z']+)")
_REASON_WORDS = (
    "because since as for due which with is was would by given but not and or that it seems "
    "here based according i.e"
)
_REASONS = frozenset(_REASON_WORDS.split())
_LEAD = re.compile(
    r"(?:[\s*_$\"'“”‘’`{~:<]|\\[(\[]|\\(?:text|textbf|mathrm|mathbf|boxed|rm|bf)\s*\{?"
    r"|(?:therefore|thus|hence|then|indeed|actually|just|simply|clearly|likely|probably|definitely|"
    r"most|option|choice|letter|answer|the|is|be|it|that|of|correct|right|best|final|obviously|"
    r"number)\b,?|选项)*",
    re.IGNORECASE,
)
_LETTER = re.compile(
    r"(?P<open>[(\[])?\s*(?P<letter>[A-Za-z])(?!\w|['’]\w|-\w|_\w)"
    r"(?=\Z|[\s.,:;)\]}*_$\"'’”`!?(\\<>|&/+–—。，；！、-])(?!/\s*[^A-Z\s]|\+\s*[^A-Z\s])"
    r"(?:\s?(?P<close>[)\]]))?"
)
_PAIR = re.compile(r"\s+\(?[A-Z]\)?[\s.]*(?:\Z|\n)")
_NEGATED = re.compile(
    r"[\s*]*not\s+(?:option\s+|choice\s+)?\(?[A-Z]\)?(?:\s*(?:,|\bor\b|\bnor\b|\band\b)\s*\(?[A-Z]\b\)?)*"
    r"[\s,;.]*(?:(?:but|rather|instead|so|it is|it's|it must be)\b\s*)*",
)
_NONE = re.compile(
    r"(?:none|neither|unknown|unclear|undetermined|not|all of|both|either|don't|cannot|can't|unsure"
    r"|i\s+(?:do|don't|cannot|can't|am|think|believe|guess|would|have|could|did|need|was))\b",
    re.IGNORECASE,
)
_FIRST_LINE = re.compile(r"[^\n]*")
_IN_PARENTHESES = re.compile(
    r"(?<!\w)[(\[]([A-Z])[)\]]|\b(?:[Oo]ption|[Cc]hoice)\s+([A-Z])\b(?!['’])"
)
_ANOTHER = re.compile(
    r"[)\]}*_$\"'\s.]*(?:(?P<weak>[,;])|/|&|\+|、|和|或者?|与|\band\b|\bor\b"
    r"|\bas well as\b|\b(?:ou|oder|und|o|y|e|или|и)\b)\s*"
    r"(?:(?:and|or|also|possibly|maybe|perhaps|either|option|choice|answer|both)\s+)*"
    r"[(\[\"'*${\\]*(?P<other>[A-Z])(?![\w'’])(?P<behind>.{0,30})",
    re.DOTALL,
)
_REJECTED = re.compile(
    r"[)\]*_\"'\s]*(?:is|are|was|were|can|could|would|does|do|cannot|isn't|aren't)\b[^.]{0,12}?"
    r"(?:not|n't|wrong|incorrect|false|invalid|too|less)\b|[)\]]?\s*isn't|[)\]]?\s*cannot"
)
_LOWER_WORD = re.compile(r"[)\]*\s]*\s[a-z']+")


def _read_statement(statement: str) -> tuple[bool, str | None]:
    """Return whether a text begins with a letter as the answer, and which.

    A statement that there is none, or that names two, has none.
    """
    negated = _NEGATED.match(statement)
    if negated:
        statement = statement[negated.end() :]
    first = _end(_LEAD, statement, 0)
    letter = _leading_letter(statement, first)
    if letter is not None:
        return True, letter if letter else None
    if negated or _NONE.match(statement, first):
        return True, None
    line = statement[: _end(_FIRST_LINE, statement, 0)]
    named = {match[1] or match[2] for match in _IN_PARENTHESES.finditer(line)}
    if len(named) == 1:
        return True, named.pop()
    return False, None


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start


def _leading_letter(text: str, start: int) -> str | None:
    """Return the letter at `start`; an empty text if another one is named beside it, else None."""
    match = _LETTER.match(text, start)
    if match is None:
        return None
    rest = text[match.end() :]
    if rest.lstrip().startswith("="):  # the name of a quantity
        return None
    if rest.startswith("?") or _PAIR.match(rest):
        return ""
    is_marked = match["close"] is not None or text[start - 1 : start] in {"*", "$", '"', "{", "“"}
    letter = match["letter"]
    if not is_marked:
        ends = not rest.strip(" .!*_$\"'`}\\)”") or rest.lstrip(" .*").startswith("\n")
        if letter.islower() and not ends:
            return None
        word = _WORD.match(rest) if rest[:1].isspace() else None
        if letter in "AI" and word is not None and word[1] not in _REASONS:
            return None
    return "" if _names_another(rest) else letter.upper()


def _names_another(rest: str) -> bool:
    """Return whether the text behind a letter adds another one, as in "C or D"."""
    match = _ANOTHER.match(rest)
    if match is None or _REJECTED.match(match["behind"]):
        return False
    # "C, A is a distractor" and "B and I think so" name one letter.
    goes_on = _LOWER_WORD.match(match["behind"]) is not None
    if match["weak"] is not None or match["other"] in "AI":
        return not goes_on or match["behind"].lstrip(" )").startswith(("and", "or"))
    return True


# ------------------------------------------------------------------ texts without a statement

_TAIL = 400
_ENDS = re.compile(
    r"(?:(?i:\b(?:so|thus|therefore|hence|choose|pick|select|is|it's|option|choice|but|be|with|say|"
    r"letter|response|result|solution|leaves|leaving|ans)\b[:.,]?"
    r"\s+(?:(?:it is|it's|option|choice|the|letter)\s+)*)"
    r"|(?i:\b(?:correct|final)[*_]{0,2}:[*_]{0,2}\s*)"
    r"|(?:选择?[:：]?|(?:\A|(?<=\n)|(?<=[.:,] ))(?:[=-]>|→|⇒|∴))\s*)"
    r"[(\[\"'*$\\{]*(?P<letter>[A-Z])[)\]\"'*$\\}.!。\s]*\Z"
)
_DOUBTED = re.compile(
    r"(?:not|n't|cannot|could|can|may|might|either|nor|or|if|against|without"
    r"|(?:eliminat|exclud|reject|discard|dismiss|ignor|avoid)(?:e|ed|es|s|ing)?"
    r"|rul(?:e|ed|es|ing) out)\s*\Z",
    re.IGNORECASE,
)
_IS_CORRECT = re.compile(
    r"(?<![\w'])[(\[*]*(?P<letter>[A-Z])[)\]*]*\s+(?:is|must be)\s+(?:clearly\s+)?"
    r"(?:(?:the|my)\s+)?(?:(?:only|best|final)\s+)?(?:correct|right|answer|best)\b"
    r"|\b[Oo]nly\s+(?:option\s+)?\(?(?P<only>[A-Z])\)?\s+(?:satisf|works|fits|match|meets)"
    r"|选项\s?(?P<chinese>[A-Z])\s?是?正确"
)
_CHOSEN = re.compile(
    r"\bI(?:'d| would| will|'ll)?\s+(?:choose|pick|select|go with)\s+"
    r"(?:(?:the|option|choice|answer|letter)\s+)*[(\[\"'*$]*(?P<letter>[A-Z])(?![\w'’])(?!\s+(?:or|and)\b)"
)
_ALONE = re.compile(
    r"(?:[\s*_$\"'`(\[{\\]|\\(?:text|textbf|mathrm|mathbf)\{)*([A-Za-z])[\s*_$\"'`)\]}\\.]*"
)
_LAST_LINE = re.compile(r"\n[\s*_$\"'`(\[{]*([A-Z])[\s*_$\"'`)\]}.]*\Z")
_LABELLED_LINE = re.compile(
    r"(?m)^[ \t*_$\"'`>\[-]{0,8}(?:(?:[Oo]ption|[Cc]hoice)[ ])?\(?(?P<letter>[A-Z])"
    r"(?:\)|[.:](?=[*\s]|$)|(?=[ \t*_$\"'`\].]*$)"
    r"|(?=\s+(?:because|since)\b))"
)
_LONGEST_LISTED = 20_000


def _last_letter(text: str) -> str | None:
    """Return the letter that a text is, ends with, or labels a line with."""
    tail = text[-_TAIL:]
    if len(text) < _TAIL:
        single = _ALONE.fullmatch(text)
        if single is not None:
            return single[1].upper()
    last_line = _LAST_LINE.search(tail)
    ending = _ENDS.search(tail)
    if ending is not None:
        return None if _DOUBTED.search(tail[: ending.start()]) else ending["letter"]
    correct = {
        match["letter"] or match["only"] or match["chinese"] for match in _IS_CORRECT.finditer(tail)
    }
    if correct:
        return _only(correct)
    if last_line is not None:
        return last_line[1]
    chosen = {match["letter"] for match in _CHOSEN.finditer(tail)}
    if chosen:
        return _only(chosen)
    return _only({match["letter"] for match in _LABELLED_LINE.finditer(text[-_LONGEST_LISTED:])})


def _only(letters: set[str]) -> str | None:
    """Return the only one of some letters; None if there are several or none."""
    return letters.pop() if len(letters) == 1 else None
