"""Characters and token ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.backends.tiny.tokens import decode, encode
from advsweep.tasks.countdown import Countdown

TASK = Countdown()
TEXTS = st.lists(st.text(TASK.alphabet, min_size=1, max_size=12), min_size=1, max_size=6)


def test_characters_are_numbered_in_the_alphabets_order() -> None:
    encoded = encode(["34=07:", "9*"], TASK)
    # 0-9 are themselves, then + - * = :, the end mark 15 and padding 16.
    assert encoded.tokens.tolist() == [[3, 4, 13, 0, 7, 14], [9, 12, 16, 16, 16, 16]]
    assert encoded.lengths.tolist() == [6, 2]
    assert encoded.mask.tolist() == [[True] * 6, [True] * 2 + [False] * 4]


def test_the_end_mark_follows_the_text() -> None:
    encoded = encode(["1", "23"], TASK, end=True)
    assert encoded.tokens.tolist() == [[1, 15, 16], [2, 3, 15]]
    assert encoded.lengths.tolist() == [2, 3]


@given(TEXTS, st.booleans())
def test_texts_come_back(texts: list[str], end: bool) -> None:
    assert decode(encode(texts, TASK, end=end).tokens, TASK) == texts


def test_marks_inside_a_text_are_left_out() -> None:
    encoded = encode(["123"], TASK, end=True)
    encoded.tokens[0, 1] = TASK.pad_id
    assert decode(encoded.tokens, TASK) == ["13"]


def test_a_foreign_character_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="alphabet"):
        encode(["1/2"], TASK)
