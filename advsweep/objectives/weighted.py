"""Losses that weigh log-probabilities: cross-entropy with a weight without gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from advsweep.components import option
from advsweep.objectives.base import LossInputs
from advsweep.objectives.tokenwise import Aggregation, Tokenwise, WithRatio, exp, lengths, share

if TYPE_CHECKING:
    from advsweep.objectives.base import Metrics, PerToken, PerTokenOrRollout


@dataclass(kw_only=True)
class CrossEntropy(Tokenwise):
    """Cross-entropy weighed by advantages (GPG, AAPO), without ratio and clip.

    Its gradient equals that of `clipped` as long as the weights are those that sampled. Older
    rollouts (later minibatches, further inner epochs) count as if they were new, and for A < 0
    the loss of a fixed sample has no lower bound. Aggregation, KL penalty and entropy bonus are
    those of `Tokenwise`; the default aggregation is the mean over all tokens.
    """

    name: ClassVar[str] = "cross_entropy"
    formula: ClassVar[str] = "loss = -A l"
    when_to_use: ClassVar[str] = (
        "with one update per batch and fresh rollouts, where no ratio leaves 1."
    )
    source: ClassVar[str] = (
        "AAPO (arXiv:2505.14264) Eq. 3-4, which cites GPG (Chu et al. 2025, arXiv:2504.02546)."
    )
    departures: ClassVar[str] = (
        "tokens are counted over the minibatch, as in the authors' code; the equations count them "
        "per prompt."
    )
    has_ratio: ClassVar[bool] = False

    aggregation: Aggregation = option("token_mean", help="how token losses become one number")

    def _token_losses(self, inputs: LossInputs, metrics: Metrics) -> PerToken:
        return -inputs.log_probs * inputs.token_advantages


@dataclass(kw_only=True)
class Cispo(WithRatio):
    """CISPO: cross-entropy weighed by the clipped ratio, so that every token keeps a gradient.

    Every token keeps its gradient, where the clipped surrogate drops those beyond its bounds. w is
    the importance ratio of `WithRatio`. Aggregation, KL penalty and entropy bonus are those of
    `Tokenwise`. `loss/clip_fraction` is the share of tokens with A ≠ 0 whose weight is clipped.
    """

    name: ClassVar[str] = "cispo"
    formula: ClassVar[str] = "loss = -sg(clip(w, 1 - ε_low, 1 + ε_high)) A l"
    when_to_use: ClassVar[str] = (
        "for several updates per batch, if rare tokens that the clip would stop matter. Old "
        "rollouts want a smaller learning rate than with the clip."
    )
    source: ClassVar[str] = (
        "MiniMax-M1 (arXiv:2506.13585), Eq. 4-5, without a lower bound, as there. The upper bound "
        "of 5 is that of ScaleRL (arXiv:2510.13786), which TRL's documentation recommends; verl's "
        "bounds are 0.2."
    )

    aggregation: Aggregation = option("token_mean", help="how token losses become one number")
    clip_low: float = option(1.0, ge=0, le=1, help="weights below 1 - this are clipped; 1: none")
    clip_high: float = option(4.0, ge=0, help="weights above 1 + this are clipped")

    def _token_losses(self, inputs: LossInputs, metrics: Metrics) -> PerToken:
        advantages = inputs.token_advantages
        ratio = exp(self._log_ratios(inputs).detach())
        weights = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        metrics["loss/clip_fraction"] = share((weights != ratio) & (advantages != 0), inputs)
        return -weights * advantages * inputs.log_probs


# How DPPO measures how far a token's probability has moved.
Divergence = Literal["tv", "kl"]


@dataclass(kw_only=True)
class Dppo(Tokenwise):
    """DPPO: cross-entropy weighed by the ratio, within a trust region of probabilities.

    w = exp(l - l₀). With the probabilities p = exp(l) and q = exp(l₀) of the token, one with A > 0
    is beyond the region if p > q and its divergence is above δ_high, one with A < 0 if p < q and
    it is above δ_low. The divergence is that of the choice between the token and all others:

        tv    |p - q|
        kl    q log(q/p) + (1 - q) log((1 - q + 1e-8) / (1 - p + 1e-8))

    `loss/clip_fraction` is the share of tokens beyond it.
    """

    name: ClassVar[str] = "dppo"
    formula: ClassVar[str] = (
        "loss = -sg(min(w, cap)) A l    within the region\nloss = 0                       beyond it"
    )
    when_to_use: ClassVar[str] = (
        "for old rollouts, or a sampler with other kernels. The region is one of probabilities, "
        "so that rare tokens may change by large ratios and common ones by small ones."
    )
    source: ClassVar[str] = (
        "DPPO (arXiv:2602.04879), its binary approximations, and verl's `dppo_tv` and `dppo_kl`, "
        "whose actor sets `cap` to 3 unless `clip_ratio_c` is given."
    )

    aggregation: Aggregation = option("token_mean", help="how token losses become one number")
    divergence: Divergence = option("tv", help="total variation, or KL divergence")
    clip_low: float = option(0.2, ge=0, help="δ_low: largest divergence where A < 0")
    clip_high: float = option(0.2, ge=0, help="δ_high: largest divergence where A > 0")
    cap: float = option(20.0, gt=0, help="largest importance weight")

    def _token_losses(self, inputs: LossInputs, metrics: Metrics) -> PerToken:
        mask = inputs.completion_mask
        advantages = inputs.token_advantages
        new = inputs.log_probs.detach().where(mask, 0.0)
        old = inputs.old_log_probs.where(mask, 0.0)
        p = new.exp()
        q = old.exp()
        if self.divergence == "tv":
            up = p - q > self.clip_high
            down = p - q < -self.clip_low
        else:
            kl = q * (old - new) + (1 - q) * torch.log((1 - q + 1e-8) / (1 - p + 1e-8))
            up = (kl > self.clip_high) & (p > q)
            down = (kl > self.clip_low) & (p < q)
        beyond = torch.where(advantages > 0, up, down) & (advantages != 0)
        metrics["loss/clip_fraction"] = share(beyond, inputs)
        weights = exp(new - old).clamp(max=self.cap)
        return (-weights * advantages * inputs.log_probs).where(~beyond, 0.0)


@dataclass(kw_only=True)
class Vespo(Tokenwise):
    """VESPO: cross-entropy weighed by a smooth function of the whole rollout's ratio.

    W = exp(Σₜ (l - l₀)) is the ratio of the whole rollout; k and λ have a value for A >= 0 and
    one for A < 0. Log-ratios of tokens count within ±20, their sum within log 1e-8 and 20.
    Aggregation, KL penalty and entropy bonus are those of `Tokenwise`.
    """

    name: ClassVar[str] = "vespo"
    formula: ClassVar[str] = "loss = -sg(φ(W)) A l\nφ(W) = e^λ W^k e^(-λ W)"
    when_to_use: ClassVar[str] = (
        "for old rollouts, to weigh each by the ratio of the whole rollout: φ is 1 at W = 1 and "
        "fades for very small and very large W, without an edge."
    )
    source: ClassVar[str] = 'VESPO (arXiv:2602.10693) and TRL\'s `loss_type="vespo"`.'

    aggregation: Aggregation = option("token_mean", help="how token losses become one number")
    k_pos: float = option(2.0, ge=0, help="k where A >= 0: larger values weigh W < 1 less")
    lambda_pos: float = option(3.0, ge=1e-4, help="λ where A >= 0: larger values weigh W > 1 less")
    k_neg: float = option(3.0, ge=0, help="k where A < 0")
    lambda_neg: float = option(2.0, ge=1e-4, help="λ where A < 0")

    def _token_losses(self, inputs: LossInputs, metrics: Metrics) -> PerToken:
        advantages = inputs.token_advantages
        summed = self._log_ratios(inputs).detach().clamp(-20, 20).sum(dim=-1, keepdim=True)
        log_w = summed.clamp(math.log(1e-8), 20)
        is_neg = advantages < 0
        k = torch.full_like(advantages, self.k_neg).where(is_neg, self.k_pos)
        rate = torch.full_like(advantages, self.lambda_neg).where(is_neg, self.lambda_pos)
        weights = (rate + k * log_w - rate * log_w.exp()).exp()
        return -weights * advantages * inputs.log_probs

    def _weighted_losses(
        self, inputs: LossInputs, weights: PerTokenOrRollout | None, metrics: Metrics
    ) -> PerTokenOrRollout:
        if weights is not None:
            # As in TRL, they are factors of W.
            logs = weights.log().clamp(math.log(1e-8), 20)
            if logs.shape[-1] < inputs.log_probs.shape[-1]:
                logs = logs / lengths(inputs)
            inputs = replace(inputs, old_log_probs=inputs.old_log_probs - logs)
        return self._token_losses(inputs, metrics)


@dataclass(kw_only=True)
class Topr(Tokenwise):
    """TOPR: plain cross-entropy for A > 0, weighed by the rollout's ratio for A < 0.

    W = exp(Σₜ (l - l₀)) is the ratio of the whole rollout. `loss/clip_fraction` is the share of
    tokens with A < 0 and W > 1.
    """

    name: ClassVar[str] = "topr"
    formula: ClassVar[str] = (
        "loss = -A l                  if A > 0\nloss = -sg(min(1, W)) A l    if A < 0"
    )
    when_to_use: ClassVar[str] = (
        "for rollouts of other models or much older weights. Successes count in full, and "
        "failures that the model has already left count less."
    )
    source: ClassVar[str] = (
        "TOPR (arXiv:2503.14286), which takes rewards, with or without a baseline, as A."
    )
    departures: ClassVar[str] = "Trinity-RFT's `topr` has the ratio of each token in place of W."

    aggregation: Aggregation = option(
        "seq_mean_token_sum", help="how token losses become one number"
    )

    def _token_losses(self, inputs: LossInputs, metrics: Metrics) -> PerToken:
        advantages = inputs.token_advantages
        log_w = self._log_ratios(inputs).detach().sum(dim=-1, keepdim=True)
        is_neg = advantages < 0
        metrics["loss/clip_fraction"] = share(is_neg & (log_w > 0), inputs)
        weights = log_w.clamp(max=0).exp().where(is_neg, 1.0)
        return -weights * advantages * inputs.log_probs


@dataclass(kw_only=True)
class Dro(Tokenwise):
    """DRO: cross-entropy with a quadratic penalty in place of a ratio."""

    name: ClassVar[str] = "dro"
    formula: ClassVar[str] = "loss = -A l + (β/2) (l - l₀)²"
    when_to_use: ClassVar[str] = (
        "for fixed data sets of rollouts, which are sampled once and used for long."
    )
    source: ClassVar[str] = "Richemond et al. 2024 (arXiv:2405.19107) and verl's `dro`."
    departures: ClassVar[str] = "β has a default; verl asks for it."
    reads_all: ClassVar[bool] = True

    aggregation: Aggregation = option("token_mean", help="how token losses become one number")
    beta: float = option(1.0, gt=0, help="β: weight of the squared log-ratio")

    def _token_losses(self, inputs: LossInputs, metrics: Metrics) -> PerToken:
        penalty = 0.5 * self.beta * self._log_ratios(inputs).square()
        return penalty - inputs.log_probs * inputs.token_advantages
