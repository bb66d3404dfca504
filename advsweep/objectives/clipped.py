"""The clipped surrogate of PPO, as GRPO and its kin use it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.objectives.base import LossInputs, LossOutput, Objective

if TYPE_CHECKING:
    from jaxtyping import Float


class Aggregation(Enum):
    """How token losses become one number."""

    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"
    TOKEN_MEAN = "token_mean"
    CONSTANT = "constant"


class Ratio(Enum):
    """What the importance ratio is taken over."""

    TOKEN = "token"
    SEQUENCE = "sequence"


@dataclass(kw_only=True)
class Clipped(Objective):
    """Clipped surrogate, with an optional KL penalty and entropy bonus.

        loss = agg(-min(w A, clip(w, 1 - ε_low, 1 + ε_high) A)) + β agg(KL) - c mean(H)

    with w = exp(l - l₀) per token, or w = exp(mean_t(l - l₀)) per sequence (GSPO), and KL
    per token estimated by exp(d) - d - 1, d = l_ref - l (Schulman's k3). The aggregation:

        seq_mean_token_mean    (1/N) Σ_i (1/|o_i|) Σ_t      GRPO
        token_mean             Σ_i Σ_t / Σ_i |o_i|          DAPO
        constant               Σ_i Σ_t / (N max_tokens)     Dr. GRPO

    The entropy bonus is the plain mean over tokens whatever the aggregation.

    Source: Schulman et al. 2017 (arXiv:1707.06347) Eq. 7; Shao et al. 2024
    (arXiv:2402.03300) Eq. 3-4; Yu et al. 2025 (arXiv:2503.14476) Eq. 8; Liu et al. 2025
    (arXiv:2503.20783); Zheng et al. 2025 (arXiv:2507.18071) Eq. 5-7.

    Departures: with the sequence ratio every token carries its sequence's loss, so that
    `seq_mean_token_mean` is GSPO's formula and the others weigh sequences by length.
    """

    name: ClassVar[str] = "clipped"

    clip_low: float = option(0.2, ge=0, le=1, help="ratios below 1 - this are clipped")
    clip_high: float = option(0.2, ge=0, help="ratios above 1 + this are clipped")
    aggregation: Aggregation = option(
        Aggregation.SEQ_MEAN_TOKEN_MEAN, help="how token losses become one number"
    )
    max_tokens: int | None = option(
        None, ge=1, help="tokens per rollout that aggregation=constant divides by"
    )
    ratio: Ratio = option(Ratio.TOKEN, help="importance ratio per token, or per sequence (GSPO)")
    kl_coef: float = option(0.0, ge=0, help="weight of the KL penalty to the base model")
    entropy_coef: float = option(0.0, ge=0, help="weight of the entropy bonus")

    def __post_init__(self) -> None:
        super().__post_init__()
        constant = self.aggregation is Aggregation.CONSTANT
        if constant and self.max_tokens is None:
            raise ConfigError("max_tokens: expected >= 1 with aggregation=constant, got null")
        if not constant and self.max_tokens is not None:
            raise ConfigError(
                f"max_tokens: expected null with aggregation={self.aggregation.value}, "
                f"got {self.max_tokens}; only aggregation=constant divides by it"
            )

    @property
    def skips_exactly(self) -> bool:
        return self.kl_coef == 0 and self.entropy_coef == 0

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0

    @property
    def needs_entropy(self) -> bool:
        return self.entropy_coef > 0

    def loss(self, inputs: LossInputs) -> LossOutput:
        mask = inputs.completion_mask
        advantages = inputs.advantages[:, None]
        log_ratio = (inputs.log_probs - inputs.old_log_probs).where(mask, 0.0)
        if self.ratio is Ratio.SEQUENCE:
            lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)
            log_ratio = (log_ratio.sum(dim=1, keepdim=True) / lengths).expand_as(log_ratio)
        ratio = log_ratio.exp()
        free = ratio * advantages
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages
        policy = self._aggregate(-torch.minimum(free, clipped), inputs)
        cut = (clipped < free) & mask
        metrics = {
            "loss/policy": policy.detach(),
            "loss/clip_fraction": cut.sum() / inputs.tokens,
        }
        loss = policy
        if self.needs_reference:
            assert inputs.reference_log_probs is not None
            d = (inputs.reference_log_probs - inputs.log_probs).where(mask, 0.0)
            kl = self._aggregate(d.exp() - d - 1, inputs)
            metrics["loss/kl"] = kl.detach()
            loss = loss + self.kl_coef * kl
        if self.needs_entropy:
            assert inputs.entropies is not None
            entropy = inputs.entropies.where(mask, 0.0).sum() / inputs.tokens
            loss = loss - self.entropy_coef * entropy
        return LossOutput(loss=loss, metrics=metrics)

    def _aggregate(
        self, values: Float[Tensor, "rollouts tokens"], inputs: LossInputs
    ) -> Float[Tensor, ""]:
        values = values.where(inputs.completion_mask, 0.0)
        if self.aggregation is Aggregation.TOKEN_MEAN:
            return values.sum() / inputs.tokens
        if self.aggregation is Aggregation.CONSTANT:
            assert self.max_tokens is not None
            return values.sum() / (inputs.rollouts * self.max_tokens)
        lengths = inputs.completion_mask.sum(dim=1).clamp(min=1)
        return (values.sum(dim=1) / lengths).sum() / inputs.rollouts
