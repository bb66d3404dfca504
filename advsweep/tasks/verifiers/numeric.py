"""The verifier `numeric`: the number that a text gives as its answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import option
from advsweep.tasks.verifiers.base import QuickVerifier, ReferenceAnswer, Verdict, verdict
from advsweep.tasks.verifiers.boxes import boxed_answer
from advsweep.tasks.verifiers.number_notation import plain_notation
from advsweep.tasks.verifiers.number_reader import (
    TOLERANCE,
    Quantity,
    Token,
    agree,
    multiplies_a_variable,
    read_quantity,
    spell,
    tokens,
)
from advsweep.tasks.verifiers.statements import statements, thought_removed

_SHORT = 40
_BULLETS = ("- ", "+ ")
_TAIL = 400


@dataclass(kw_only=True)
class Numeric(QuickVerifier):
    r"""Correct if the number in the last `\boxed{...}` equals the reference answer, a number too.

    A box with anything but one number is wrong. Without a box, unless `boxed_only` is set, the
    number counts that stands behind the last `####`, else behind the last "answer is", else the
    last number of the text. `number_reader` has what a number is.
    """

    name: ClassVar[str] = "numeric"
    revision: ClassVar[int] = 2  # 1 knew no units, LaTeX or statements, and rounded whole numbers

    tolerance: float = option(
        TOLERANCE, ge=0, help="largest difference, relative to the gold answer"
    )
    boxed_only: bool = option(False, help="an answer without a box is wrong")

    def reads(self, reference: ReferenceAnswer) -> bool:
        return read_quantity(str(reference["answer"])) is not None

    def judge(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        text = str(reference["answer"])
        gold = read_quantity(text)
        if gold is None:
            return verdict(False, None)
        # A comma between digits is a decimal comma only where a list makes no sense.
        answer = self._answer(completion, decimal_comma=bool(gold.decimals))
        if answer is None:
            return verdict(False, None)
        return verdict(agree(gold, answer, self.tolerance), spell(answer.value))

    def _answer(self, completion: str, *, decimal_comma: bool) -> Quantity | None:
        boxed = boxed_answer(completion)
        if boxed is not None:
            return read_quantity(boxed, decimal_comma=decimal_comma)
        if self.boxed_only:
            return None
        return stated_number(completion)


# -------------------------------------------------------------------------- texts without a box

_HASHES = "####"
_HASHED = re.compile(r"####[ \t]*([^\n]{1,200})")
_LIST_MARK = re.compile(r"[0-9]+[.)]\s+\S")
# What may stand between "the answer is" and its number.
_LEAD = re.compile(
    r"(?:[\s*_$\"'`(\[{]|\\[(\[$]|"
    r"(?:approximately|about|roughly|exactly|around|simply|just|only|therefore|thus|now|then|"
    r"equal to|equals|a total of|(?:US|USD|EUR|GBP|Rs\.?)(?=\s?[$0-9])|[A-Za-z]\s?=)(?![a-z]))*",
    re.IGNORECASE,
)
_NUMBER_AHEAD = re.compile(
    r"(?:\\?[$€£¥₹]|\\[dt]?frac|\\text\{|\\mathbf\{|[-+\u2212\u2013]|\.|\s)*(?:[0-9０-９½⅓⅔¼¾]|\\[dt]?frac)"
)
_BOUND_AHEAD = re.compile(
    r"(?:not|n't|between|(?:less|more|greater|fewer|larger|smaller) than|at (?:least|most)|either|"
    r"over|under|above|below|up to)\b",
    re.IGNORECASE,
)
_NEGATED = re.compile(
    r"not\s+[$\\]*[-0-9.,]*[0-9]\S*\s*[,;]?\s*(?:but|rather|it is|it's)\s+", re.IGNORECASE
)
_END_OF_CLAUSE = re.compile(
    r"\n|[.!?](?=\s|$|[*_\"')\]])|;|</|<\|"
    r"|\s[-\u2013\u2014]\s(?=[A-Za-z])"
    r"|。|，(?=[不因所其即共])"
    r"|,?\s(?:because|since|as (?:she|he|they|it|there|the)|which|where|so|not)\s"
)
_EXPLANATION = re.compile(
    r"\((?:[^()]{0,80}[0-9]\s?(?:[A-Za-z]{1,8}\s)?[-+*/×÷=x]\s*[$0-9][^()]{0,80}"
    r"|(?:not|instead of|rather than)\b[^()]{0,80})\)"
)
_FUNCTION = re.compile(r"(?:(?<![a-z])(?:sqrt|ln|log|sin|cos|tan|binom)|√)\s?[{(]?\s?\Z")
_OPERATOR = re.compile(r"[ ]?[+*/÷][ ]?\$?|[ ][-x][ ]\$?")
# A number behind these words belongs to what is counted: "18 dollars for 3 days".
_ADJUNCT = re.compile(
    r"\s(?:for|in|per|over|after|every|each|within|during|from|by|at|on|of|out of|with|across)\s+"
    r"(?:the |all |each |every |her |his |their |its |those |these |a total of )?"
    r"\$?[0-9][0-9.,]*(?=\s|$|-|%|[.,])",
)
_TIME = re.compile(r"(?<![0-9:])[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?(?![0-9])")
_LINE_MARK = re.compile(r"(?m)^[ \t>]*(?:[0-9]{1,3}[.)]|[-*•+])[ \t]+(?=\S)")
_BOLD = re.compile(r"\*\*([^*\n]{1,80})\*\*")
_HEADING = re.compile(r"(?im)^[ \t#*]*(?:step|question|problem|q|part|example)\s*[0-9]+\s*[:.)*]")


def stated_number(text: str) -> Quantity | None:
    """Return the number that a text without a box gives as its answer; None if it is unclear."""
    if len(text) < _SHORT and not text.startswith(_BULLETS):
        whole = read_quantity(text.strip())
        if whole is not None:
            return whole
    text = thought_removed(text)
    if _HASHES in text:
        hashed = _after_hashes(text)
        if hashed is not None:
            return hashed
    for statement in statements(text):
        is_statement, number = _read_statement(statement)
        if is_statement:
            return number
    return _last_number(text)


def _after_hashes(text: str) -> Quantity | None:
    """Return the number behind the last `####`, which GSM8K ends with; None for a heading."""
    match = _HASHED.match(text, text.rfind(_HASHES))
    if match is None or _LIST_MARK.match(match[1]):
        return None
    return _sole_number(match[1])


def _read_statement(statement: str) -> tuple[bool, Quantity | None]:
    """Return whether a text begins with a number as the answer, and which.

    A statement that says what the answer is not, gives a bound or several numbers has none.
    """
    statement = _NEGATED.sub("", statement, count=1)
    lead = _LEAD.match(statement)
    first = lead.end() if lead else 0
    if _BOUND_AHEAD.match(statement, first):
        return True, None
    if not _NUMBER_AHEAD.match(statement, first):
        return False, None
    clause = statement[first:]
    # Behind the first sign, so that ".5" is not cut.
    end = _END_OF_CLAUSE.search(clause, 1)
    rest = ""
    if end is not None:
        if end[0] == "?":
            return True, None
        rest = clause[end.end() :]
        clause = clause[: end.start()]
    if "=" in clause and any(character.isdigit() for character in rest):
        return False, None  # the first line of a calculation
    return True, _sole_number(clause)


def _sole_number(text: str) -> Quantity | None:
    """Return the number of a clause: the only one, or the one that an equation ends with."""
    whole = read_quantity(text.strip(" \t*_$\"'`!"))
    if whole is not None:
        return whole
    clause = plain_notation(_EXPLANATION.sub(" ", text))
    clause = _ADJUNCT.sub(" ", _TIME.sub(" time:time ", clause))
    whole = read_quantity(clause)
    if whole is not None:
        return whole
    sides = clause.split("=")
    numbers = [
        None if multiplies_a_variable(sides[-1], token) else token.quantity
        for token in tokens(sides[-1])
    ]
    if not numbers or numbers[0] is None or "time:time" in clause:
        return None
    if any(number is None or not agree(numbers[0], number) for number in numbers):
        return None
    return numbers[0]


def _last_number(text: str) -> Quantity | None:
    """Return the last number of a text, leaving out times of day and the marks of lists.

    The only bold number of the last paragraph goes before it, unless an equation follows.
    """
    bold = _bold_number(text)
    if bold is not None:
        return bold
    tail = text[-_TAIL:].partition(" ")[2] if len(text) > _TAIL else text
    plain = _marks_removed(tail)
    found = tokens(plain)
    if not found and len(text) > _TAIL:
        plain = _marks_removed(text)
        found = tokens(plain)
    if not found or _is_part_of_a_formula(plain, found[-1]):
        return None
    if len(found) > 1 and _is_operand(plain, found[-2], found[-1]):
        return None
    return found[-1].quantity


def _is_part_of_a_formula(text: str, number: Token) -> bool:
    r"""Return whether a number stands in a root, or before a variable, as in `\sqrt{75}`."""
    before = text[max(0, number.start - 12) : number.start]
    return _FUNCTION.search(before) is not None or multiplies_a_variable(text, number)


def _is_operand(text: str, before: Token, last: Token) -> bool:
    """Return whether the last number ends a calculation without its result, as in `3 + 5`.

    `3-5` may be a range, `5-3` is none.
    """
    between = text[before.end : last.start]
    if _OPERATOR.fullmatch(between):
        return True
    if between != "-" or before.quantity is None or last.quantity is None:
        return False
    return before.quantity.value >= last.quantity.value


def _bold_number(text: str) -> Quantity | None:
    paragraph = text.rstrip()[-_TAIL:].rpartition("\n\n")[2]
    if "**" not in paragraph:
        return None
    bold = [(match, read_quantity(match[1])) for match in _BOLD.finditer(paragraph)]
    numbers = [(match, number) for match, number in bold if number is not None]
    if len(numbers) != 1:
        return None
    match, number = numbers[0]
    return None if "=" in paragraph[match.end() :] else number


def _marks_removed(text: str) -> str:
    """Return a text in plain notation without numbers that are marks, times or explanations."""
    for pattern in (_HEADING, _LINE_MARK, _TIME, _EXPLANATION):
        text = pattern.sub(" ", text)
    return plain_notation(text)
