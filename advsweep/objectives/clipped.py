"""Losses with clipped importance ratios."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from advsweep.components import option
from advsweep.objectives.base import LossInputs
from advsweep.objectives.tokenwise import Aggregation, Tokenwise, WithRatio, exp, lengths, share

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from advsweep.objectives.base import FlagPerToken, Metrics, PerToken, PerTokenOrRollout


@dataclass(kw_only=True)
class Clipped(WithRatio):
    """Clipped surrogate of PPO, GRPO and GSPO: a token stops where its ratio leaves the bounds.

    The ratio w is exp(l - l₀) per token, or exp(mean_t(l - l₀)) per sequence (GSPO). A token
    has no gradient when A > 0 and w > 1 + ε_high, or A < 0 and w < 1 - ε_low. Where A < 0 the
    token loss is at most -`dual_clip` A. Aggregation, KL penalty and entropy bonus are those
    of `Tokenwise`.

    Advantages per token with the sequence ratio s follow GSPO-token: wₜ = sg(s) exp(lₜ - sg(lₜ)),
    with sg stopping the gradient. A token is clipped by its own advantage and by the ratio of its
    sequence, and moves its own log-probability alone. If a rollout's advantages are equal, loss
    and gradient are those of GSPO.
    """

    name: ClassVar[str] = "clipped"
    formula: ClassVar[str] = "loss = -min(w A, clip(w, 1 - ε_low, 1 + ε_high) A)"
    when_to_use: ClassVar[str] = (
        "first; most results are stated for it. GSPO, the preset with the ratio of the sequence, "
        "is meant for long answers and mixtures of experts."
    )
    source: ClassVar[str] = (
        "Schulman et al. 2017 (arXiv:1707.06347) Eq. 7; Shao et al. 2024 (arXiv:2402.03300) Eq. "
        "3-4; Yu et al. 2025 (arXiv:2503.14476) Eq. 8; Liu et al. 2025 (arXiv:2503.20783); Zheng "
        "et al. 2025 (arXiv:2507.18071) Eq. 5-7, and for GSPO-token Eq. 13-14; the dual clip is "
        "that of Ye et al. 2020 (arXiv:1912.09729), which verl, and so A-GRAE's scripts, take "
        "with 3."
    )
    departures: ClassVar[str] = (
        "with the sequence ratio every token carries its sequence's loss, so that "
        "`seq_mean_token_mean` is GSPO's formula and the others weigh sequences by length. "
        "Log-ratios above 40 count as 40, without gradient, so that nothing overflows."
    )

    clip_low: float = option(0.2, ge=0, le=1, help="ratios below 1 - this are clipped")
    clip_high: float = option(0.2, ge=0, help="ratios above 1 + this are clipped")
    dual_clip: float = option(
        math.inf, gt=1, absent="inf", help="largest token loss per |A| where A < 0; inf: no limit"
    )

    def _surrogate(self, inputs: LossInputs, metrics: Metrics) -> tuple[PerToken, FlagPerToken]:
        """Return the token losses, and a flag for the tokens without gradient."""
        advantages = inputs.token_advantages
        ratio = exp(self._log_ratios(inputs))
        free = ratio * advantages
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages
        loss, stopped = _clip(free, clipped, advantages, self.dual_clip)
        metrics["loss/clip_fraction"] = share(stopped, inputs)
        return loss, stopped

    def _token_losses(self, inputs: LossInputs, metrics: Metrics) -> PerToken:
        return self._surrogate(inputs, metrics)[0]


@dataclass(kw_only=True)
class AdaptiveClipped(Tokenwise):
    """Clipped surrogate whose bounds widen for tokens that were improbable when sampled.

    w = exp(l - l₀), q = exp(l₀); the bounds are roots of (w - 1) w q = -ε_low and +ε_high.
    Where A < 0 the token loss is at most -`dual_clip` A. Aggregation, KL penalty and entropy
    bonus are those of `Tokenwise`; the default sums over rollouts, so that a learning rate of
    SGD is for sums.
    """

    name: ClassVar[str] = "adaptive_clipped"
    formula: ClassVar[str] = (
        "loss = -min(w A, clip(w, low, high) A)\n"
        "low = ½ + ½ √max(1 - 4 ε_low/q, 0)\n"
        "high = min(½ + ½ √(1 + 4 ε_high/q), cap)"
    )
    when_to_use: ClassVar[str] = (
        "if the fixed clip stops tokens early that the sampler found improbable. With one update "
        "per batch and fresh rollouts no bound is reached."
    )
    source: ClassVar[str] = (
        "DCPO (arXiv:2509.02333), dynamic adaptive clipping, and its authors' code."
    )
    departures: ClassVar[str] = (
        "log-ratios above 40 count as 40, without gradient, so that nothing overflows."
    )

    aggregation: Aggregation = option(
        "seq_sum_token_mean", help="how token losses become one number"
    )
    clip_low: float = option(0.16, ge=0, help="ε_low: the lower bound at q = 1 is near 1 - this")
    clip_high: float = option(0.2, ge=0, help="ε_high: the upper bound at q = 1 is near 1 + this")
    cap: float = option(10.0, ge=1, help="the largest upper bound")
    dual_clip: float = option(
        10.0, gt=1, help="largest token loss per |A| where A < 0; inf: no limit"
    )

    def _token_losses(self, inputs: LossInputs, metrics: Metrics) -> PerToken:
        advantages = inputs.token_advantages
        ratio = exp(self._log_ratios(inputs))
        rarity = 4 * exp(-inputs.old_log_probs.where(inputs.completion_mask, 0.0))
        low = 0.5 + 0.5 * (1 - self.clip_low * rarity).clamp(min=0).sqrt()
        high = (0.5 + 0.5 * (1 + self.clip_high * rarity).sqrt()).clamp(max=self.cap)
        free = ratio * advantages
        clipped = torch.minimum(torch.maximum(ratio, low), high) * advantages
        loss, stopped = _clip(free, clipped, advantages, self.dual_clip)
        metrics["loss/clip_fraction"] = share(stopped, inputs)
        return loss


@dataclass(kw_only=True)
class Sapo(WithRatio):
    """SAPO: a soft gate in place of the clip.

    w is the importance ratio of `WithRatio`; τ is `tau_pos` where A > 0 and `tau_neg` elsewhere.
    The gradient is that of the ratio times 4 σ(1 - σ), which is 1 at w = 1 and falls on both
    sides. Aggregation, KL penalty and entropy bonus are those of `Tokenwise`.
    """

    name: ClassVar[str] = "sapo"
    formula: ClassVar[str] = "loss = -(4/τ) σ(τ (w - 1)) A"
    when_to_use: ClassVar[str] = (
        "if a token should fade out rather than stop. The gate closes slowly: it is half closed "
        "at w = 2.8, where the clip ends at 1.2, so that old rollouts want a smaller learning "
        "rate."
    )
    source: ClassVar[str] = (
        "SAPO (arXiv:2511.20347); TRL's `loss_type=\"sapo\"` and verl's `sapo`, which have the "
        "same formula and defaults."
    )
    departures: ClassVar[str] = "log-ratios above 40 count as 40, without gradient."

    tau_pos: float = option(
        1.0, gt=0, le=40, help="τ where A > 0: larger values close the gate sooner"
    )
    tau_neg: float = option(1.05, gt=0, le=40, help="τ elsewhere")

    def _token_losses(self, inputs: LossInputs, metrics: Metrics) -> PerToken:
        advantages = inputs.token_advantages
        tau = torch.full_like(advantages, self.tau_pos).where(advantages > 0, self.tau_neg)
        ratio = exp(self._log_ratios(inputs))
        # The gradient of torch.sigmoid depends on a number's place in memory.
        return -4 / (tau * (1 + (tau * (1 - ratio)).exp())) * advantages


@dataclass(kw_only=True)
class Gmpo(Tokenwise):
    """GMPO: the geometric mean of a rollout's clipped ratios.

    d = l - l₀ is the log-ratio. With
    advantages per token A outside the exponential is their mean, and each token is clipped by its
    own. KL penalty and entropy bonus are those of `Tokenwise`. `loss/clip_fraction` counts every
    token with d outside the bounds.
    """

    name: ClassVar[str] = "gmpo"
    formula: ClassVar[str] = (
        "loss of a rollout = -exp(mean_t x) A\n"
        "x = sgn(A) min(sgn(A) d, sgn(A) clip(d, -ε_low, ε_high))"
    )
    when_to_use: ClassVar[str] = (
        "if single tokens with large ratios decide about whole rollouts; a geometric mean follows "
        "them less than the mean of `clipped` does."
    )
    source: ClassVar[str] = (
        "GMPO (arXiv:2507.20673) and verl's `geo_mean`, whose bounds are by default 0.2."
    )
    departures: ClassVar[str] = "a mean of log-ratios above 40 counts as 40, without gradient."
    aggregations: ClassVar[tuple[str, ...]] = ("seq_mean_token_mean", "seq_sum_token_mean")

    clip_low: float = option(0.4, ge=0, help="log-ratios below minus this are clipped")
    clip_high: float = option(0.4, ge=0, help="log-ratios above this are clipped")

    def _token_losses(
        self, inputs: LossInputs, metrics: Metrics
    ) -> Float[Tensor, "*runs rollouts 1"]:
        advantages = inputs.token_advantages
        sign = advantages.sign()
        log_ratios = self._log_ratios(inputs)
        clipped = log_ratios.clamp(-self.clip_low, self.clip_high)
        taken = sign * torch.minimum(sign * log_ratios, sign * clipped)
        metrics["loss/clip_fraction"] = share((clipped != log_ratios) & (sign != 0), inputs)
        if inputs.has_token_advantages:
            advantages = advantages.sum(dim=-1, keepdim=True) / lengths(inputs)
        return -exp(taken.sum(dim=-1, keepdim=True) / lengths(inputs)) * advantages

    def _weighted_losses(
        self, inputs: LossInputs, weights: PerTokenOrRollout | None, metrics: Metrics
    ) -> PerTokenOrRollout:
        if weights is not None:
            # As in verl, a rollout has the geometric mean of its tokens' weights.
            logs = (weights + 1e-10).log().where(inputs.completion_mask, 0.0)
            weights = (logs.sum(dim=-1, keepdim=True) / lengths(inputs)).exp()
        return super()._weighted_losses(inputs, weights, metrics)


def _clip(
    free: Tensor, clipped: Tensor, advantages: Tensor, dual_clip: float
) -> tuple[Tensor, Tensor]:
    """Return the token losses, and a flag for the tokens without gradient."""
    least = torch.minimum(free, clipped)
    if math.isinf(dual_clip):
        return -least, clipped < free
    limit = (dual_clip * advantages).where(advantages < 0, -math.inf)
    return -torch.maximum(least, limit), (clipped < free) | (least < limit)
