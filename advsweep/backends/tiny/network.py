"""The forward pass over many short sequences at once.

Tokens are packed, `[nodes, width]` (see `tokens`); only the attention works on padded rows. A
prompt is encoded once: the rollouts that continue it attend to its keys and values, their
*prefix*, and to their own past.

Before a pass the weights are fused into a form that takes fewer operations and gives the same
function:

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

from advsweep.backends.tiny.tokens import Encoded, Layout, Prefixes, lay_out, pack
from advsweep.backends.tiny.weights import EMBEDDING, FINAL_NORM, HEAD, Weights, block_weights

if TYPE_CHECKING:
    from jaxtyping import Complex, Float, Int

    from advsweep.backends.models import TinyModel


@dataclass(frozen=True)
class Block:
    """The fused weights of one transformer block."""

    qkv: Float[Tensor, "q+k+v width"]
    qkv_bias: Float[Tensor, " q+k+v"]
    out: Float[Tensor, "width width"]
    gate_up: Float[Tensor, "gate+up width"]
    down: Float[Tensor, "width mlp"]


@dataclass(frozen=True)
class Network:
    """A model with fused weights; gradients flow back to the original weights."""

    model: TinyModel
    embedding: Float[Tensor, "vocabulary width"]
    blocks: Sequence[Block]
    head: Float[Tensor, "vocabulary width"]


def fuse(weights: Weights, model: TinyModel) -> Network:
    """Fuse weights for the forward pass."""
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
    """Make features i and i + d/2 of each head neighbours."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


# Rotated keys and values of every node, for each block.
KeysValues = Sequence["Float[Tensor, 'nodes k+v']"]


def encode_prefix(network: Network, layout: Layout) -> KeysValues:
    """Return the keys and values of every node, for rows that continue these prefixes."""
    return _run(network, layout, None, keys_only=True)[1]


def extend(
    network: Network, layout: Layout, past: KeysValues | None = None
) -> tuple[Float[Tensor, "nodes vocabulary"], KeysValues]:
    """Return the logits after every node, and its keys and values.

    Args:
        past: keys and values of the prefixes of the layout.
    """
    x, keys_values = _run(network, layout, past, keys_only=False)
    return F.linear(normalise(x, network.model.norm_eps), network.head), keys_values


def _run(
    network: Network, layout: Layout, past: KeysValues | None, *, keys_only: bool
) -> tuple[Float[Tensor, "nodes width"], KeysValues]:
    """Return the residual stream after the last block, and keys and values of every block.

    Args:
        keys_only: stop in the last block after its keys and values.
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
    """Apply RMSNorm without its scale (Zhang and Sennrich 2019, arXiv:1910.07467, Eq. 4)."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)


def rotations(model: TinyModel, positions: int) -> Complex[Tensor, "positions heads pairs"]:
    """Return e^{i m θ_j} for position m and pair j of every head of q and k, θ_j = θ^(-2j/d).

    Ones for the heads of v follow, so that one product rotates q, k and v.
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
    """Compute the attention of every row's queries over its keys; return it per node."""
    rows, slots = layout.queries.shape
    groups, head = model.kv_heads, model.head_width
    # Query heads that share a key-value head form one matrix with more rows.
    q = q.index_select(0, layout.queries.view(-1)).view(rows, slots, groups, -1, head)
    q = q.permute(0, 2, 3, 1, 4).reshape(rows, groups, -1, head)
    kv = kv.index_select(0, layout.keys.view(-1)).view(rows, -1, 2, groups, head)
    k, v = kv.unbind(2)
    scores = (q @ k.permute(0, 2, 3, 1)).view(rows, model.heads, slots, -1) + layout.bias
    weights = scores.softmax(dim=-1).view(rows, groups, q.shape[2], -1)
    out = (weights @ v.transpose(1, 2)).view(rows, model.heads, slots, head)
    return out.transpose(1, 2).reshape(rows * slots, -1).index_select(0, layout.slots)


@dataclass(frozen=True)
class Continuations:
    """Completions of prompts, laid out for a training forward pass.

    Each prompt is encoded once, except for its last character, which starts each of its rows:
    that character predicts the first token. Common beginnings of rows are computed once.

    Attributes:
        prefixes: layout of the prompts without their last characters.
        rows: layout of the completions without their last tokens.
        node: the node that predicts each token of each completion; 0 past the end.
        tokens: tokens of the completions, end marks included.
    """

    prefixes: Layout
    rows: Layout
    node: Int[Tensor, "rows tokens"]
    tokens: Int[Tensor, "rows tokens"]

    @classmethod
    def lay_out(
        cls,
        prompts: Encoded,
        owner: Int[np.ndarray, " rows"],
        tokens: Int[np.ndarray, "rows tokens"],
        lengths: Int[np.ndarray, " rows"],
    ) -> Continuations:
        """Lay out completions.

        Args:
            prompts: prompts of at least two tokens; those without a row are left out.
            owner: the prompt of each row.
            tokens: the completions, end marks included.
            lengths: tokens per completion, at least 1.
        """
        in_use, owner = np.unique(owner, return_inverse=True)
        starts = prompts.lengths[in_use] - 1
        openings = prompts.tokens[in_use, starts]
        prefix_tokens = prompts.tokens[in_use, : int(starts.max())]
        prefixes = pack(np.zeros_like(in_use), prefix_tokens, starts)
        row_tokens = np.concatenate((openings[owner, None], tokens[:, :-1]), axis=1)
        rows = pack(owner, row_tokens, lengths)
        return cls(
            prefixes=lay_out(prefixes, prefix_tokens),
            rows=lay_out(rows, row_tokens, Prefixes(prefixes, owner, starts[owner])),
            node=torch.from_numpy(rows.node),
            tokens=torch.from_numpy(tokens),
        )

    def log_probs(
        self, network: Network, temperature: float, *, entropies: bool = False
    ) -> tuple[Float[Tensor, "rows tokens"], Float[Tensor, "rows tokens"] | None]:
        """Return log π of each token and, with `entropies`, the entropy of its distribution.

        Values past the end of a completion are arbitrary.
        """
        logits, _ = extend(network, self.rows, encode_prefix(network, self.prefixes))
        log_p = F.log_softmax(logits / temperature, dim=-1)
        place = (self.node * log_p.shape[1] + self.tokens).view(-1)
        chosen = log_p.view(-1).index_select(0, place).view(self.node.shape)
        if not entropies:
            return chosen, None
        entropy = -(log_p.exp() * log_p).sum(dim=-1)
        return chosen, entropy.index_select(0, self.node.view(-1)).view(self.node.shape)

    def kl(
        self, network: Network, other: Network, temperature: float
    ) -> Float[Tensor, "rows tokens"]:
        """Return KL(π ‖ other) of the distribution that each token is drawn from, in nats.

        Values past the end of a completion are arbitrary. In double precision, as the KL of nearly
        equal distributions is a small difference of large numbers.
        """
        both = (extend(n, self.rows, encode_prefix(n, self.prefixes))[0] for n in (network, other))
        log_p, log_q = (F.log_softmax(logits.double() / temperature, dim=-1) for logits in both)
        kl = (log_p.exp() * (log_p - log_q)).sum(dim=-1)
        return kl.index_select(0, self.node.view(-1)).view(self.node.shape)
