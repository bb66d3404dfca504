"""Sampling: many rollouts at once, with a static key-value cache.

Tensors hold features first and one rollout per column, `[features, columns]`: every operation
then runs over long contiguous rows, however small heads and vocabulary are. Columns are sorted
by the length of their prompts, the longest first. Long prompts tend to have long answers, so
that finished columns gather at the end and are cut off without moving anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from advsweep.backends.tiny.network import MASKED, extend, fuse, lay_out, rotations
from advsweep.backends.tiny.packing import pack
from advsweep.backends.tiny.randomness import Stream, torch_generator
from advsweep.backends.tiny.vocabulary import Encoded, decode, encode
from advsweep.tasks.base import Completions

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.backends.tiny.model_config import TinyModel
    from advsweep.backends.tiny.network import Network
    from advsweep.backends.tiny.weights import Weights
    from advsweep.tasks.base import Problem, SymbolTask

_COLUMNS = 512
"""Rollouts that are sampled together; more would fall out of the CPU's cache."""


@dataclass(frozen=True)
class Rollouts:
    """Sampled completions.

    Attributes:
        tokens: token ids, the end mark included; padding past a completion's end.
        lengths: generated tokens, the end mark included.
        log_probs: log π of each token at the sampling temperature; 0 past the end.
        entropies: exact entropy of each token's distribution, in nats; 0 past the end.
    """

    tokens: Int[Tensor, "rows tokens"]
    lengths: Int[Tensor, " rows"]
    log_probs: Float[Tensor, "rows tokens"]
    entropies: Float[Tensor, "rows tokens"]

    def __getitem__(self, rows: Int[Tensor, " some"]) -> Rollouts:
        return Rollouts(*(getattr(self, f.name)[rows] for f in fields(self)))

    @property
    def mask(self) -> Bool[Tensor, "rows tokens"]:
        """True for generated tokens."""
        return torch.arange(self.tokens.shape[1]) < self.lengths[:, None]

    @classmethod
    def concatenate(cls, parts: Sequence[Rollouts]) -> Rollouts:
        return cls(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(cls)))


@torch.no_grad()
def sample(
    network: Network,
    task: SymbolTask,
    prompts: Encoded,
    group_size: int,
    *,
    temperature: float,
    generator: torch.Generator,
) -> Rollouts:
    """Samples `group_size` completions of every prompt; those of a prompt stand together."""
    # A prompt with more rollouts than fit is sampled in several parts of equal size.
    parts_per_prompt = -(-group_size // _COLUMNS)
    size = -(-group_size // parts_per_prompt)
    order = np.argsort(-prompts.lengths, kind="stable").repeat(parts_per_prompt)
    prompts_at_once = _COLUMNS // size
    parts = []
    for start in range(0, len(order), prompts_at_once):
        some = order[start : start + prompts_at_once]
        decoder = _Decoder(
            network,
            Encoded(prompts.tokens[some], prompts.lengths[some]),
            size,
            task.max_completion_length,
        )
        parts.append(_sample(decoder, task, temperature, generator))
    rollouts = Rollouts.concatenate(parts)
    back = torch.from_numpy(np.argsort(order, kind="stable"))
    rows = torch.arange(len(rollouts.lengths)).view(len(order), size)[back]
    return rollouts[rows.reshape(len(prompts.lengths), -1)[:, :group_size].flatten()]


def _sample(
    decoder: _Decoder, task: SymbolTask, temperature: float, generator: torch.Generator
) -> Rollouts:
    """Samples until every column has ended."""
    steps, columns = task.max_completion_length, decoder.logits.shape[1]
    uniform = torch.rand(steps, columns, generator=generator)
    tokens = torch.full((steps, columns), task.pad_id)
    log_probs, entropies = torch.zeros(steps, columns), torch.zeros(steps, columns)
    lengths = torch.full((columns,), steps)
    running = torch.ones(columns, dtype=torch.bool)
    for step in range(steps):
        log_p = F.log_softmax(decoder.logits / temperature, dim=0)
        p = log_p.exp()
        cumulated = p.cumsum(dim=0)
        n = p.shape[1]
        # The last cumulated probability need not be 1, by rounding.
        passed = cumulated <= uniform[step, :n] * cumulated[-1]
        token = passed.sum(dim=0).clamp_(max=len(p) - 1)
        tokens[step, :n] = token
        log_probs[step, :n] = log_p.gather(0, token[None])[0]
        entropies[step, :n] = -(p * log_p).sum(dim=0)
        ended = running[:n] & (token == task.eos_id)
        lengths[:n].masked_fill_(ended, step + 1)
        running[:n] &= ~ended
        left = running.nonzero()
        if step == steps - 1 or len(left) == 0:
            break
        decoder.feed(token[: int(left[-1]) + 1])
    rollouts = Rollouts(tokens.T, lengths, log_probs.T, entropies.T)
    past = ~rollouts.mask
    rollouts.tokens.masked_fill_(past, task.pad_id)
    rollouts.log_probs.masked_fill_(past, 0)
    rollouts.entropies.masked_fill_(past, 0)
    return rollouts


class _Decoder:
    """Feeds tokens to the network, one per column and step.

    Attributes:
        logits: of the next token of each column, `[vocabulary, columns]`.
    """

    def __init__(self, network: Network, prompts: Encoded, size: int, steps: int) -> None:
        """Encodes each prompt once, and gives `size` columns a cache that starts with it."""
        model = network.model
        self._network = network
        self._embedding = network.embedding.T.contiguous()
        packing = pack(np.zeros_like(prompts.lengths), prompts.tokens, prompts.lengths)
        logits, keys_values = extend(network, lay_out(packing, prompts.tokens))
        rows, slots = packing.node.shape
        node = torch.from_numpy(packing.node)
        lengths = torch.from_numpy(prompts.lengths)
        last = node[torch.arange(rows), lengths - 1]
        self.logits = _spread(logits[last].T, size)
        self._positions = _spread(lengths, size)
        padding = torch.arange(slots)[:, None] >= lengths
        self._bias = _spread(torch.where(padding, MASKED, 0.0), size)[:, None, None]
        self._filled = slots
        shape = (slots + steps - 1, model.kv_heads, model.head_width, rows * size)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        for kv in keys_values:
            # Slots, keys or values, heads, features of a head, prompts.
            prefix = kv[node.T].view(slots, rows, 2, *shape[1:3]).permute(0, 2, 3, 4, 1)
            for caches, part in zip((self._keys, self._values), prefix.unbind(1), strict=True):
                cache = torch.empty(shape)
                cache[:slots].view(*part.shape, size).copy_(part[..., None])
                caches.append(cache)
        turns = rotations(model, int(lengths.max()) + steps)[:, 0].T
        self._cos, self._sin = turns.real.contiguous(), turns.imag.contiguous()

    def feed(self, tokens: Int[Tensor, " columns"]) -> None:
        """Appends a token to each of the first columns; the columns after them are dropped."""
        n, eps = len(tokens), self._network.model.norm_eps
        positions = self._positions[:n]
        cos, sin = self._cos[:, positions], self._sin[:, positions]
        x = self._embedding[:, tokens]
        for i, block in enumerate(self._network.blocks):
            qkv = torch.addmm(block.qkv_bias[:, None], block.qkv, _normalise(x, eps))
            x = torch.addmm(x, block.out, self._attend(i, qkv, cos, sin))
            gate, up = (block.gate_up @ _normalise(x, eps)).chunk(2)
            x = torch.addmm(x, block.down, F.silu(gate, inplace=True).mul_(up))
        self.logits = self._network.head @ _normalise(x, eps)
        self._filled += 1
        self._positions = positions + 1

    def _attend(
        self,
        block: int,
        qkv: Float[Tensor, "q+k+v columns"],
        cos: Float[Tensor, "pairs columns"],
        sin: Float[Tensor, "pairs columns"],
    ) -> Float[Tensor, "width columns"]:
        """Attention of the new tokens over the cache, into which they go first; rotates qkv."""
        model, n = self._network.model, qkv.shape[1]
        groups, head = model.kv_heads, model.head_width
        turned = qkv[: (model.heads + groups) * head].view(-1, head // 2, 2, n)
        real, imaginary = turned.unbind(2)
        rotated = (real * cos).addcmul_(imaginary, sin, value=-1)
        imaginary.mul_(cos).addcmul_(real, sin)
        real.copy_(rotated)
        q, k, v = torch.split(qkv.view(-1, head, n), [model.heads, groups, groups])
        # A key and value head serves the query heads of its group.
        keys, values = self._keys[block], self._values[block]
        keys[self._filled, ..., :n] = k
        values[self._filled, ..., :n] = v
        keys, values = (c[: self._filled + 1, :, None, :, :n] for c in (keys, values))
        scores = (keys * q.view(groups, -1, head, n)).sum(dim=3)
        scores[: len(self._bias)] += self._bias[..., :n]
        weights = scores.softmax(dim=0)
        out: Tensor = (values * weights[:, :, :, None]).sum(dim=0)
        return out.view(model.width, n)


def _normalise(x: Float[Tensor, "width columns"], eps: float) -> Float[Tensor, "width columns"]:
    return x * torch.rsqrt(x.square().mean(dim=0) + eps)


def _spread(x: Float[Tensor, "... prompts"], size: int) -> Float[Tensor, "... columns"]:
    """Each prompt's number, once for each of its columns."""
    return x.repeat_interleave(size, dim=-1)


class TinySampler:
    """Weights that answer problems."""

    def __init__(self, weights: Weights, model: TinyModel, task: SymbolTask) -> None:
        self._network = fuse({name: w.detach().clone() for name, w in weights.items()}, model)
        self._task = task

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        """Draws n completions per problem; the same seed gives the same completions."""
        rollouts = sample(
            self._network,
            self._task,
            encode([problem.prompt for problem in problems], self._task),
            n,
            temperature=temperature,
            generator=torch_generator(seed, Stream.EVALUATION),
        )
        texts = decode(rollouts.tokens.numpy(), self._task)
        by_problem = [texts[i : i + n] for i in range(0, len(texts), n)]
        entropy = rollouts.entropies.view(len(problems), -1).sum(dim=1)
        tokens = rollouts.lengths.view(len(problems), -1).sum(dim=1)
        return Completions(texts=by_problem, token_entropy=(entropy / tokens).double().numpy())
