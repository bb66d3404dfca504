"""Texts as token ids, and their layout for a forward pass; one character is one token.

Rollouts of one prompt often start with the same tokens, and some are equal. What a causal
transformer computes at a token depends on the tokens before it alone. So a token that several rows
share, with everything before it, is computed once: it is a *node*, and the slots of rows point to
nodes:

    three rollouts of one prompt      their nodes, in order of appearance
    : 3 + 4                           : 3 + 4
    : 3 + 4                           (no new node)
    : 3 - 4                           - 4

A rollout's first slot holds the last character of its prompt, which predicts its first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.tasks.base import SymbolTask

    PerRow = Int[np.ndarray, " rows"]
    PerSlot = Int[np.ndarray, "rows slots"]

# Added to scores of keys that a query must not see; finite, as a row of -inf gives NaN.
MASKED = -1e30

# Rows are padded to this width: a softmax over fewer places is several times slower on a CPU.
_NARROW = 16


@dataclass(frozen=True)
class Encoded:
    """Texts as token ids, left-aligned.

    Attributes:
        tokens: token ids; padding past the end of a text.
        lengths: tokens per text.
    """

    tokens: Int[np.ndarray, "texts columns"]
    lengths: Int[np.ndarray, " texts"]

    def __getitem__(self, rows: slice | Int[np.ndarray, " some"]) -> Encoded:
        return Encoded(self.tokens[rows], self.lengths[rows])

    @property
    def mask(self) -> Bool[np.ndarray, "texts columns"]:
        """True for tokens, False for padding."""
        return np.asarray(np.arange(self.tokens.shape[1]) < self.lengths[:, None])


def encode(texts: Sequence[str], task: SymbolTask, *, end: bool = False) -> Encoded:
    """Encode texts over the task's alphabet.

    Args:
        end: whether to append the end mark.
    """
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    width = int(lengths.max()) + end
    points = np.array(texts, dtype=f"U{width}").view(np.uint32).reshape(len(texts), width)
    ids = np.full(128, -1)
    ids[[ord(c) for c in task.alphabet]] = range(len(task.alphabet))
    # numpy pads texts with null characters.
    ids[0] = task.pad_id
    tokens = ids[points]
    assert (tokens >= 0).all(), "a character is not in the task's alphabet"
    if end:
        tokens[np.arange(len(texts)), lengths] = task.eos_id
    return Encoded(tokens, lengths + end)


def decode(tokens: Int[np.ndarray, "texts columns"], task: SymbolTask) -> list[str]:
    """Return the characters of each row, without end marks and padding."""
    points = np.array([*map(ord, task.alphabet), 0, 0], dtype=np.uint32)[tokens]
    texts: list[str] = np.ascontiguousarray(points).view(f"U{points.shape[1]}").ravel().tolist()
    # numpy drops null characters at the end only, and end marks stand before padding.
    return [text.replace("\0", "") for text in texts]


@dataclass(frozen=True)
class Packing:
    """The distinct tokens of rows, and their places.

    Attributes:
        node: the node in each slot of each row; 0 past the end of a row.
        rows: rows that together hold every node; each other row is a prefix of one of them.
        slots: place of each node, as a flat index into `node[rows]`.
    """

    node: PerSlot
    rows: Int[np.ndarray, " distinct"]
    slots: Int[np.ndarray, " nodes"]


def pack(owner: PerRow, tokens: PerSlot, lengths: PerRow) -> Packing:
    """Find the distinct tokens of rows.

    Args:
        owner: rows share nodes only if their owner, such as a prompt, is the same.
        tokens: token ids; ids past the end of a row are ignored.
        lengths: tokens per row, at least 1.
    """
    used = np.arange(tokens.shape[1]) < lengths[:, None]
    keys = np.where(used, tokens, -1)
    order = np.lexsort((*keys.T[::-1], owner))
    keys = keys[order]
    owner = owner[order]
    used = used[order]
    # In sorted rows a slot is new if the row differs from the row above at it or before it.
    differs = keys[1:] != keys[:-1]
    differs[:, 0] |= owner[1:] != owner[:-1]
    new = np.ones_like(used)
    new[1:] = np.logical_or.accumulate(differs, axis=1)
    new &= used
    # Nodes are numbered row by row, so the latest node above in a column has the largest number.
    node = np.where(new, np.cumsum(new).reshape(new.shape) - 1, 0)
    node = np.where(used, np.maximum.accumulate(node, axis=0), 0)
    distinct = new.any(axis=1)
    in_order = np.empty_like(node)
    in_order[order] = node
    return Packing(node=in_order, rows=order[distinct], slots=np.flatnonzero(new[distinct]))


@dataclass(frozen=True)
class Layout:
    """The nodes that a forward pass computes, and the rows in which they attend.

    Attributes:
        tokens, positions: token and position of each node.
        queries: the node in each slot of each row.
        slots: place of each node, as a flat index into `queries`.
        keys: the nodes that each row attends to: those of the row that it continues, then its own.
        bias: 0 if a query may see a key, else `MASKED`.
    """

    tokens: Int[Tensor, " nodes"]
    positions: Int[Tensor, " nodes"]
    queries: Int[Tensor, "rows slots"]
    slots: Int[Tensor, " nodes"]
    keys: Int[Tensor, "rows keys"]
    bias: Float[Tensor, "rows 1 slots keys"]


def lay_out(packing: Packing, tokens: PerSlot, prefix: PerRow, starts: PerRow) -> Layout:
    """Lay out rows, some of which continue others.

    Args:
        tokens: the tokens that `packing` was made from.
        prefix: the row that each row continues.
        starts: length of that row, the position of the first slot; 0: it continues none.
    """
    rows = packing.rows
    slots = tokens.shape[1]
    queries = packing.node[rows]
    starts = starts[rows]
    before = int(starts.max())
    keys = np.zeros((len(rows), max(before + slots, _NARROW)), dtype=np.int64)
    keys[:, :before] = packing.node[prefix[rows], :before]
    keys[:, before : before + slots] = queries
    bias = np.full((len(rows), 1, slots, keys.shape[1]), MASKED, dtype=np.float32)
    seen = np.arange(before) < starts[:, None]
    bias[..., :before] = np.where(seen, 0, MASKED)[:, None, None]
    bias[..., before : before + slots] = np.triu(np.full((slots, slots), MASKED), k=1)
    return Layout(
        tokens=torch.from_numpy(tokens[rows].ravel()[packing.slots]),
        positions=torch.from_numpy((starts[:, None] + np.arange(slots)).ravel()[packing.slots]),
        queries=torch.from_numpy(queries),
        slots=torch.from_numpy(packing.slots),
        keys=torch.from_numpy(keys),
        bias=torch.from_numpy(bias),
    )
