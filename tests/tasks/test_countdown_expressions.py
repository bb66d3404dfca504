"""Expressions are evaluated as Python evaluates them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.tasks import countdown as expressions
from advsweep.tasks.countdown import ALPHABET


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_evaluate_agrees_with_python(count: int) -> None:
    rng = np.random.default_rng(count)
    numbers = rng.integers(0, 10, (2000, count))
    operators = rng.integers(0, 3, (2000, count - 1))
    texts = expressions.write(numbers, operators)
    expected = [eval(text) for text in texts]
    assert expressions.evaluate(numbers, operators).tolist() == expected
    read = expressions.read(texts)
    assert read.well_formed.all()
    assert read.value.tolist() == expected
    assert (read.signature == expressions.signatures(numbers)).all()


def test_left_to_right_ignores_precedence() -> None:
    # 2+3*4: (2+3)*4 = 20, with precedence 14; 9-8*2: (9-8)*2 = 2, with precedence -7.
    numbers, operators = np.array([[2, 3, 4], [9, 8, 2]]), np.array([[0, 2], [1, 2]])
    assert expressions.evaluate_left_to_right(numbers, operators).tolist() == [20, 2]
    assert expressions.evaluate(numbers, operators).tolist() == [14, -7]


def test_signatures_are_equal_exactly_for_equal_multisets() -> None:
    rows = np.array(list(itertools.product(range(10), repeat=3)))
    multisets = {tuple(sorted(row)) for row in rows.tolist()}
    by_signature: dict[int, set[tuple[int, ...]]] = {}
    for signature, row in zip(expressions.signatures(rows).tolist(), rows.tolist(), strict=True):
        by_signature.setdefault(signature, set()).add(tuple(sorted(row)))
    assert len(by_signature) == len(multisets) == 220
    assert all(len(found) == 1 for found in by_signature.values())


def test_prompts_hold_digits_in_their_order_and_two_target_digits() -> None:
    prompts = expressions.write_prompts(np.array([[4, 3], [9, 9]]), np.array([7, 81]))
    assert prompts == ["43=07:", "99=81:"]


@given(st.lists(st.text(max_size=12)))
def test_encode_keeps_known_characters_and_marks_all_others(texts: list[str]) -> None:
    codes, lengths = expressions.encode(texts, 10)
    assert lengths.tolist() == [len(text) for text in texts]
    for text, row in zip(texts, codes.tolist(), strict=True):
        expected = [ALPHABET.find(character) % 256 for character in text[:10]]
        assert row[: len(text)] == expected
        assert row[len(text) :] == [255] * (10 - len(text))
