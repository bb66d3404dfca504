"""Sampling of many rollouts at once, with a static key-value cache.

Tensors hold features first and one rollout per column, `[features, columns]`. Every operation then
runs over long contiguous rows, although heads and vocabulary are small. Columns are sorted by the
length of their prompts, longest first. Long prompts tend to have long answers, so finished columns
gather at the end, where cutting them off moves no data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from advsweep.backends.randomness import Stream, torch_generator
from advsweep.backends.step_changes import at_answers, mean_by_problem, measured_answers
from advsweep.backends.tiny.network import Continuations, Network, forward, in_pairs, rotations
from advsweep.backends.tiny.tokens import MASKED, Encoded, decode, encode, lay_out, pack
from advsweep.tasks.base import Completions
from advsweep.tasks.episodes import GOES_ON, EpisodeTask

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.backends.models import TinyModel
    from advsweep.tasks.base import Problem, SymbolTask

# Rollouts sampled together; more do not fit into the CPU's cache.
_COLUMNS = 512

# Columns that have ended are dropped once at most this share still runs: dropping copies the cache.
_KEPT = 0.75


@dataclass(frozen=True)
class Rollouts:
    """Sampled completions, or episodes with the environment's tokens among the policy's.

    Attributes:
        tokens: token ids, end marks included; padding past the end.
        lengths: tokens, end mark and those of an environment included.
        log_probs: log π of each generated token at the sampling temperature; 0 elsewhere.
        entropies: exact entropy of each generated token's distribution, in nats; 0 elsewhere.
        certainties: KL(uniform ‖ π) of each generated token's distribution, in nats; 0 elsewhere.
        squares: Σπ² of each generated token's distribution; 0 elsewhere, and everywhere unless it
            is asked for.
        turns: the turn of each token, from 0; -1 for tokens of the environment and past the end.
            None where each completion is one turn.
        truncated: whether the limit of tokens or turns ended a completion.
    """

    tokens: Int[Tensor, "rows tokens"]
    lengths: Int[Tensor, " rows"]
    log_probs: Float[Tensor, "rows tokens"]
    entropies: Float[Tensor, "rows tokens"]
    certainties: Float[Tensor, "rows tokens"]
    squares: Float[Tensor, "rows tokens"]
    truncated: Bool[Tensor, " rows"]
    turns: Int[Tensor, "rows tokens"] | None = None

    def __getitem__(self, rows: Int[Tensor, " some"]) -> Rollouts:
        return Rollouts(**{name: values[rows] for name, values in self._given.items()})

    @property
    def _given(self) -> dict[str, Tensor]:
        return {name: values for name, values in vars(self).items() if values is not None}

    @property
    def mask(self) -> Bool[Tensor, "rows tokens"]:
        """True for generated tokens."""
        if self.turns is not None:
            return self.turns >= 0
        return torch.arange(self.tokens.shape[1]) < self.lengths[:, None]

    @property
    def generated(self) -> Int[Tensor, " rows"]:
        """Generated tokens, without those of an environment."""
        return self.lengths if self.turns is None else self.mask.sum(dim=1)

    @classmethod
    def concatenate(cls, parts: Sequence[Rollouts]) -> Rollouts:
        names = parts[0]._given
        return cls(**{name: torch.cat([getattr(p, name) for p in parts]) for name in names})


@dataclass(frozen=True, kw_only=True)
class TokenSampling:
    """How tokens are drawn, and what is recorded of them.

    Attributes:
        temperature: 0 takes the likeliest token each time; log-probabilities and entropies are
            then those at temperature 1.
        top_p: sample from the smallest set of tokens with at least this share of the
            probability. Log-probabilities and entropies stay those of the whole distribution.
        squares: whether to record Σπ².
    """

    temperature: float
    generator: torch.Generator
    top_p: float = 1.0
    squares: bool = False


@torch.no_grad()
def sample(
    network: Network,
    task: SymbolTask,
    texts: Sequence[str],
    group_size: int,
    sampling: TokenSampling,
) -> Rollouts:
    """Sample `group_size` completions of every text; those of a text are neighbours.

    Args:
        texts: prompts; of a task with turns also episodes that have not ended, with the reply to
            their last turn, which are continued.
    """
    prompts = encode(texts, task)
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
        dialogue = None
        if isinstance(task, EpisodeTask):
            dialogue = _Dialogue(task, [texts[i] for i in some.repeat(size).tolist()])
        parts.append(_sample(decoder, task, sampling, dialogue))
    rollouts = Rollouts.concatenate(parts)
    back = torch.from_numpy(np.argsort(order, kind="stable"))
    rows = torch.arange(len(rollouts.lengths)).view(len(order), size)[back]
    return rollouts[rows.reshape(len(prompts.lengths), -1)[:, :group_size].flatten()]


def _sample(
    decoder: _Decoder, task: SymbolTask, sampling: TokenSampling, dialogue: _Dialogue | None
) -> Rollouts:
    """Sample until every column has ended.

    Args:
        dialogue: the environment of a task with turns.
    """
    steps = task.max_completion_length
    count = decoder.logits.shape[1]
    uniform = torch.rand(steps, count, generator=sampling.generator)
    record = _Record(task, count, squares=sampling.squares)
    columns = torch.arange(count)
    running = torch.ones(count, dtype=torch.bool)
    for step in range(steps):
        if dialogue is not None and dialogue.all_answer(columns[running]):
            # Nobody draws: no probabilities are needed.
            token = dialogue.replies[columns].clamp(min=0)
        else:
            log_p = F.log_softmax(decoder.logits / (sampling.temperature or 1.0), dim=0)
            p = log_p.exp()
            token = _draw(log_p, p, uniform[step, columns], sampling)
            if dialogue is not None:
                token = torch.where(dialogue.answers(columns), dialogue.replies[columns], token)
            record.write_chances(step, columns, token, log_p, p)
        record.tokens[columns, step] = token
        if dialogue is None:
            ended = running & (token == task.eos_id)
        else:
            ended = dialogue.take(step, columns, token, running)
        record.lengths[columns[ended]] = step + 1
        running &= ~ended
        left = running.nonzero()[:, 0]
        if step == steps - 1 or len(left) == 0:
            break
        if len(left) <= _KEPT * len(columns):
            decoder.keep(left)
            columns = columns[left]
            running = running[left]
            token = token[left]
        decoder.feed(token)
    return record.rollouts(dialogue)


class _Record:
    """What has been sampled so far; of columns that have ended, anything past their ends.

    Args:
        squares: whether to record Σπ².
    """

    def __init__(self, task: SymbolTask, count: int, *, squares: bool) -> None:
        shape = (count, task.max_completion_length)
        self._task = task
        self._has_squares = squares
        self.tokens = torch.full(shape, task.pad_id)
        self.lengths = torch.full((count,), task.max_completion_length)
        self._log_probs = torch.zeros(shape)
        self._entropies = torch.zeros(shape)
        self._certainties = torch.zeros(shape)
        self._squares = torch.zeros(shape)

    def write_chances(
        self,
        step: int,
        columns: Int[Tensor, " columns"],
        token: Int[Tensor, " columns"],
        log_p: Float[Tensor, "vocabulary columns"],
        p: Float[Tensor, "vocabulary columns"],
    ) -> None:
        """Record what the distributions say from which a step's tokens were drawn."""
        self._log_probs[columns, step] = log_p.gather(0, token[None])[0]
        self._entropies[columns, step] = -(p * log_p).sum(dim=0)
        self._certainties[columns, step] = -log_p.mean(dim=0) - math.log(len(p))
        if self._has_squares:
            self._squares[columns, step] = p.square().sum(dim=0)

    def rollouts(self, dialogue: _Dialogue | None) -> Rollouts:
        """Return what was sampled, with nothing past the ends and at tokens of an environment."""
        last = self.tokens.gather(1, self.lengths[:, None] - 1)[:, 0]
        rollouts = Rollouts(
            tokens=self.tokens,
            lengths=self.lengths,
            log_probs=self._log_probs,
            entropies=self._entropies,
            certainties=self._certainties,
            squares=self._squares,
            truncated=last != self._task.eos_id if dialogue is None else dialogue.cut_off,
            turns=None if dialogue is None else dialogue.turns,
        )
        past = torch.arange(self.tokens.shape[1]) >= self.lengths[:, None]
        self.tokens.masked_fill_(past, self._task.pad_id)
        for chances in (self._log_probs, self._entropies, self._certainties, self._squares):
            chances.masked_fill_(~rollouts.mask, 0)
        return rollouts


def _draw(
    log_p: Float[Tensor, "vocabulary columns"],
    p: Float[Tensor, "vocabulary columns"],
    uniform: Float[Tensor, " columns"],
    sampling: TokenSampling,
) -> Int[Tensor, " columns"]:
    """Draw a token of each column, or take the likeliest."""
    if sampling.temperature == 0:
        return log_p.argmax(dim=0)
    drawn = p if sampling.top_p == 1 else _nucleus(p, sampling.top_p)
    cumulated = drawn.cumsum(dim=0)
    # Relative to the last cumulated probability, which rounding keeps from being 1.
    passed = cumulated <= uniform * cumulated[-1]
    return passed.sum(dim=0).clamp_(max=len(p) - 1)


class _Dialogue:
    """The environment's side of the episodes that are sampled, one of each column.

    Columns are numbered as at the start, whichever have been dropped.

    Attributes:
        turns: as in `Rollouts`.
        replies: the token with which the environment answers next; `GOES_ON` where it is the
            policy's turn.
        cut_off: whether the limit of turns ended an episode.
    """

    def __init__(self, task: EpisodeTask, texts: Sequence[str]) -> None:
        self._episodes = task.begin(texts)
        self._turn = torch.zeros(len(texts), dtype=torch.int64)
        self.turns = torch.full((len(texts), task.max_completion_length), -1)
        self.replies = torch.full((len(texts),), GOES_ON)
        self.cut_off = torch.zeros(len(texts), dtype=torch.bool)

    def answers(self, columns: Int[Tensor, " columns"]) -> Bool[Tensor, " columns"]:
        """Flag the columns in which the environment answers next."""
        return self.replies[columns] != GOES_ON

    def all_answer(self, columns: Int[Tensor, " columns"]) -> bool:
        """Whether the environment answers next in all these columns."""
        return bool(self.answers(columns).all())

    def take(
        self,
        step: int,
        columns: Int[Tensor, " columns"],
        token: Int[Tensor, " columns"],
        running: Bool[Tensor, " columns"],
    ) -> Bool[Tensor, " columns"]:
        """Go on by a token in each column; return the episodes that have ended with it."""
        ended = torch.zeros_like(running)
        own = running & ~self.answers(columns)
        self.replies[columns] = GOES_ON
        acting = columns[own]
        if not len(acting):
            return ended
        self.turns[acting, step] = self._turn[acting]
        reply = self._episodes.take(acting.numpy(), token[own].numpy())
        answered = torch.from_numpy(reply.symbols)
        self.replies[acting] = answered
        self._turn[acting] += answered != GOES_ON
        self.cut_off[acting] = torch.from_numpy(reply.cut_off)
        ended[own] = torch.from_numpy(reply.ended)
        return ended


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

    Attributes:
        logits: logits of the next token of each column, `[vocabulary, columns]`.
    """

    def __init__(self, network: Network, prompts: Encoded, size: int, steps: int) -> None:
        """Encode each prompt once.

        Args:
            size: columns per prompt.
            steps: the most tokens that are generated; the last is never fed.
        """
        model = network.model
        none = np.zeros_like(prompts.lengths)
        packing = pack(none, prompts.tokens, prompts.lengths)
        x, keys_values = forward(network, lay_out(packing, prompts.tokens, none, none))
        node = torch.from_numpy(packing.node)
        lengths = torch.from_numpy(prompts.lengths)
        rows, slots = node.shape
        self._network = network
        # Fused: (x w) Mᵀ = x (M w)ᵀ.
        paired = [in_pairs(block, model) for block in network.blocks]
        norms = [block.attention_norm for block in network.blocks]
        self._qkv = [
            (m * norm, bias[:, None]) for (m, bias), norm in zip(paired, norms, strict=True)
        ]
        self._gate_up = [b.gate_up * b.mlp_norm for b in network.blocks]
        self._head = network.head * network.norm
        self._embedding = network.embedding.T.contiguous()
        turns = rotations(model, int(lengths.max()) + steps).T
        self._cos = turns.real.contiguous()
        self._sin = turns.imag.contiguous()
        self._filled = slots
        self._positions = lengths.repeat_interleave(size)
        last = x[node[torch.arange(rows), lengths - 1]].T
        self.logits = (self._head @ _normalise(last, model.norm_eps)).repeat_interleave(size, 1)
        padding = torch.arange(slots)[:, None] >= lengths
        self._bias = torch.where(padding, MASKED, 0.0).repeat_interleave(size, 1)[:, None, None]
        # Keys and values of the prompt, then of the tokens that are fed.
        shape = (2, slots + steps - 1, model.kv_heads, model.head_width, rows * size)
        self._cache = [torch.empty(shape) for _ in keys_values]
        for cache, kv in zip(self._cache, keys_values, strict=True):
            prefix = kv[node].view(rows, slots, 2, model.kv_heads, -1).permute(2, 1, 3, 4, 0)
            cache[:, :slots] = prefix.repeat_interleave(size, dim=-1)

    def keep(self, columns: Int[Tensor, " some"]) -> None:
        """Drop all other columns."""
        self._positions = self._positions[columns]
        self._bias = self._bias[..., columns]
        for i, cache in enumerate(self._cache):
            self._cache[i] = torch.empty((*cache.shape[:-1], len(columns)))
            filled = cache[:, : self._filled].index_select(-1, columns)
            self._cache[i][:, : self._filled] = filled

    def feed(self, tokens: Int[Tensor, " columns"]) -> None:
        """Append a token to each column."""
        model = self._network.model
        eps = model.norm_eps
        cos = self._cos[:, self._positions]
        sin = self._sin[:, self._positions]
        x = self._embedding[:, tokens]
        for i, block in enumerate(self._network.blocks):
            matrix, bias = self._qkv[i]
            qkv = torch.addmm(bias, matrix, _normalise(x, eps))
            x = torch.addmm(x, block.out, self._attend(self._cache[i], qkv, cos, sin))
            gate, up = (self._gate_up[i] @ _normalise(x, eps)).chunk(2)
            x = torch.addmm(x, block.down, F.silu(gate, inplace=True).mul_(up))
        self.logits = self._head @ _normalise(x, eps)
        self._filled += 1
        self._positions = self._positions + 1

    def _attend(
        self,
        cache: Float[Tensor, "2 places kv_heads head columns"],
        qkv: Float[Tensor, "q+k+v columns"],
        cos: Float[Tensor, "pairs columns"],
        sin: Float[Tensor, "pairs columns"],
    ) -> Float[Tensor, "width columns"]:
        """Add new tokens to the cache; return their attention over all that it holds.

        Rotates qkv in place.
        """
        model = self._network.model
        n = qkv.shape[1]
        groups = model.kv_heads
        head = model.head_width
        # The pairs of q and k in place; v, behind them, has no position.
        first, second = qkv[: (model.heads + groups) * head].view(-1, head // 2, 2, n).unbind(2)
        turned = (first * cos).addcmul_(second, sin, value=-1)
        second.mul_(cos).addcmul_(first, sin)
        first.copy_(turned)
        q, kv = torch.split(qkv, [model.width, qkv.shape[0] - model.width])
        cache[:, self._filled] = kv.view(2, groups, head, n)
        keys, values = cache[:, : self._filled + 1, :, None]
        # A matrix product per column would be tiny: elementwise products, summed.
        q = (q / math.sqrt(head)).view(groups, -1, head, n)
        scores = (keys * q).sum(dim=3)
        scores[: len(self._bias)] += self._bias
        weights = scores.softmax(dim=0)[:, :, :, None]
        out: Tensor = (values * weights).sum(dim=0).view(model.width, n)
        return out


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
        weights: Float[Tensor, " weights"],
        model: TinyModel,
        task: SymbolTask,
        base: Float[Tensor, " weights"] | None = None,
        top_p: float = 1.0,
    ) -> None:
        self._weights = weights.detach().clone()
        self._model = model
        self._task = task
        self._base = base
        self._top_p = top_p

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        """Draw n completions per problem; the same seed gives the same completions."""
        prompts = [problem.prompt for problem in problems]
        rollouts = sample(
            Network.of(self._weights, self._model),
            self._task,
            prompts,
            n,
            TokenSampling(
                temperature=temperature,
                generator=torch_generator(seed, Stream.EVALUATION),
                top_p=self._top_p,
            ),
        )
        texts = decode(rollouts.tokens.numpy(), self._task)
        by_problem = [texts[i : i + n] for i in range(0, len(texts), n)]
        entropy = rollouts.entropies.view(len(problems), -1).sum(dim=1)
        tokens = rollouts.generated.view(len(problems), -1).sum(dim=1)
        is_whole = temperature > 0 and self._top_p == 1
        return Completions(
            texts=by_problem,
            token_entropy=(entropy / tokens).double().numpy(),
            kl_base=self._kl(encode(prompts, self._task), rollouts, n, temperature)
            if is_whole
            else None,
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
        kl = continuations.kl(self._weights, self._base, self._model, temperature)
        sums = kl.where(some.mask, 0.0).sum(dim=1)
        return mean_by_problem(at_answers(sums, len(rollouts.lengths)), n)
