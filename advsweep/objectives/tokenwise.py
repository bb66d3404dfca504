"""What objectives with a loss per token share: aggregation, masks, KL penalty, entropy bonus."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self, get_args

import torch

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.names import POLICY_LOSS
from advsweep.objectives.base import Choice, LossInputs, LossOutput
from advsweep.objectives.corrections import Corrected

if TYPE_CHECKING:
    from jaxtyping import Float, Num
    from torch import Tensor

    from advsweep.objectives.base import FlagPerToken, Metrics, PerRun, PerToken, PerTokenOrRollout


# How token losses become one number.
Aggregation = Literal[
    "seq_mean_token_mean",
    "token_mean",
    "constant",
    "seq_sum_token_mean",
    "seq_mean_token_sum",
    "token_sum",
]
# How a token's KL divergence to the reference is estimated, and where its gradient comes from.
KlEstimator = Literal["k1", "k2", "k3", "abs", "low_var_kl"]
KlGradient = Literal["estimate", "straight_through", "importance"]


@dataclass(kw_only=True)
class Tokenwise(Corrected):
    """Base of the objectives that aggregate token losses, with KL penalty and entropy bonus.

        loss = agg(token losses) + β agg(KL) - c mean(H)

    The aggregation, over N rollouts:

        seq_mean_token_mean    (1/N) Σᵢ (1/|oᵢ|) Σₜ      GRPO
        token_mean             Σᵢ Σₜ / Σᵢ |oᵢ|           DAPO, GPG
        constant               Σᵢ Σₜ / (N max_tokens)    Dr. GRPO, FADE
        seq_sum_token_mean     Σᵢ (1/|oᵢ|) Σₜ            DCPO
        seq_mean_token_sum     (1/N) Σᵢ Σₜ               LUSPO, TOPR
        token_sum              Σᵢ Σₜ

    With d = l_ref - l, KL per token is estimated by

        k1            -d
        k2            d²/2
        k3            exp(d) - d - 1
        abs           |d|
        low_var_kl    k3 of d within ±20, at most 10: verl's k3

    `kl_gradient` says what is differentiated: the `estimate`; k2 whatever the estimate
    (`straight_through`), whose mean gradient on samples of the policy is that of the divergence,
    as those of k1 and k3 are not; or the estimate times the objective's ratio (`importance`),
    whose gradient is unbiased for samples of the old policy.

    Two masks take tokens out of the policy's part of the loss, and not out of the counts by
    which it is divided. `top_entropy_quantile` keeps the tokens whose entropy is at or above the
    (1 - ρ)-quantile of the minibatch, and the entropy bonus is their mean, too.
    `off_policy_mask_threshold` drops tokens with A < 0 in rollouts with mean_t(l₀ - l) above it.

    The entropy bonus is the plain mean over tokens, for every aggregation.

    A subclass implements the token losses, which must be 0 where the advantage is 0 unless it
    `reads_all`.

    Source: Schulman, "Approximating KL divergence" (2020), for k1 to k3; `kl_penalty` in verl's
    core_algos.py for `straight_through`; DeepSeek-V3.2 (arXiv:2512.02556) for `importance` and
    Eq. 9 for the off-policy mask; Wang et al. 2025 (arXiv:2506.01939) for the entropy mask.

    Departures: log-ratios above 40 count as 40, without gradient, so that nothing overflows.

    Attributes:
        aggregations: those for which the loss is defined.
        reads_all: whether rollouts with advantage 0 enter the loss.
        chooses_tokens: whether token losses depend on other rollouts, by `_choose_tokens`.
    """

    aggregations: ClassVar[tuple[str, ...]] = get_args(Aggregation)
    reads_all: ClassVar[bool] = False
    chooses_tokens: ClassVar[bool] = False

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
    kl_estimator: KlEstimator = option("k3", absent="k3", help="estimate of the KL of a token")
    kl_gradient: KlGradient = option(
        "estimate",
        absent="estimate",
        help="gradient of the KL penalty: the estimate's, that of k2, or the estimate's with the "
        "importance ratio",
    )
    entropy_coef: float = option(0.0, ge=0, help="weight of the entropy bonus")
    renew_every: int = option(
        0,
        ge=0,
        absent=0,
        help="steps after which the penalty refers to the policy, not the base; 0: never",
    )
    top_entropy_quantile: float = option(
        1.0, ge=0, le=1, absent=1.0, help="share of tokens, by entropy, that train; 1: all"
    )
    off_policy_mask_threshold: float = option(
        math.inf,
        gt=0,
        absent="inf",
        help="rollouts with a negative advantage do not train if their log π has fallen by more "
        "than this per token; inf: all train",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregation not in self.aggregations:
            raise ConfigError(
                f"aggregation: expected {' or '.join(self.aggregations)}, as the loss of "
                f"{self.name} is one number per rollout, got {self.aggregation}"
            )
        if self.aggregation != "constant" and self.max_tokens is not None:
            raise ConfigError(
                f"max_tokens: expected null with aggregation={self.aggregation}, "
                f"got {self.max_tokens}; only aggregation=constant divides by it"
            )
        unused = {"renew_every": 0, "kl_estimator": "k3", "kl_gradient": "estimate"}
        for key, default in unused.items():
            if self.kl_coef == 0 and getattr(self, key) != default:
                raise ConfigError(
                    f"{key}: expected {default} with kl_coef=0, as there is no penalty, got "
                    f"{getattr(self, key)}"
                )

    @property
    def skips_exactly(self) -> bool:
        # The quantile is over the tokens of all rollouts.
        return not self.reads_all and self.kl_coef == 0 and not self.needs_entropy

    @property
    def moves_alone(self) -> bool:
        # Penalties for leaving a policy have no gradient at this policy, but for k1's.
        is_k1 = self.kl_estimator == "k1" and self.kl_gradient != "straight_through"
        return self.entropy_coef > 0 or (self.kl_coef > 0 and is_k1)

    def renews_reference(self, step: int) -> bool:
        # ProRL (Liu et al. 2025, arXiv:2505.24864), to which the two-stage view points.
        return self.renew_every > 0 and step % self.renew_every == 0

    @property
    def averages(self) -> bool:
        return self.aggregation not in ("seq_sum_token_mean", "token_sum")

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0

    @property
    def needs_entropy(self) -> bool:
        return self.entropy_coef > 0 or self.top_entropy_quantile < 1

    @property
    def chooses(self) -> bool:
        return self.chooses_tokens or self.top_entropy_quantile < 1

    def choose(self, inputs: LossInputs) -> Choice:
        if not self.chooses:
            return Choice()
        with torch.no_grad():
            return self._choose(inputs)

    def _choose(self, inputs: LossInputs) -> Choice:
        inputs, _ = self._correct(inputs, {})
        choice = self._choose_tokens(inputs)
        if self.top_entropy_quantile == 1:
            return choice
        mask = inputs.completion_mask
        uncertain = mask
        # All rollouts of a minibatch may have been left out.
        if mask.numel():
            assert inputs.entropies is not None
            entropies = inputs.entropies.where(mask, math.nan)
            least = quantile(entropies.flatten(-2), 1 - self.top_entropy_quantile)
            # The first tokens of a group have one entropy, but for rounding.
            least = least - _ROUNDING * least.abs().clamp(min=1)
            uncertain = entropies >= least[..., None, None]
        # Each part of the minibatch counts an equal share of them.
        number = total(uncertain).clamp(min=1).to(inputs.log_probs.dtype) / inputs.parts
        return Choice(
            tokens={**choice.tokens, "uncertain": uncertain},
            numbers={**choice.numbers, "uncertain": number},
        )

    def for_completions(self, max_tokens: int) -> Self:
        if self.aggregation == "constant" and self.max_tokens is None:
            return replace(self, max_tokens=max_tokens)
        return self

    @abstractmethod
    def _token_losses(self, inputs: LossInputs, metrics: Metrics) -> PerTokenOrRollout:
        """Return the loss of each token; values outside the mask do not matter.

        Args:
            inputs: with a choice.
            metrics: receives the metrics that only this objective has.
        """

    def _choose_tokens(self, inputs: LossInputs) -> Choice:
        """Return what the token losses take from the whole minibatch, if `chooses_tokens`."""
        return Choice()

    def _weighted_losses(
        self, inputs: LossInputs, weights: PerTokenOrRollout | None, metrics: Metrics
    ) -> PerTokenOrRollout:
        """Return the token losses with the weights of the correction."""
        losses = self._token_losses(inputs, metrics)
        return losses if weights is None else losses * weights

    def _log_ratios(self, inputs: LossInputs) -> PerToken:
        """Return the logarithms of the importance ratios, 0 outside the mask."""
        return (inputs.log_probs - inputs.old_log_probs).where(inputs.completion_mask, 0.0)

    def loss(self, inputs: LossInputs) -> LossOutput:
        metrics: Metrics = {}
        if inputs.choice is None:
            inputs = replace(inputs, choice=self.choose(replace(inputs, parts=1)))
        choice = inputs.choice
        assert choice is not None
        inputs, weights = self._correct(inputs, metrics)
        mask = inputs.completion_mask
        keep = choice.tokens.get("uncertain", mask)
        if math.isfinite(self.off_policy_mask_threshold):
            # To the sampler, where it is known apart, as in TRL.
            sampled = inputs.sampler_log_probs
            sampled = inputs.old_log_probs if sampled is None else sampled
            fall = (sampled - inputs.log_probs.detach()).where(mask, 0.0)
            mean = fall.sum(dim=-1, keepdim=True) / lengths(inputs)
            is_near = mean <= self.off_policy_mask_threshold
            keep = keep & (is_near | (inputs.token_advantages >= 0))
        loss = self._aggregate(self._weighted_losses(inputs, weights, metrics), keep, inputs)
        metrics[POLICY_LOSS] = loss.detach()
        if self.needs_reference:
            kl = self._aggregate(self._kl(inputs), mask, inputs)
            metrics["loss/kl"] = kl.detach()
            loss = loss + self.kl_coef * kl
        if self.entropy_coef > 0:
            assert inputs.entropies is not None
            averaged = choice.tokens.get("uncertain", mask)
            tokens = choice.numbers.get("uncertain", inputs.tokens)
            entropy = total(inputs.entropies.where(averaged, 0.0)) / tokens
            loss = loss - self.entropy_coef * entropy
        return LossOutput(loss=loss, metrics=metrics)

    def _kl(self, inputs: LossInputs) -> PerToken:
        assert inputs.reference_log_probs is not None
        d = (inputs.reference_log_probs - inputs.log_probs).where(inputs.completion_mask, 0.0)
        if self.kl_estimator == "k3":
            # Never negative, and its mean is the KL divergence.
            d = d.clamp(max=LARGEST_LOG_RATIO)
            kl = d.exp() - d - 1
        elif self.kl_estimator == "low_var_kl":
            near = d.clamp(-20, 20)
            kl = (near.exp() - near - 1).clamp(max=10)
        elif self.kl_estimator == "k2":
            kl = 0.5 * d.square()
        else:
            kl = d.abs() if self.kl_estimator == "abs" else -d
        if self.kl_gradient == "straight_through":
            k2 = 0.5 * d.square()
            return k2 - k2.detach() + kl.detach()
        return kl * exp(self._log_ratios(inputs)) if self.kl_gradient == "importance" else kl

    def _aggregate(
        self, values: PerTokenOrRollout, keep: FlagPerToken, inputs: LossInputs
    ) -> PerRun:
        values = torch.where(keep, values, 0.0)
        if self.aggregation == "token_mean":
            return total(values) / inputs.tokens
        if self.aggregation == "constant":
            if self.max_tokens is None:
                raise ConfigError(
                    "max_tokens: expected >= 1 with aggregation=constant, got null; give the "
                    "length of the longest completion"
                )
            return total(values) / (inputs.rollouts * self.max_tokens)
        # Trainers average over the parts of a minibatch; `parts` turns that mean into the sum.
        if self.aggregation == "token_sum":
            return total(values) * inputs.parts
        summed = values.sum(dim=-1)
        if self.aggregation != "seq_mean_token_sum":
            summed = summed / lengths(inputs)[..., 0]
        summed = summed.sum(dim=-1)
        return summed / inputs.rollouts if self.averages else summed * inputs.parts


# Entropies that differ by less, in nats or relatively, are equal in another forward pass.
_ROUNDING = 1e-6

# Log-ratios count as at most this. exp(89) overflows float32, and infinity times an advantage or a
# gradient of 0 is NaN; the square of exp(40), which a gradient's norm contains, is still finite.
LARGEST_LOG_RATIO = 40.0


def exp(log_ratios: Tensor) -> Tensor:
    """Return the ratios; those above e⁴⁰ count as e⁴⁰, without gradient."""
    return log_ratios.clamp(max=LARGEST_LOG_RATIO).exp()


# The unit of the importance ratio: a token, or a whole sequence.
Ratio = Literal["token", "sequence"]


@dataclass(kw_only=True)
class WithRatio(Tokenwise):
    """Base of the objectives whose importance ratio w is a token's or a sequence's.

    w is exp(l - l₀) per token, or exp(mean_t(l - l₀)) per sequence (GSPO). Advantages per token
    with the sequence ratio s follow GSPO-token: wₜ = sg(s) exp(lₜ - sg(lₜ)), with sg stopping the
    gradient.
    """

    ratio: Ratio = option("token", help="importance ratio per token, or per sequence (GSPO)")

    def _log_ratios(self, inputs: LossInputs) -> PerToken:
        log_ratios = super()._log_ratios(inputs)
        if self.ratio == "token":
            return log_ratios
        mean = log_ratios.sum(dim=-1, keepdim=True) / lengths(inputs)
        if inputs.has_token_advantages:
            # Each token has the value of its sequence's ratio and its own gradient.
            return mean.detach() + (log_ratios - log_ratios.detach())
        return mean.expand_as(log_ratios)


def lengths(inputs: LossInputs) -> Num[Tensor, "*runs rollouts 1"]:
    """Return the number of tokens of each rollout, at least 1."""
    return inputs.completion_mask.sum(dim=-1, keepdim=True).clamp(min=1)


def total(values: Num[Tensor, "*runs rollouts tokens"]) -> Num[Tensor, "*runs"]:
    """Sum over the rollouts and tokens of each run."""
    # One call for both axes has the same bits for any number of runs (on one thread: with more,
    # torch splits a single sum of 32,768 or more numbers among them).
    return values.sum(dim=(-2, -1))


def quantile(values: Float[Tensor, "*runs tokens"], share: float) -> PerRun:
    """Return a quantile of each run's numbers but NaN, interpolated linearly; NaN for none.

    The bits are those of `torch.nanquantile`, which refuses more than 2²⁴ numbers.
    """
    ordered = values.sort(dim=-1).values  # NaN last
    last = (~ordered.isnan()).sum(dim=-1, keepdim=True) - 1
    place = (last.to(values.dtype) * share).clamp(min=0)
    below = ordered.gather(-1, place.long())
    above = ordered.gather(-1, place.ceil().long())
    return below.lerp(above, place - place.long())[..., 0]


def share(tokens: FlagPerToken, inputs: LossInputs) -> PerRun:
    """Return the share of the minibatch's tokens, in the precision of the loss."""
    # At least float32, which integers would be divided in.
    precision = torch.promote_types(inputs.log_probs.dtype, torch.float32)
    return total(tokens & inputs.completion_mask).to(precision) / inputs.tokens
