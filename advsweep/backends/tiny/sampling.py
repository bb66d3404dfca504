"""Sampling of many rollouts at once, with a static key-value cache.

Tensors hold features first and one rollout per column, `[features, columns]`. Every operation then
runs over long contiguous rows, although heads and vocabulary are small. Columns are sorted by the
length of their prompts, longest first. Long prompts tend to have long answers, so finished columns
gather at the end, where cutting them off moves no data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from advsweep.backends.randomness import Stream, torch_generator
from advsweep.backends.step_changes import at_answers, mean_by_problem, measured_answers
from advsweep.backends.tiny.network import Continuations, extend, fuse, rotations
from advsweep.backends.tiny.tokens import MASKED, Encoded, decode, encode, lay_out, pack
from advsweep.tasks.base import Completions

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.backends.models import TinyModel
    from advsweep.backends.tiny.network import Network
    from advsweep.backends.tiny.weights import Weights
    from advsweep.tasks.base import Problem, SymbolTask

# Rollouts sampled together; more do not fit into the CPU's cache.
_COLUMNS = 512


@dataclass(frozen=True)
class Rollouts:
    """Sampled completions.

    Attributes:
        tokens: token ids, end marks included; padding past the end.
        lengths: generated tokens, end mark included.
        log_probs: log π of each token at the sampling temperature; 0 past the end.
        entropies: exact entropy of each token's distribution, in nats; 0 past the end.
        certainties: KL(uniform ‖ π) of each token's distribution, in nats; 0 past the end.
        squares: Σπ² of each token's distribution; 0 past the end, and everywhere unless it is
            asked for.
    """

    tokens: Int[Tensor, "rows tokens"]
    lengths: Int[Tensor, " rows"]
    log_probs: Float[Tensor, "rows tokens"]
    entropies: Float[Tensor, "rows tokens"]
    certainties: Float[Tensor, "rows tokens"]
    squares: Float[Tensor, "rows tokens"]

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
    top_p: float = 1.0,
    squares: bool = False,
) -> Rollouts:
    """Sample `group_size` completions of every prompt; those of a prompt are neighbours.

    Args:
        temperature: 0 takes the likeliest token each time; log-probabilities and entropies are
            then those at temperature 1.
        top_p: sample from the smallest set of tokens with at least this share of the
            probability. Log-probabilities and entropies stay those of the whole distribution.
        squares: whether to record Σπ².
    """
    # A prompt with more than _COLUMNS rollouts is sampled in several parts of equal size.
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
        parts.append(_sample(decoder, task, temperature, generator, top_p, squares))
    rollouts = Rollouts.concatenate(parts)
    back = torch.from_numpy(np.argsort(order, kind="stable"))
    rows = torch.arange(len(rollouts.lengths)).view(len(order), size)[back]
    return rollouts[rows.reshape(len(prompts.lengths), -1)[:, :group_size].flatten()]


def _sample(
    decoder: _Decoder,
    task: SymbolTask,
    temperature: float,
    generator: torch.Generator,
    top_p: float,
    records_squares: bool,
) -> Rollouts:
    """Sample until every column has ended."""
    steps, columns = task.max_completion_length, decoder.logits.shape[1]
    uniform = torch.rand(steps, columns, generator=generator)
    tokens = torch.full((steps, columns), task.pad_id)
    log_probs, entropies, certainties, squares = (torch.zeros(steps, columns) for _ in range(4))
    lengths = torch.full((columns,), steps)
    running = torch.ones(columns, dtype=torch.bool)
    for step in range(steps):
        log_p = F.log_softmax(decoder.logits / (temperature or 1.0), dim=0)
        p = log_p.exp()
        n = p.shape[1]
        if temperature == 0:
            token = log_p.argmax(dim=0)
        else:
            cumulated = (p if top_p == 1 else _nucleus(p, top_p)).cumsum(dim=0)
            # Relative to the last cumulated probability, which rounding keeps from being 1.
            passed = cumulated <= uniform[step, :n] * cumulated[-1]
            token = passed.sum(dim=0).clamp_(max=len(p) - 1)
        tokens[step, :n] = token
        log_probs[step, :n] = log_p.gather(0, token[None])[0]
        entropies[step, :n] = -(p * log_p).sum(dim=0)
        certainties[step, :n] = -log_p.mean(dim=0) - math.log(len(p))
        if records_squares:
            squares[step, :n] = p.square().sum(dim=0)
        ended = running[:n] & (token == task.eos_id)
        lengths[:n].masked_fill_(ended, step + 1)
        running[:n] &= ~ended
        left = running.nonzero()
        if step == steps - 1 or len(left) == 0:
            break
        groups = int(left[-1]) // decoder.size + 1
        decoder.feed(token[: groups * decoder.size])
    of_tokens = (log_probs, entropies, certainties, squares)
    rollouts = Rollouts(tokens.T, lengths, *(values.T for values in of_tokens))
    past = ~rollouts.mask
    rollouts.tokens.masked_fill_(past, task.pad_id)
    for per_token in of_tokens:
        per_token.T.masked_fill_(past, 0)
    return rollouts


def _nucleus(
    p: Float[Tensor, "vocabulary columns"], top_p: float
) -> Float[Tensor, "vocabulary columns"]:
    """Set the probabilities outside the likeliest tokens with a share of `top_p` to 0.

    A token stays if the tokens that are likelier, or as likely and before it, have less than
    `top_p` (Holtzman et al. 2020, arXiv:1904.09751).
    """
    ordered, order = p.sort(dim=0, descending=True, stable=True)
    before = ordered.cumsum(dim=0) - ordered
    kept = torch.zeros_like(p, dtype=torch.bool).scatter_(0, order, before < top_p)
    return torch.where(kept, p, 0.0)


class _Decoder:
    """Feeds tokens to the network, one per column and step.

    The columns of a prompt are neighbours and share its keys and values. Keys and values of
    generated tokens go into a cache per column.

    Attributes:
        size: columns per prompt.
        logits: logits of the next token of each column, `[vocabulary, columns]`.
    """

    def __init__(self, network: Network, prompts: Encoded, size: int, steps: int) -> None:
        """Encode each prompt once.

        Args:
            steps: the most tokens that are generated; the last is never fed.
        """
        model = network.model
        groups, head = model.kv_heads, model.head_width
        packing = pack(np.zeros_like(prompts.lengths), prompts.tokens, prompts.lengths)
        logits, keys_values = extend(network, lay_out(packing, prompts.tokens))
        node = torch.from_numpy(packing.node)
        rows, slots = node.shape
        lengths = torch.from_numpy(prompts.lengths)
        turns = rotations(model, int(lengths.max()) + steps)[:, 0].T
        self.size = size
        last = logits[node[torch.arange(rows), lengths - 1]]
        self.logits = last.T.repeat_interleave(size, dim=-1)
        self._network = network
        self._embedding = network.embedding.T.contiguous()
        self._cos, self._sin = turns.real.contiguous(), turns.imag.contiguous()
        self._positions = lengths.repeat_interleave(size, dim=-1)
        self._fed = 0
        # One matrix per prompt and key-value head.
        padding = torch.arange(slots) >= lengths[:, None]
        self._bias = torch.where(padding, MASKED, 0.0).repeat_interleave(groups, dim=0)[:, None]
        prefixes = [kv[node.view(-1)].view(rows, slots, 2, groups, head) for kv in keys_values]
        self._prefix_keys = [
            p[:, :, 0].permute(0, 2, 3, 1).reshape(-1, head, slots) for p in prefixes
        ]
        self._prefix_values = [
            p[:, :, 1].transpose(1, 2).reshape(-1, slots, head) for p in prefixes
        ]
        shape = (steps - 1, groups, head, rows * size)
        self._keys = [torch.empty(shape) for _ in keys_values]
        self._values = [torch.empty(shape) for _ in keys_values]

    def feed(self, tokens: Int[Tensor, " columns"]) -> None:
        """Append a token to each of the first columns, in whole groups; drop the others."""
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
        self._fed += 1
        self._positions = positions + 1

    def _attend(
        self,
        block: int,
        qkv: Float[Tensor, "q+k+v columns"],
        cos: Float[Tensor, "pairs columns"],
        sin: Float[Tensor, "pairs columns"],
    ) -> Float[Tensor, "width columns"]:
        """Add new tokens to the cache; return their attention over prompt and cache.

        Rotates qkv in place.
        """
        model, n = self._network.model, qkv.shape[1]
        groups, head = model.kv_heads, model.head_width
        shared, prompts, slots = model.heads // groups, n // self.size, self._bias.shape[-1]
        # Each pair of q and k in place; v, behind them, has no position.
        first, second = qkv[: (model.heads + groups) * head].view(-1, head // 2, 2, n).unbind(2)
        turned = (first * cos).addcmul_(second, sin, value=-1)
        second.mul_(cos).addcmul_(first, sin)
        first.copy_(turned)
        q, k, v = torch.split(qkv.view(-1, head, n), [model.heads, groups, groups])
        keys, values = self._keys[block], self._values[block]
        keys[self._fed, ..., :n] = k
        values[self._fed, ..., :n] = v
        keys, values = (c[: self._fed + 1, :, None, :, :n] for c in (keys, values))

        # Over the prompts: one matrix product per prompt and key-value head.
        split = (groups, shared, -1, prompts, self.size)
        queries = q.view(split).permute(3, 0, 1, 4, 2).reshape(prompts * groups, -1, head)
        of_prompts = slice(prompts * groups)
        prefix_keys = self._prefix_keys[block][of_prompts]
        prefix_scores = torch.baddbmm(self._bias[of_prompts], queries, prefix_keys)
        # Over each column's own tokens: elementwise products, summed.
        scores = torch.empty(slots + self._fed + 1, groups, shared, n)
        scores[:slots].view(slots, groups, shared, prompts, -1).copy_(
            prefix_scores.view(prompts, groups, shared, -1, slots).permute(4, 1, 2, 0, 3)
        )
        torch.sum(keys * q.view(groups, shared, head, n), dim=3, out=scores[slots:])
        weights = scores.softmax(dim=0)
        prefix_weights = weights[:slots].view(slots, groups, shared, prompts, -1)
        prefix_weights = prefix_weights.permute(3, 1, 2, 4, 0).reshape(prompts * groups, -1, slots)
        prefix_out = torch.bmm(prefix_weights, self._prefix_values[block][of_prompts])
        out = (values * weights[slots:, :, :, None]).sum(dim=0).view(split)
        out += prefix_out.view(prompts, groups, shared, -1, head).permute(1, 2, 4, 0, 3)
        return out.view(model.width, n)


def _normalise(x: Float[Tensor, "width columns"], eps: float) -> Float[Tensor, "width columns"]:
    return x * torch.rsqrt(x.square().mean(dim=0) + eps)


class TinySampler:
    """Samples answers to problems from weights.

    Args:
        base: the base model's weights, for the KL from it; None: it is not measured.
        top_p: share of the probability that is sampled from.
    """

    def __init__(
        self,
        weights: Weights,
        model: TinyModel,
        task: SymbolTask,
        base: Weights | None = None,
        top_p: float = 1.0,
    ) -> None:
        self._top_p = top_p
        self._network = fuse({name: w.detach().clone() for name, w in weights.items()}, model)
        self._base = None if base is None else fuse(base, model)
        self._task = task

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        """Draw n completions per problem; the same seed gives the same completions."""
        prompts = encode([problem.prompt for problem in problems], self._task)
        rollouts = sample(
            self._network,
            self._task,
            prompts,
            n,
            temperature=temperature,
            generator=torch_generator(seed, Stream.EVALUATION),
            top_p=self._top_p,
        )
        texts = decode(rollouts.tokens.numpy(), self._task)
        by_problem = [texts[i : i + n] for i in range(0, len(texts), n)]
        entropy = rollouts.entropies.view(len(problems), -1).sum(dim=1)
        tokens = rollouts.lengths.view(len(problems), -1).sum(dim=1)
        is_whole = temperature > 0 and self._top_p == 1
        return Completions(
            texts=by_problem,
            token_entropy=(entropy / tokens).double().numpy(),
            kl_base=self._kl(prompts, rollouts, n, temperature) if is_whole else None,
        )

    @torch.no_grad()
    def _kl(
        self, prompts: Encoded, rollouts: Rollouts, n: int, temperature: float
    ) -> Float[np.ndarray, " prompts"] | None:
        """Return the KL from the base model for each prompt; None without a base model."""
        if self._base is None:
            return None
        rows = measured_answers(len(rollouts.lengths))
        some = rollouts[torch.from_numpy(rows)]
        continuations = Continuations.lay_out(
            prompts, rows // n, some.tokens.numpy(), some.lengths.numpy()
        )
        kl = continuations.kl(self._network, self._base, temperature)
        sums = kl.where(some.mask, 0.0).sum(dim=1)
        return mean_by_problem(at_answers(sums, len(rollouts.lengths)), n)
