"""Losses: clipped ratios, and their terms token by token."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from torch import Tensor

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.objectives.base import LossInputs, LossOutput, Objective

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Num


# How token losses become one number.
Aggregation = Literal["seq_mean_token_mean", "token_mean", "constant", "seq_sum_token_mean"]


@dataclass(kw_only=True)
class Tokenwise(Objective):
    """Base of the objectives that aggregate token losses, with KL penalty and entropy bonus.

        loss = agg(token losses) + β agg(KL) - c mean(H)

    with KL per token estimated by exp(d) - d - 1, d = l_ref - l (Schulman's k3). The
    aggregation, over N rollouts:

        seq_mean_token_mean    (1/N) Σᵢ (1/|oᵢ|) Σₜ      GRPO
        token_mean             Σᵢ Σₜ / Σᵢ |oᵢ|           DAPO, GPG
        constant               Σᵢ Σₜ / (N max_tokens)    Dr. GRPO, FADE
        seq_sum_token_mean     Σᵢ (1/|oᵢ|) Σₜ            DCPO

    The entropy bonus is the plain mean over tokens, for every aggregation.

    A subclass implements the token losses, which must be 0 where the advantage is 0.
    """

    aggregation: Aggregation = option(
        "seq_mean_token_mean", help="how token losses become one number"
    )
    max_tokens: int | None = option(
        None,
        ge=1,
        help="tokens per rollout that aggregation=constant divides by; null: the most that a "
        "completion of the run can have",
    )
    kl_coef: float = option(0.0, ge=0, help="weight of the KL penalty to the base model")
    entropy_coef: float = option(0.0, ge=0, help="weight of the entropy bonus")
    renew_every: int = option(
        0,
        ge=0,
        absent=0,
        help="steps after which the penalty refers to the policy, not the base; 0: never",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregation != "constant" and self.max_tokens is not None:
            raise ConfigError(
                f"max_tokens: expected null with aggregation={self.aggregation}, "
                f"got {self.max_tokens}; only aggregation=constant divides by it"
            )
        if self.renew_every and self.kl_coef == 0:
            raise ConfigError(
                f"renew_every: expected 0 with kl_coef=0, as there is no penalty, got "
                f"{self.renew_every}"
            )

    @property
    def skips_exactly(self) -> bool:
        return self.kl_coef == 0 and self.entropy_coef == 0

    def renews_reference(self, step: int) -> bool:
        # ProRL (Liu et al. 2025, arXiv:2505.24864), to which the two-stage view points.
        return self.renew_every > 0 and step % self.renew_every == 0

    @property
    def averages(self) -> bool:
        return self.aggregation != "seq_sum_token_mean"

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0

    @property
    def needs_entropy(self) -> bool:
        return self.entropy_coef > 0

    def for_completions(self, max_tokens: int) -> Self:
        if self.aggregation == "constant" and self.max_tokens is None:
            return replace(self, max_tokens=max_tokens)
        return self

    @abstractmethod
    def _token_losses(
        self, inputs: LossInputs, metrics: dict[str, Tensor]
    ) -> Float[Tensor, "*runs rollouts tokens"]:
        """Return the loss of each token; values outside the mask do not matter.

        Args:
            metrics: receives the metrics that only this objective has.
        """

    def loss(self, inputs: LossInputs) -> LossOutput:
        mask = inputs.completion_mask
        metrics: dict[str, Tensor] = {}
        loss = self._aggregate(self._token_losses(inputs, metrics), inputs)
        metrics["loss/policy"] = loss.detach()
        if self.needs_reference:
            assert inputs.reference_log_probs is not None
            # Schulman's k3 is never negative, and its mean is the KL divergence.
            d = (inputs.reference_log_probs - inputs.log_probs).where(mask, 0.0)
            kl = self._aggregate(d.exp() - d - 1, inputs)
            metrics["loss/kl"] = kl.detach()
            loss = loss + self.kl_coef * kl
        if self.needs_entropy:
            assert inputs.entropies is not None
            entropy = total(inputs.entropies.where(mask, 0.0)) / inputs.tokens
            loss = loss - self.entropy_coef * entropy
        return LossOutput(loss=loss, metrics=metrics)

    def _aggregate(
        self, values: Float[Tensor, "*runs rollouts tokens"], inputs: LossInputs
    ) -> Float[Tensor, "*runs"]:
        values = values.where(inputs.completion_mask, 0.0)
        if self.aggregation == "token_mean":
            return total(values) / inputs.tokens
        if self.aggregation == "constant":
            if self.max_tokens is None:
                raise ConfigError(
                    "max_tokens: expected >= 1 with aggregation=constant, got null; give the "
                    "length of the longest completion"
                )
            return total(values) / (inputs.rollouts * self.max_tokens)
        lengths = inputs.completion_mask.sum(dim=-1).clamp(min=1)
        summed = (values.sum(dim=-1) / lengths).sum(dim=-1)
        # Trainers average over the parts of a minibatch; `parts` turns that mean into the sum.
        return summed / inputs.rollouts if self.averages else summed * inputs.parts


def total(values: Num[Tensor, "*runs rollouts tokens"]) -> Num[Tensor, "*runs"]:
    """Sum over the rollouts and tokens of each run."""
    # One call for both axes has the same bits for any number of runs (on one thread: with more,
    # torch splits a single sum of 32,768 or more numbers among them).
    return values.sum(dim=(-2, -1))


@dataclass(kw_only=True)
class CrossEntropy(Tokenwise):
    """Cross-entropy: the token loss is -l A, without ratio and clip.

    Its gradient equals that of `clipped` as long as the weights are those that sampled. Older
    rollouts (later minibatches, further inner epochs) count as if they were new, and for A < 0
    the loss of a fixed sample has no lower bound. Aggregation, KL penalty and entropy bonus are
    those of `Tokenwise`; the default aggregation is the mean over all tokens.

    Source: AAPO (arXiv:2505.14264) Eq. 3-4, which cites GPG (Chu et al. 2025,
    arXiv:2504.02546).

    Departures: tokens are counted over the minibatch, as in the authors' code; the equations
    count them per prompt.
    """

    name: ClassVar[str] = "cross_entropy"

    aggregation: Aggregation = option("token_mean", help="how token losses become one number")

    def _token_losses(
        self, inputs: LossInputs, metrics: dict[str, Tensor]
    ) -> Float[Tensor, "*runs rollouts tokens"]:
        return -inputs.log_probs * inputs.token_advantages


# Log-ratios count as at most this. exp(89) overflows float32, and infinity times an advantage or a
# gradient of 0 is NaN; the square of exp(40), which a gradient's norm contains, is still finite.
_LARGEST_LOG_RATIO = 40.0


# The unit of the importance ratio: a token, or a whole sequence.
Ratio = Literal["token", "sequence"]


@dataclass(kw_only=True)
class Clipped(Tokenwise):
    """Clipped surrogate: the token loss is -min(w A, clip(w, 1 - ε_low, 1 + ε_high) A).

    The ratio w is exp(l - l₀) per token, or exp(mean_t(l - l₀)) per sequence (GSPO). A token
    has no gradient when A > 0 and w > 1 + ε_high, or A < 0 and w < 1 - ε_low. Where A < 0 the
    token loss is at most -`dual_clip` A. Aggregation, KL penalty and entropy bonus are those
    of `Tokenwise`.

    Advantages per token with the sequence ratio s follow GSPO-token: wₜ = sg(s) exp(lₜ - sg(lₜ)),
    with sg stopping the gradient. A token is clipped by its own advantage and by the ratio of its
    sequence, and moves its own log-probability alone. If a rollout's advantages are equal, loss
    and gradient are those of GSPO.

    Source: Schulman et al. 2017 (arXiv:1707.06347) Eq. 7; Shao et al. 2024
    (arXiv:2402.03300) Eq. 3-4; Yu et al. 2025 (arXiv:2503.14476) Eq. 8; Liu et al. 2025
    (arXiv:2503.20783); Zheng et al. 2025 (arXiv:2507.18071) Eq. 5-7, and for GSPO-token Eq.
    13-14; the dual clip is that of
    Ye et al. 2020 (arXiv:1912.09729), which verl, and so A-GRAE's scripts, take with 3.

    Departures: with the sequence ratio every token carries its sequence's loss, so that
    `seq_mean_token_mean` is GSPO's formula and the others weigh sequences by length. Log-ratios
    above 40 count as 40, without gradient, so that nothing overflows.
    """

    name: ClassVar[str] = "clipped"

    clip_low: float = option(0.2, ge=0, le=1, help="ratios below 1 - this are clipped")
    clip_high: float = option(0.2, ge=0, help="ratios above 1 + this are clipped")
    ratio: Ratio = option("token", help="importance ratio per token, or per sequence (GSPO)")
    dual_clip: float = option(
        math.inf, gt=1, absent="inf", help="largest token loss per |A| where A < 0; inf: no limit"
    )

    def _token_losses(
        self, inputs: LossInputs, metrics: dict[str, Tensor]
    ) -> Float[Tensor, "*runs rollouts tokens"]:
        mask = inputs.completion_mask
        advantages = inputs.token_advantages
        log_ratio = (inputs.log_probs - inputs.old_log_probs).where(mask, 0.0)
        if self.ratio == "sequence":
            lengths = mask.sum(dim=-1, keepdim=True).clamp(min=1)
            mean = log_ratio.sum(dim=-1, keepdim=True) / lengths
            if inputs.has_token_advantages:
                # Each token has the value of its sequence's ratio and its own gradient.
                log_ratio = mean.detach() + (log_ratio - log_ratio.detach())
            else:
                log_ratio = mean.expand_as(log_ratio)
        ratio = log_ratio.clamp(max=_LARGEST_LOG_RATIO).exp()
        free = ratio * advantages
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages
        loss, stopped = _clip(free, clipped, advantages, self.dual_clip)
        metrics["loss/clip_fraction"] = _share(stopped & mask, inputs)
        return loss


@dataclass(kw_only=True)
class AdaptiveClipped(Tokenwise):
    """Clipped surrogate whose bounds widen for tokens that were improbable when sampled.

    The token loss is -min(w A, clip(w, low, high) A) with the ratio w = exp(l - l₀) and, with
    q = exp(l₀), the roots of (w - 1) w q = -ε_low and +ε_high as bounds:

        low = ½ + ½ √max(1 - 4 ε_low/q, 0),  high = min(½ + ½ √(1 + 4 ε_high/q), cap)

    Where A < 0 the token loss is at most -`dual_clip` A. Aggregation, KL penalty and entropy
    bonus are those of `Tokenwise`; the default sums over rollouts, so that a learning rate of
    SGD is for sums.

    Source: DCPO (arXiv:2509.02333), dynamic adaptive clipping, and its authors' code.

    Departures: log-ratios above 40 count as 40, without gradient, so that nothing overflows.
    """

    name: ClassVar[str] = "adaptive_clipped"

    aggregation: Aggregation = option(
        "seq_sum_token_mean", help="how token losses become one number"
    )
    clip_low: float = option(0.16, ge=0, help="ε_low: the lower bound at q = 1 is near 1 - this")
    clip_high: float = option(0.2, ge=0, help="ε_high: the upper bound at q = 1 is near 1 + this")
    cap: float = option(10.0, ge=1, help="the largest upper bound")
    dual_clip: float = option(
        10.0, gt=1, help="largest token loss per |A| where A < 0; inf: no limit"
    )

    def _token_losses(
        self, inputs: LossInputs, metrics: dict[str, Tensor]
    ) -> Float[Tensor, "*runs rollouts tokens"]:
        mask = inputs.completion_mask
        advantages = inputs.token_advantages
        old = inputs.old_log_probs.where(mask, 0.0)
        log_ratio = (inputs.log_probs - old).where(mask, 0.0)
        ratio = log_ratio.clamp(max=_LARGEST_LOG_RATIO).exp()
        rarity = 4 * (-old).clamp(max=_LARGEST_LOG_RATIO).exp()
        low = 0.5 + 0.5 * (1 - self.clip_low * rarity).clamp(min=0).sqrt()
        high = (0.5 + 0.5 * (1 + self.clip_high * rarity).sqrt()).clamp(max=self.cap)
        free = ratio * advantages
        clipped = torch.minimum(torch.maximum(ratio, low), high) * advantages
        loss, stopped = _clip(free, clipped, advantages, self.dual_clip)
        metrics["loss/clip_fraction"] = _share(stopped & mask, inputs)
        return loss


def _share(
    tokens: Bool[Tensor, "*runs rollouts tokens"], inputs: LossInputs
) -> Float[Tensor, "*runs"]:
    """Return the share of the minibatch's tokens, in the precision of the loss."""
    # At least float32, which integers would be divided in.
    precision = torch.promote_types(inputs.log_probs.dtype, torch.float32)
    return total(tokens).to(precision) / inputs.tokens


def _clip(
    free: Tensor, clipped: Tensor, advantages: Tensor, dual_clip: float
) -> tuple[Tensor, Tensor]:
    """Return the token losses, and a flag for the tokens without gradient."""
    least = torch.minimum(free, clipped)
    if math.isinf(dual_clip):
        return -least, clipped < free
    limit = (dual_clip * advantages).where(advantages < 0, -math.inf)
    return -torch.maximum(least, limit), (clipped < free) | (least < limit)
