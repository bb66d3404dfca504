"""Texts as token ids and back: one character, one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from advsweep.tasks.base import SymbolTask


@dataclass(frozen=True)
class Encoded:
    """Texts as token ids, each from column 0 on.

    Attributes:
        tokens: token ids; padding past a text's end.
        lengths: tokens per text.
    """

    tokens: Int[np.ndarray, "texts columns"]
    lengths: Int[np.ndarray, " texts"]

    def __getitem__(self, rows: slice | Int[np.ndarray, " some"]) -> Encoded:
        return Encoded(self.tokens[rows], self.lengths[rows])

    @property
    def mask(self) -> Bool[np.ndarray, "texts columns"]:
        """True where a text has a token."""
        return np.asarray(np.arange(self.tokens.shape[1]) < self.lengths[:, None])


def encode(texts: Sequence[str], task: SymbolTask, *, end: bool = False) -> Encoded:
    """Texts over the task's alphabet as token ids, with the end mark after them if asked for."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    width = int(lengths.max()) + end
    points = np.array(texts, dtype=f"U{width}").view(np.uint32).reshape(len(texts), width)
    ids = np.full(128, -1)
    ids[[ord(c) for c in task.alphabet]] = range(len(task.alphabet))
    # numpy fills texts up with null characters.
    ids[0] = task.pad_id
    tokens = ids[points]
    assert (tokens >= 0).all(), "a character is not in the task's alphabet"
    if end:
        tokens[np.arange(len(texts)), lengths] = task.eos_id
    return Encoded(tokens, lengths + end)


def decode(tokens: Int[np.ndarray, "texts columns"], task: SymbolTask) -> list[str]:
    """The characters of each row, without end marks and padding."""
    points = np.array([*map(ord, task.alphabet), 0, 0], dtype=np.uint32)[tokens]
    texts: list[str] = np.ascontiguousarray(points).view(f"U{points.shape[1]}").ravel().tolist()
    # numpy drops null characters at a text's end alone.
    return [text.replace("\0", "") for text in texts]
