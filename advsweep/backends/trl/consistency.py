"""Compares log π of sampled tokens as an update computes it with what the sampler drew from.

The gradient of a policy needs log π of the distribution that drew the rollouts. Two programs
compute it: one generates, token after token, the other passes over whole padded rows. Where they
differ (positions of padded rows, old weights in an engine, layers that ignore the mask), a training
goes on without an error and follows the gradient of another distribution.

The comparison reuses rollouts of the first step, takes one pass over a few of them and draws no
random number: it changes no result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from advsweep.backends.step_changes import evenly_spaced
from advsweep.backends.trl.loading import without_adapter
from advsweep.backends.trl.padded_rows import PaddedRows
from advsweep.backends.trl.sampling import log_policy
from advsweep.backends.trl.steps import Rows, pick_rows, whole_rows
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    PerToken = Float[Tensor, "rows tokens"]

# Rollouts that are compared.
_ROLLOUTS = 4
# Columns of padding in front of the longest of their prompts, so that faults which padding causes
# show where all prompts are equally long.
_PADDING = 4

# The largest difference at a token, in nats, where both programs compute in float32. That of two
# correct ones is about 1e-6, and 1e-3 where a GPU rounds products to fewer bits.
EXACT_BOUND = 1e-2
# The mean of the differences, in nats, where one of them computes with 16 bits. Single tokens then
# differ by as much as 1 nat; means are 0.005 to 0.05 for two correct programs.
ROUNDED_BOUND = 0.1


@dataclass(frozen=True)
class LogProbGap:
    """How far two programs' log π of the same tokens are apart, in nats."""

    largest: float
    mean: float
    tokens: int

    @classmethod
    def between(
        cls, first: PerToken, second: PerToken, mask: Bool[Tensor, "rows tokens"]
    ) -> LogProbGap:
        """Measure the gap at the tokens of the mask that both have a number for."""
        gaps = (first.double() - second.double()).abs()[mask]
        # vLLM has no number for tokens that it cannot score.
        gaps = gaps[~gaps.isnan()]
        if not len(gaps):
            return cls(0.0, 0.0, 0)
        return cls(gaps.max().item(), gaps.mean().item(), len(gaps))


@dataclass(frozen=True)
class Bound:
    """What a gap may be at most.

    Attributes:
        nats: the bound.
        is_rounded: whether a program computes with 16 bits, so that the mean is bounded.
    """

    nats: float
    is_rounded: bool

    @classmethod
    def of(cls, trainer: Any, nats: float | None = None) -> Bound:
        """Return the bound for a trainer of TRL's; by default the one of its precision."""
        arguments = trainer.args
        rounded = arguments.bf16 or arguments.fp16
        rounded = rounded or any(weight.dtype.itemsize < 4 for weight in trainer.model.parameters())
        if nats is None:
            nats = ROUNDED_BOUND if rounded else EXACT_BOUND
        return cls(nats, rounded)

    def check(self, gap: LogProbGap, model: Any, remedy: str) -> None:
        """Refuse a model whose gap is too wide.

        Args:
            remedy: last words of the message: what the user can do.

        Raises:
            ConfigError: names the model's class and the largest difference.
        """
        if (gap.mean if self.is_rounded else gap.largest) <= self.nats:
            return
        whole = without_adapter(model)
        measured = f"{gap.largest:.2g}"
        if self.is_rounded:
            measured = f"{gap.mean:.2g} in the mean and {gap.largest:.2g} at the most"
        raise ConfigError(
            f"model: expected log-probabilities of sampled tokens that differ by at most "
            f"{self.nats:g} between the pass of an update and the sampler, got {measured} with "
            f"{type(whole).__name__} ({gap.tokens} tokens): it would train on another distribution "
            f"than it samples from; {remedy}"
        )


@dataclass(frozen=True)
class Truncation:
    """The top-p and top-k that a sampler's log-probabilities are normalised within."""

    top_p: float = 1.0
    top_k: int = 0

    def log_mass(self, log_p: Float[Tensor, "*rows vocabulary"]) -> Float[Tensor, " *rows"]:
        """Return the log of the probability of the tokens that can be sampled."""
        ordered = log_p.sort(dim=-1, descending=True).values
        if self.top_k > 0:
            ordered = ordered[..., : self.top_k]
        mass = ordered.logsumexp(dim=-1)
        if self.top_p >= 1:
            return mass
        shares = (ordered - mass[..., None]).exp()
        # A token is kept if those before it have less than top-p: the first one always is.
        before = shares.cumsum(dim=-1) - shares
        return ordered.masked_fill(before >= self.top_p, -math.inf).logsumexp(dim=-1)


def compared_rows(lengths: Int[Tensor, " rows"]) -> Int[Tensor, " some"]:
    """Return the numbers of the rollouts to compare, given the lengths of their prompts."""
    by_length = lengths.argsort(stable=True)
    return by_length[evenly_spaced(len(by_length), _ROLLOUTS)]


def measure_gap(
    trainer: Any,
    rows: Rows,
    sampled: PerToken,
    score: Callable[[PaddedRows], PerToken],
    truncation: Truncation | None = None,
) -> LogProbGap:
    """Compare a few rollouts, those of the shortest prompt among them.

    Args:
        trainer: a trainer of TRL's.
        rows: rollouts of the current weights.
        sampled: the sampler's log π of the tokens of their completions.
        score: computes log π as an update does.
        truncation: what `sampled` is normalised within; None: the whole vocabulary.
    """
    chosen = compared_rows(rows["prompt_mask"].sum(dim=1))
    padded = _with_padding(whole_rows(pick_rows(rows, chosen)), trainer)
    with torch.no_grad():
        log_probs = score(padded)
        if truncation is not None:
            log_p = log_policy(trainer.model, padded, trainer.temperature)
            log_probs = log_probs - truncation.log_mass(log_p)
    sampled = sampled.to(log_probs.device)[chosen.to(log_probs.device), : padded.tokens]
    return LogProbGap.between(log_probs, sampled, padded.generated)


def _with_padding(rows: PaddedRows, trainer: Any) -> PaddedRows:
    """Return rows without columns of padding alone, and with some in front of all prompts."""
    start = rows.ids.shape[1] - rows.tokens
    tokens = int(rows.generated.sum(dim=1).max())
    columns = slice(int(rows.mask.argmax(dim=1).min()), start + tokens)
    ids = rows.ids[:, columns]
    mask = rows.mask[:, columns]
    config = trainer.model.config.get_text_config()
    room = getattr(config, "max_position_embeddings", math.inf) - ids.shape[1]
    padding = int(max(0, min(_PADDING, room)))
    pad_id = trainer._tokenizer.pad_token_id
    ids = F.pad(ids, (padding, 0), value=pad_id)
    return PaddedRows(ids, F.pad(mask, (padding, 0)), tokens)
