"""Expressions over single digits, many at once: reading, evaluating, writing.

An expression of m digits is a row of m numbers and a row of m - 1 operators; operators are
indices into `OPERATORS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, UInt8, UInt32

ALPHABET = "0123456789+-*=:"
OPERATORS = "+-*"
MAX_NUMBERS = 5
MAX_LENGTH = 2 * MAX_NUMBERS - 1

_PLUS, _MINUS, _TIMES = range(3)
_FIRST_OPERATOR = ALPHABET.index("+")
_FOREIGN = 255
_CODES = np.full(129, _FOREIGN, dtype=np.uint8)
_CODES[[ord(c) for c in ALPHABET]] = range(len(ALPHABET))
_POINTS = np.array([ord(c) for c in OPERATORS], dtype=np.uint32)


def encode(
    texts: Sequence[str], width: int
) -> tuple[UInt8[np.ndarray, "texts width"], Int[np.ndarray, " texts"]]:
    """Return the characters as indices into `ALPHABET`, and the lengths of the texts.

    Other characters become 255, as do places past a text's end. Texts are cut off at `width`;
    the lengths are those before.
    """
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    points = np.array(texts, dtype=f"U{width}").view(np.uint32).reshape(len(texts), width)
    return _CODES[np.minimum(points, 128)], lengths


def signatures(numbers: Int[np.ndarray, "rows m"]) -> Int[np.ndarray, " rows"]:
    """Return one integer per multiset of digits; four bits count each digit (m at most 15)."""
    counts: Int[np.ndarray, " rows"] = (np.int64(1) << (4 * numbers.astype(np.int64))).sum(axis=1)
    return counts


def evaluate(
    numbers: Int[np.ndarray, "rows m"], operators: Int[np.ndarray, "rows m-1"]
) -> Int[np.ndarray, " rows"]:
    """Evaluate with multiplication before addition and subtraction."""
    total = np.zeros(len(numbers), dtype=np.int64)
    term = numbers[:, 0].astype(np.int64)
    for operator, number in zip(operators.T, numbers.T[1:], strict=True):
        times = operator == _TIMES
        total += np.where(times, 0, term)
        sign = np.where(operator == _MINUS, -1, 1)
        term = np.where(times, term, sign) * number
    value: Int[np.ndarray, " rows"] = total + term
    return value


def evaluate_left_to_right(
    numbers: Int[np.ndarray, "rows m"], operators: Int[np.ndarray, "rows m-1"]
) -> Int[np.ndarray, " rows"]:
    """Evaluate without precedence, from left to right."""
    value = numbers[:, 0].astype(np.int64)
    for operator, number in zip(operators.T, numbers.T[1:], strict=True):
        value = np.select(
            [operator == _PLUS, operator == _MINUS],
            [value + number, value - number],
            value * number,
        )
    return value


@dataclass(frozen=True)
class Read:
    """Completions read as expressions.

    Attributes:
        well_formed: digits and operators alternate, with a digit first and last.
        signature: the digits used; meaningless where not well-formed.
        value: the value of the expression; meaningless where not well-formed.
    """

    well_formed: Bool[np.ndarray, " texts"]
    signature: Int[np.ndarray, " texts"]
    value: Int[np.ndarray, " texts"]


def read(texts: Sequence[str]) -> Read:
    """Read completions as expressions of at most `MAX_NUMBERS` digits."""
    codes, lengths = encode(texts, MAX_LENGTH)
    digits, operators = codes[:, ::2], codes[:, 1::2] - np.uint8(_FIRST_OPERATOR)
    places = np.arange(MAX_LENGTH)
    past = places >= lengths[:, None]
    past_digits, past_operators = past[:, ::2], past[:, 1::2]
    well_formed = (
        ((digits <= 9) | past_digits).all(axis=1)
        & ((operators < len(OPERATORS)) | past_operators).all(axis=1)
        & (lengths % 2 == 1)
        & (lengths <= MAX_LENGTH)
    )
    # Pad short expressions with "+0", which does not change their value.
    digits = np.where((digits <= 9) & ~past_digits, digits, 0)
    operators = np.where(past_operators, _PLUS, operators)
    zeros = past_digits.sum(axis=1)
    return Read(well_formed, signatures(digits) - zeros, evaluate(digits, operators))


def write(numbers: Int[np.ndarray, "rows m"], operators: Int[np.ndarray, "rows m-1"]) -> list[str]:
    """Return the expressions as texts."""
    points = np.empty((len(numbers), 2 * numbers.shape[1] - 1), dtype=np.uint32)
    points[:, ::2] = numbers + ord("0")
    points[:, 1::2] = _POINTS[operators]
    return to_texts(points)


def write_prompts(
    numbers: Int[np.ndarray, "rows m"], targets: Int[np.ndarray, " rows"]
) -> list[str]:
    """Return the prompts with these digits, in this order, and these targets in 0..99."""
    rows, m = numbers.shape
    points = np.empty((rows, m + 4), dtype=np.uint32)
    points[:, :m] = numbers + ord("0")
    points[:, m] = ord("=")
    points[:, m + 1] = targets // 10 + ord("0")
    points[:, m + 2] = targets % 10 + ord("0")
    points[:, m + 3] = ord(":")
    return to_texts(points)


def to_texts(points: UInt32[np.ndarray, "rows width"]) -> list[str]:
    """Return rows of code points as texts of that width."""
    texts: list[str] = points.view(f"U{points.shape[1]}").ravel().tolist()
    return texts
