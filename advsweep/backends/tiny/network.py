"""The forward pass over many short sequences at once.

Tokens are packed one after another, `[nodes, width]` (see `packing`); the attention alone
works on padded rows. A prompt is encoded once: the rollouts that continue it attend to its
keys and values, their *prefix*, and to their own past.

Before a pass the weights are brought into a form that takes fewer operations and gives the
same function:

    scale of RMSNorm      into the matrix after it: (x w) Mᵀ = x (M w)ᵀ
    1/√d of attention     into the query's matrix
    q, k, v; gate, up     one matrix each
    rotary pairs          (i, i + d/2) become neighbours: a rotation is one complex product
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from advsweep.backends.tiny.packing import Packing
from advsweep.backends.tiny.weights import EMBEDDING, FINAL_NORM, HEAD, Weights, block_weights

if TYPE_CHECKING:
    from jaxtyping import Complex, Float, Int

    from advsweep.backends.tiny.model_config import TinyModel

MASKED = -1e30
"""Added to the scores of keys that a query must not see; finite, so that no row is all -inf."""

_NARROW = 16
"""A softmax over fewer places is several times slower on a CPU, so that rows are padded."""


@dataclass(frozen=True)
class Block:
    """One transformer block, ready for use."""

    qkv: Float[Tensor, "q+k+v width"]
    qkv_bias: Float[Tensor, " q+k+v"]
    out: Float[Tensor, "width width"]
    gate_up: Float[Tensor, "gate+up width"]
    down: Float[Tensor, "width mlp"]


@dataclass(frozen=True)
class Network:
    """A model, ready for use; gradients flow back to the weights it was made from."""

    model: TinyModel
    embedding: Float[Tensor, "vocabulary width"]
    blocks: Sequence[Block]
    head: Float[Tensor, "vocabulary width"]


def fuse(weights: Weights, model: TinyModel) -> Network:
    """Brings weights into the form that the forward pass uses."""
    blocks = [_fuse_block(block_weights(weights, i), model) for i in range(model.layers)]
    embedding = weights[EMBEDDING]
    head = embedding if model.tied_embeddings else weights[HEAD]
    return Network(model, embedding, blocks, head * weights[FINAL_NORM])


def _fuse_block(weights: Weights, model: TinyModel) -> Block:
    def qkv(kind: str) -> Tensor:
        q, k, v = (weights[f"self_attn.{part}_proj.{kind}"] for part in "qkv")
        q = q / math.sqrt(model.head_width)
        return torch.cat((_pair(q, model.heads), _pair(k, model.kv_heads), v))

    gate_up = torch.cat((weights["mlp.gate_proj.weight"], weights["mlp.up_proj.weight"]))
    return Block(
        qkv=qkv("weight") * weights["input_layernorm.weight"],
        qkv_bias=qkv("bias"),
        out=weights["self_attn.o_proj.weight"],
        gate_up=gate_up * weights["post_attention_layernorm.weight"],
        down=weights["mlp.down_proj.weight"],
    )


def _pair(rows: Float[Tensor, "features ..."], heads: int) -> Float[Tensor, "features ..."]:
    """Features i and i + d/2 of each head become neighbours."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


KeysValues = Sequence["Float[Tensor, 'nodes k+v']"]
"""Rotated keys and values of every node, for each block."""


@dataclass(frozen=True)
class Layout:
    """What a forward pass computes: nodes, and the rows in which they attend.

    Attributes:
        tokens, positions: of each node.
        queries: the node in each slot of each row.
        slots: where each node stands, as a flat index into `queries`.
        keys: what each row attends to: the nodes of its prefix, numbered as in the pass that
            computed them, then its own, numbered after all of the prefixes'.
        bias: 0 where a query may see a key, `MASKED` elsewhere.
    """

    tokens: Int[Tensor, " nodes"]
    positions: Int[Tensor, " nodes"]
    queries: Int[Tensor, "rows slots"]
    slots: Int[Tensor, " nodes"]
    keys: Int[Tensor, "rows keys"]
    bias: Float[Tensor, "rows 1 slots keys"]


@dataclass(frozen=True)
class Prefixes:
    """What rows continue.

    Attributes:
        packing: of the prefixes.
        owner: the prefix of each row.
        starts: the length of each row's prefix, which is the position of its first slot.
    """

    packing: Packing
    owner: Int[np.ndarray, " rows"]
    starts: Int[np.ndarray, " rows"]


def lay_out(
    packing: Packing, tokens: Int[np.ndarray, "rows slots"], prefixes: Prefixes | None = None
) -> Layout:
    """The layout of rows that continue prefixes, or that begin at position 0.

    Args:
        tokens: what `packing` was made of.
    """
    rows, slots = packing.rows, tokens.shape[1]
    queries = packing.node[rows]
    if prefixes is None:
        past, starts, offset = queries[:, :0], np.zeros_like(rows), 0
    else:
        past = prefixes.packing.node[prefixes.owner[rows]]
        starts, offset = prefixes.starts[rows], len(prefixes.packing.slots)
    before = past.shape[1]
    own = slice(before, before + slots)
    keys = np.zeros((len(rows), max(before + slots, _NARROW)), dtype=np.int64)
    keys[:, :before] = past
    keys[:, own] = queries + offset
    bias = np.full((len(rows), 1, slots, keys.shape[1]), MASKED, dtype=np.float32)
    seen = np.arange(before) < starts[:, None]
    bias[..., :before] = np.where(seen, 0, MASKED)[:, None, None]
    bias[..., own] = np.triu(np.full((slots, slots), MASKED), k=1)
    return Layout(
        tokens=torch.from_numpy(tokens[rows].ravel()[packing.slots]),
        positions=torch.from_numpy((starts[:, None] + np.arange(slots)).ravel()[packing.slots]),
        queries=torch.from_numpy(queries),
        slots=torch.from_numpy(packing.slots),
        keys=torch.from_numpy(keys),
        bias=torch.from_numpy(bias),
    )


def encode_prefix(network: Network, layout: Layout) -> KeysValues:
    """The keys and values of every node: what the rows that continue a prefix need."""
    return _run(network, layout, None, keys_only=True)[1]


def extend(
    network: Network, layout: Layout, past: KeysValues | None = None
) -> tuple[Float[Tensor, "nodes vocabulary"], KeysValues]:
    """The logits after every node, and its keys and values.

    Args:
        past: the keys and values of the prefix that the layout speaks of.
    """
    hidden, keys_values = last_hidden(network, layout, past)
    return F.linear(hidden, network.head), keys_values


def last_hidden(
    network: Network, layout: Layout, past: KeysValues | None = None
) -> tuple[Float[Tensor, "nodes width"], KeysValues]:
    """What the head is applied to at every node; the last norm's scale is in the head."""
    x, keys_values = _run(network, layout, past, keys_only=False)
    return normalise(x, network.model.norm_eps), keys_values


def _run(
    network: Network, layout: Layout, past: KeysValues | None, *, keys_only: bool
) -> tuple[Float[Tensor, "nodes width"], KeysValues]:
    """The residual stream after the last block, and the keys and values of every block.

    Args:
        keys_only: the last block is left as soon as its keys and values are known.
    """
    model = network.model
    keys_values: list[Tensor] = []
    x = F.embedding(layout.tokens, network.embedding)
    rotation = rotations(model, int(layout.positions.max()) + 1).index_select(0, layout.positions)
    for i, block in enumerate(network.blocks):
        qkv = F.linear(normalise(x, model.norm_eps), block.qkv, block.qkv_bias)
        pairs = torch.view_as_complex(qkv.view(*rotation.shape, 2))
        qkv = torch.view_as_real(pairs * rotation).view_as(qkv)
        q, kv = torch.split(qkv, [model.width, qkv.shape[1] - model.width], dim=1)
        keys_values.append(kv)
        if keys_only and i == len(network.blocks) - 1:
            break
        attended = _attend(q, kv if past is None else torch.cat((past[i], kv)), layout, model)
        x = x + F.linear(attended, block.out)
        gate, up = F.linear(normalise(x, model.norm_eps), block.gate_up).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, block.down)
    return x, keys_values


def normalise(x: Float[Tensor, "nodes width"], eps: float) -> Float[Tensor, "nodes width"]:
    """RMSNorm without its scale (Zhang and Sennrich 2019, arXiv:1910.07467, Eq. 4)."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)


def rotations(model: TinyModel, positions: int) -> Complex[Tensor, "positions heads pairs"]:
    """e^{i m θ_j} for position m and pair j of every head of q and k, θ_j = θ^(-2j/d).

    The heads of v follow with 1, so that one product serves all three.
    Source: Su et al. 2021 (arXiv:2104.09864), Eq. 15.
    """
    turned, still = model.heads + model.kv_heads, model.kv_heads
    return _rotations(model.rope_theta, model.head_width, turned, still, positions)


@functools.cache
def _rotations(
    theta: float, head_width: int, turned: int, still: int, positions: int
) -> Complex[Tensor, "positions heads pairs"]:
    frequencies = theta ** (-torch.arange(0, head_width, 2) / head_width)
    angles = torch.arange(positions)[:, None, None] * frequencies
    rotation = torch.polar(torch.ones_like(angles), angles).expand(-1, turned, -1)
    ones = torch.ones(positions, still, len(frequencies), dtype=rotation.dtype)
    return torch.cat((rotation, ones), dim=1)


def _attend(
    q: Float[Tensor, "nodes q"],
    kv: Float[Tensor, "prefixes_and_nodes k+v"],
    layout: Layout,
    model: TinyModel,
) -> Float[Tensor, "nodes width"]:
    """Attention of every row's queries over its keys, back at the nodes."""
    rows, slots = layout.queries.shape
    groups, head = model.kv_heads, model.head_width
    # Query heads that share a key-value head make one matrix of more rows.
    q = q.index_select(0, layout.queries.view(-1)).view(rows, slots, groups, -1, head)
    q = q.permute(0, 2, 3, 1, 4).reshape(rows, groups, -1, head)
    kv = kv.index_select(0, layout.keys.view(-1)).view(rows, -1, 2, groups, head)
    k, v = kv.unbind(2)
    scores = (q @ k.permute(0, 2, 3, 1)).view(rows, model.heads, slots, -1) + layout.bias
    weights = scores.softmax(dim=-1).view(rows, groups, q.shape[2], -1)
    out = (weights @ v.transpose(1, 2)).view(rows, model.heads, slots, head)
    return out.transpose(1, 2).reshape(rows * slots, -1).index_select(0, layout.slots)
