"""The forward pass over many short sequences at once, and its backward pass.

Tokens are packed, `[nodes, width]` (see `tokens`); only the attention works on padded rows. A
prompt is encoded once: the rollouts that continue it attend to its nodes and to their own past.

A minibatch is so small that calling an operation costs as much as computing it. So the backward
pass is written out: it takes half the operations that autograd records, keeps what the forward
pass has computed, and writes every gradient into one vector. The tests hold it against autograd's
of a plain forward pass, in double precision.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from advsweep.backends.tiny.tokens import Encoded, Layout, lay_out, pack

if TYPE_CHECKING:
    from jaxtyping import Complex, Float, Int

    from advsweep.backends.models import TinyModel


@dataclass(frozen=True)
class Block:
    """The weights of one transformer block, or their gradients; views of one vector.

    Matrices that are applied to the same input are one: queries, keys and values; gate and up.
    """

    attention_norm: Float[Tensor, " width"]
    qkv: Float[Tensor, "q+k+v width"]
    qkv_bias: Float[Tensor, " q+k+v"]
    out: Float[Tensor, "width width"]
    mlp_norm: Float[Tensor, " width"]
    gate_up: Float[Tensor, "gate+up width"]
    down: Float[Tensor, "width mlp"]


@dataclass(frozen=True)
class Network:
    """A model with its weights, or their gradients."""

    model: TinyModel
    embedding: Float[Tensor, "vocabulary width"]
    blocks: Sequence[Block]
    norm: Float[Tensor, " width"]
    head: Float[Tensor, "vocabulary width"]

    @classmethod
    def of(cls, flat: Float[Tensor, " weights"], model: TinyModel) -> Network:
        """Return the network whose weights are views of a vector; see `weights.flatten`."""
        width = model.width
        kv = model.kv_heads * model.head_width
        mlp = model.mlp_width
        shapes = {
            "attention_norm": (width,),
            "qkv": (width + 2 * kv, width),
            "qkv_bias": (width + 2 * kv,),
            "out": (width, width),
            "mlp_norm": (width,),
            "gate_up": (2 * mlp, width),
            "down": (width, mlp),
        }
        sizes = [math.prod(shape) for shape in shapes.values()]
        of_blocks = model.layers * sum(sizes)
        symbols = (flat.numel() - of_blocks - width) // (1 if model.tied_embeddings else 2)
        first, in_blocks, norm, last = torch.split(
            flat, [symbols, of_blocks, width, flat.numel() - symbols - of_blocks - width]
        )
        blocks = []
        for block in in_blocks.view(model.layers, -1):
            parts = zip(shapes.items(), torch.split(block, sizes), strict=True)
            blocks.append(Block(**{name: part.view(shape) for (name, shape), part in parts}))
        embedding = first.view(-1, width)
        head = embedding if model.tied_embeddings else last.view(-1, width)
        return cls(model, embedding, blocks, norm, head)


@dataclass(frozen=True)
class _BlockPass:
    """What the backward pass of a block needs from the forward pass."""

    attention: _Normalised
    qkv: Float[Tensor, "q+k+v width"]
    queries: Float[Tensor, "rows*kv_heads shared*slots head"]
    keys: Float[Tensor, "rows*kv_heads keys head"]
    values: Float[Tensor, "rows*kv_heads keys head"]
    weights: Float[Tensor, "rows*kv_heads shared*slots keys"]
    attended: Float[Tensor, "nodes width"]
    mlp: _Normalised
    gate: Float[Tensor, "nodes mlp"]
    up: Float[Tensor, "nodes mlp"]
    activated: Float[Tensor, "nodes mlp"]
    hidden: Float[Tensor, "nodes mlp"]


@dataclass(frozen=True)
class _Normalised:
    """RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467, Eq. 4): x r w, r = 1/√(mean x² + ε)."""

    x: Float[Tensor, "nodes width"]
    inverse: Float[Tensor, "nodes 1"]
    scaled: Float[Tensor, "nodes width"]

    @classmethod
    def of(
        cls, x: Float[Tensor, "nodes width"], weight: Float[Tensor, " width"], eps: float
    ) -> _Normalised:
        inverse = torch.rsqrt(x.square().mean(dim=-1, keepdim=True).add_(eps))
        x = x * inverse
        return cls(x, inverse, x * weight)

    def backward(
        self,
        gradient: Float[Tensor, "nodes width"],
        weight: Float[Tensor, " width"],
        of_weight: Float[Tensor, " width"],
    ) -> Float[Tensor, "nodes width"]:
        """Return the gradient of the input from that of the result; set that of the weight."""
        product = gradient * self.x
        torch.sum(product, dim=0, out=of_weight)
        along = product @ weight[:, None] / len(weight)
        return (gradient * weight).addcmul_(self.x, along, value=-1).mul_(self.inverse)


def forward(
    network: Network, layout: Layout, kept: list[_BlockPass] | None = None
) -> tuple[Float[Tensor, "nodes width"], list[Float[Tensor, "nodes k+v"]]]:
    """Return the residual stream after the last block, and every block's rotated keys and values.

    Args:
        kept: gets what the backward pass needs.
    """
    model = network.model
    turns = rotations(model, int(layout.positions.max()) + 1)[layout.positions, None]
    keys_values = []
    x = F.embedding(layout.tokens, network.embedding)
    for block in network.blocks:
        attention = _Normalised.of(x, block.attention_norm, model.norm_eps)
        weight, bias = in_pairs(block, model)
        qkv = torch.addmm(bias, attention.scaled, weight.T)
        _rotate(qkv, turns, model)
        keys_values.append(qkv[:, model.width :])
        q, k, v = _in_rows(qkv, layout, model)
        scores = (q @ k.transpose(1, 2)).view(len(layout.bias), -1, *layout.bias.shape[2:])
        scores = torch.add(layout.bias, scores, alpha=1 / math.sqrt(model.head_width))
        weights = scores.softmax(dim=-1).view(len(q), q.shape[1], -1)
        attended = _by_node(weights @ v, layout, model)
        x = torch.addmm(x, attended, block.out.T)
        mlp = _Normalised.of(x, block.mlp_norm, model.norm_eps)
        gate, up = (mlp.scaled @ block.gate_up.T).chunk(2, dim=-1)
        activated = F.silu(gate)
        hidden = activated * up
        x = torch.addmm(x, hidden, block.down.T)
        if kept is not None:
            of_attention = (attention, weight, q, k, v, weights, attended)
            kept.append(_BlockPass(*of_attention, mlp, gate, up, activated, hidden))
    return x, keys_values


def _backward(
    x: Float[Tensor, "nodes width"],
    network: Network,
    gradients: Network,
    layout: Layout,
    kept: Sequence[_BlockPass],
) -> None:
    """Set the gradients of the blocks; add those of the embedding.

    `of_NAME` is the gradient of what `forward` calls NAME; `of` has those of a block's weights,
    and `at` what `forward` kept of the block.

    Args:
        x: the gradient of the residual stream after the last block.
    """
    model = network.model
    # Back by the same angles.
    turns = rotations(model, int(layout.positions.max()) + 1)[layout.positions, None].conj()
    pairs = _pairs(model)
    scale = 1 / math.sqrt(model.head_width)
    for block, of, at in zip(
        reversed(network.blocks), reversed(gradients.blocks), reversed(kept), strict=True
    ):
        torch.mm(x.T, at.hidden, out=of.down)
        of_hidden = x @ block.down
        of_gate = torch.ops.aten.silu_backward(of_hidden * at.up, at.gate)
        of_gate_up = torch.cat((of_gate, of_hidden.mul_(at.activated)), dim=-1)
        torch.mm(of_gate_up.T, at.mlp.scaled, out=of.gate_up)
        x = x + at.mlp.backward(of_gate_up @ block.gate_up, block.mlp_norm, of.mlp_norm)

        torch.mm(x.T, at.attended, out=of.out)
        of_attended = torch.zeros(layout.queries.numel(), model.width, dtype=x.dtype)
        of_attended.index_copy_(0, layout.slots, x @ block.out)
        of_attended = _heads_first(of_attended, layout, model)
        of_weights = of_attended @ at.values.transpose(1, 2)
        of_values = at.weights.transpose(1, 2) @ of_attended
        of_scores = torch.ops.aten._softmax_backward_data(of_weights, at.weights, -1, x.dtype)
        of_scores.mul_(scale)
        of_queries = _by_node(of_scores @ at.keys, layout, model)
        of_keys = of_scores.transpose(1, 2) @ at.queries
        by_key = torch.stack((of_keys, of_values)).view(
            2, *layout.keys.shape[:1], model.kv_heads, -1, model.head_width
        )
        by_key = by_key.permute(1, 3, 0, 2, 4).reshape(layout.keys.numel(), -1)
        of_kv = torch.zeros(len(x), by_key.shape[1], dtype=x.dtype)
        of_kv.index_add_(0, layout.keys.view(-1), by_key)
        of_qkv = torch.cat((of_queries, of_kv), dim=1)
        _rotate(of_qkv, turns, model)
        of.qkv.index_copy_(0, pairs, of_qkv.T @ at.attention.scaled)
        of.qkv_bias.index_copy_(0, pairs, of_qkv.sum(dim=0))
        x = x + at.attention.backward(of_qkv @ at.qkv, block.attention_norm, of.attention_norm)
    gradients.embedding.index_add_(0, layout.tokens, x)


class _Logits(torch.autograd.Function):
    """The logits after some nodes, as a function of the vector of weights."""

    @staticmethod
    def forward(
        ctx: Any, flat: Tensor, model: TinyModel, layout: Layout, first: int
    ) -> Float[Tensor, "nodes vocabulary"]:
        network = Network.of(flat, model)
        # Evaluations have no gradient and need nothing of earlier blocks.
        kept: list[_BlockPass] | None = [] if ctx.needs_input_grad[0] else None
        x, _ = forward(network, layout, kept)
        end = _Normalised.of(x[first:], network.norm, model.norm_eps)
        ctx.pass_ = network, layout, kept, end, first
        # Saved, so that a backward pass after the weights have changed is an error.
        ctx.save_for_backward(flat)
        return end.scaled @ network.head.T

    @staticmethod
    def backward(ctx: Any, gradient: Float[Tensor, "nodes vocabulary"]) -> tuple[Any, ...]:
        network, layout, kept, end, first = ctx.pass_
        (flat,) = ctx.saved_tensors
        flat_gradient = torch.empty_like(flat)
        gradients = Network.of(flat_gradient, network.model)
        if gradients.head is not gradients.embedding:
            gradients.embedding.zero_()
        torch.mm(gradient.T, end.scaled, out=gradients.head)
        x = torch.zeros(len(layout.tokens), network.model.width, dtype=flat_gradient.dtype)
        x[first:] = end.backward(gradient @ network.head, network.norm, gradients.norm)
        _backward(x, network, gradients, layout, kept)
        return flat_gradient, None, None, None


def in_pairs(
    block: Block, model: TinyModel
) -> tuple[Float[Tensor, "q+k+v width"], Float[Tensor, " q+k+v"]]:
    """Return matrix and bias of q, k and v such that rotary pairs are neighbours.

    The weights have the pairs (i, i + d/2) of each head of q and k, as transformers has them. As
    neighbours, a pair is a complex number, and the rotation one product.
    """
    pairs = _pairs(model)
    return block.qkv.index_select(0, pairs), block.qkv_bias.index_select(0, pairs)


def _pairs(model: TinyModel) -> Int[Tensor, " q+k+v"]:
    return _pairs_of(model.heads + model.kv_heads, model.kv_heads, model.head_width)


@functools.cache
def _pairs_of(turned: int, still: int, head_width: int) -> Int[Tensor, " q+k+v"]:
    rows = torch.arange((turned + still) * head_width)
    paired = rows[: turned * head_width].view(turned, 2, -1).transpose(1, 2).flatten()
    return torch.cat((paired, rows[turned * head_width :]))


def rotations(model: TinyModel, positions: int) -> Complex[Tensor, "positions pairs"]:
    """Return e^{i m θ_j} for position m and pair j of a head, θ_j = θ^(-2j/d).

    Source: Su et al. 2021 (arXiv:2104.09864), Eq. 15.
    """
    return _rotations(model.rope_theta, model.head_width, positions)


@functools.cache
def _rotations(theta: float, head_width: int, positions: int) -> Complex[Tensor, "positions pairs"]:
    frequencies = theta ** (-torch.arange(0, head_width, 2) / head_width)
    angles = torch.arange(positions)[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles)


def _rotate(
    qkv: Float[Tensor, "nodes q+k+v"], turns: Complex[Tensor, "nodes 1 pairs"], model: TinyModel
) -> None:
    """Turn the pairs of q and k in place; v, behind them, has no position."""
    turned = qkv[:, : (model.heads + model.kv_heads) * model.head_width]
    torch.view_as_complex(turned.view(len(qkv), -1, model.head_width // 2, 2)).mul_(turns)


def _in_rows(
    qkv: Float[Tensor, "nodes q+k+v"], layout: Layout, model: TinyModel
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the queries of every row's slots, and the keys and values that they attend to."""
    groups = model.kv_heads
    head = model.head_width
    q = qkv[:, : model.width].index_select(0, layout.queries.view(-1))
    kv = qkv[:, model.width :].index_select(0, layout.keys.view(-1))
    kv = kv.view(*layout.keys.shape, 2, groups, head).permute(2, 0, 3, 1, 4)
    k, v = kv.reshape(2, -1, layout.keys.shape[1], head)
    return _heads_first(q, layout, model), k, v


def _heads_first(
    x: Float[Tensor, "rows*slots width"], layout: Layout, model: TinyModel
) -> Float[Tensor, "rows*kv_heads shared*slots head"]:
    """Make the heads that share a key and value head one matrix with more rows."""
    rows, slots = layout.queries.shape
    x = x.view(rows, slots, model.kv_heads, -1, model.head_width).permute(0, 2, 3, 1, 4)
    return x.reshape(rows * model.kv_heads, -1, model.head_width)


def _by_node(
    x: Float[Tensor, "rows*kv_heads shared*slots head"], layout: Layout, model: TinyModel
) -> Float[Tensor, "nodes width"]:
    """Undo `_heads_first` and keep the slot of each node."""
    rows, slots = layout.queries.shape
    x = x.view(rows, model.heads, slots, model.head_width).transpose(1, 2)
    return x.reshape(rows * slots, model.width).index_select(0, layout.slots)


@dataclass(frozen=True)
class Continuations:
    """Completions of prompts, laid out for a training forward pass.

    Each prompt is encoded once, except for its last character, which starts each of its rows:
    that character predicts the first token. Common beginnings of rows are computed once.

    Attributes:
        layout: prompts without their last characters, then completions without their last tokens.
        first: the first node of a completion.
        node: the node that predicts each token of each completion, from `first`; arbitrary past
            the end.
        tokens: tokens of the completions, end marks included.
    """

    layout: Layout
    first: int
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
        count = len(in_use)
        starts = prompts.lengths[in_use] - 1
        openings = prompts.tokens[in_use, starts]
        width = max(tokens.shape[1], int(starts.max()))
        both = np.zeros((count + len(owner), width), dtype=np.int64)
        both[:count, : starts.max()] = prompts.tokens[in_use, : starts.max()]
        both[count:, 0] = openings[owner]
        both[count:, 1 : tokens.shape[1]] = tokens[:, :-1]
        # Prompts may share beginnings, too. Their owner is the first, and so are their nodes.
        none = np.zeros_like(in_use)
        packing = pack(np.concatenate((none, owner + 1)), both, np.concatenate((starts, lengths)))
        prefix = np.concatenate((none, owner))
        start = np.concatenate((none, starts[owner]))
        first = int(packing.node[:count].max()) + 1
        node = np.maximum(packing.node[count:, : tokens.shape[1]] - first, 0)
        return cls(
            layout=lay_out(packing, both, prefix, start),
            first=first,
            node=torch.from_numpy(node),
            tokens=torch.from_numpy(tokens),
        )

    def log_probs(
        self,
        flat: Float[Tensor, " weights"],
        model: TinyModel,
        temperature: float,
        *,
        entropies: bool = False,
    ) -> tuple[Float[Tensor, "rows tokens"], Float[Tensor, "rows tokens"] | None]:
        """Return log π of each token and, with `entropies`, the entropy of its distribution.

        Values past the end of a completion are arbitrary.
        """
        log_p = F.log_softmax(self._logits(flat, model) / temperature, dim=-1)
        index = (self.node * log_p.shape[1] + self.tokens).view(-1)
        chosen = log_p.view(-1).index_select(0, index).view(self.node.shape)
        if not entropies:
            return chosen, None
        entropy = -(log_p.exp() * log_p).sum(dim=-1)
        return chosen, entropy.index_select(0, self.node.view(-1)).view(self.node.shape)

    def kl(
        self,
        flat: Float[Tensor, " weights"],
        other: Float[Tensor, " weights"],
        model: TinyModel,
        temperature: float,
    ) -> Float[Tensor, "rows tokens"]:
        """Return KL(π ‖ other) of the distribution that each token is drawn from, in nats.

        Values past the end of a completion are arbitrary. In double precision, as the KL of nearly
        equal distributions is a small difference of large numbers.
        """
        both = (self._logits(weights, model) for weights in (flat, other))
        log_p, log_q = (F.log_softmax(logits.double() / temperature, dim=-1) for logits in both)
        kl = (log_p.exp() * (log_p - log_q)).sum(dim=-1)
        return kl.index_select(0, self.node.view(-1)).view(self.node.shape)

    def _logits(
        self, flat: Float[Tensor, " weights"], model: TinyModel
    ) -> Float[Tensor, "nodes vocabulary"]:
        logits: Tensor = _Logits.apply(  # type: ignore[no-untyped-call]
            flat, model, self.layout, self.first
        )
        return logits
