"""Packing: rows of tokens that begin alike, as a list of distinct tokens.

Rollouts of one prompt often begin alike, and some are equal. What a causal transformer
computes at a token depends on what stands before it alone, so a token that several rows share
with all before it is computed once; it is a *node*, and each row's slots point to nodes:

    three rollouts of one prompt      their nodes, in order of appearance
    : 3 + 4                           : 3 + 4
    : 3 + 4                           (all there)
    : 3 - 4                           - 4

A rollout's first slot holds the last character of its prompt, which predicts its first token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int


@dataclass(frozen=True)
class Packing:
    """The distinct tokens of some rows, and where they stand.

    Attributes:
        node: the node in each slot of each row; 0 past a row's end.
        rows: rows that together hold every node; each other row begins like one of them.
        slots: where each node stands, as a flat index into `node[rows]`.
    """

    node: Int[np.ndarray, "rows slots"]
    rows: Int[np.ndarray, " distinct"]
    slots: Int[np.ndarray, " nodes"]


def pack(
    owner: Int[np.ndarray, " rows"],
    tokens: Int[np.ndarray, "rows slots"],
    lengths: Int[np.ndarray, " rows"],
) -> Packing:
    """Finds the distinct tokens of rows.

    Args:
        owner: rows share tokens only where they agree in this, such as the prompt.
        tokens: token ids; what stands past a row's end is not read.
        lengths: slots in use per row, at least 1.
    """
    used = np.arange(tokens.shape[1]) < lengths[:, None]
    keys = np.where(used, tokens, -1)
    order = np.lexsort((*keys.T[::-1], owner))
    keys, owner, used = keys[order], owner[order], used[order]
    # In sorted rows a slot is new where the row differs from the one above, there or before.
    differs = keys[1:] != keys[:-1]
    differs[:, 0] |= owner[1:] != owner[:-1]
    new = np.ones_like(used)
    new[1:] = np.logical_or.accumulate(differs, axis=1)
    new &= used
    # Nodes are numbered row by row, so the newest one above in a column is the largest.
    node = np.where(new, np.cumsum(new).reshape(new.shape) - 1, 0)
    node = np.where(used, np.maximum.accumulate(node, axis=0), 0)
    distinct = new.any(axis=1)
    in_order = np.empty_like(node)
    in_order[order] = node
    return Packing(node=in_order, rows=order[distinct], slots=np.flatnonzero(new[distinct]))
