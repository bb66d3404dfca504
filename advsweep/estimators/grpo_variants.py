"""GRPO with a margin over a reference, with rewards of its own, or on lengths of responses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from advsweep.components import option
from advsweep.errors import BatchError, ConfigError
from advsweep.estimators.base import Estimator
from advsweep.estimators.baselines import GRPO
from advsweep.estimators.batch import Groups, Std, standardise
from advsweep.estimators.reshaped import Scale

if TYPE_CHECKING:
    from torch import Tensor

    from advsweep.estimators.batch import FlagPerGroup, FlagPerRollout, PerGroup, PerRollout


# Whose conventions: the paper's, a framework's, or one of the two released scripts'.
AAPOPreset = Literal["paper", "trl", "verl", "released", "released_1_5b", "released_7b"]


@dataclass(kw_only=True)
class AAPO(GRPO):
    """`grpo` and a clipped margin: Aᵢ = (rᵢ - p)/(σ + ε) + clip(rᵢ - rʳᵉᶠᵢ, δ_low, δ_high).

    rʳᵉᶠᵢ is the reward of rollout i of the reference model on the same prompt; the pairing
    is by index alone. Homogeneous groups get the margin, which is all 0 only if every
    rollout does as well as its reference. Advantages do not sum to 0 and are at most
    √(G-1) + max(|δ_low|, δ_high).
    """

    name: ClassVar[str] = "aapo"
    needs: ClassVar[frozenset[str]] = frozenset({"ref_rewards"})
    # The authors' code is built on TRL and standardises as TRL does.
    conventions: ClassVar[dict[str, Mapping[str, Any]]] = GRPO.conventions | dict.fromkeys(
        ("released", "released_1_5b", "released_7b"), GRPO.conventions["trl"]
    )

    preset: AAPOPreset = option(  # type: ignore[assignment]
        "paper",
        identity=False,
        help="sets scale, std, eps and zero_variance where they are not given",
    )
    scale: Scale | None = option(
        None,
        absent="std",
        help="mean: rᵢ - p is not divided by σ; null: the preset's (mean for released_7b)",
    )
    delta_low: float = option(-0.2, le=0, help="δ_low: smallest margin; -inf: not clipped")
    delta_high: float = option(0.28, ge=0, help="δ_high: largest margin; inf: not clipped")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale is None:
            unscaled = self.preset == "released_7b"
            self.scale = "mean" if unscaled else "std"
        if self.scale == "mean" and self.scope != "group":
            raise ConfigError(
                f"scope: expected group with scale=mean, which divides by no σ, got {self.scope}"
            )

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        margin = groups.rewards - groups.finite("ref_rewards")
        clipped = margin.clamp_(min=self.delta_low, max=self.delta_high)
        if self.scale == "mean":
            return groups.centred + clipped
        return super()._advantages(groups, info) + clipped


# RENT's code sets the entropy of a rollout without an answer to 7 in mathematics.
_NO_ANSWER = -7.0


class Intuitor(GRPO):
    """The model's confidence as the reward: `grpo` on the mean KL(uniform ‖ π) of a rollout.

    The authors' reward is the mean over response tokens of logsumexp(z) - mean(z), z the
    logits, which is KL(uniform ‖ π) + log V; the constant cancels. The verifier's rewards are
    not read, so their collapse rate is undefined here. Groups of equal confidence get 0.
    """

    name: ClassVar[str] = "intuitor"
    needs: ClassVar[frozenset[str]] = frozenset({"self_certainty"})
    verifier_free: ClassVar[bool] = True
    conventions: ClassVar[dict[str, Mapping[str, Any]]] = {
        **GRPO.conventions,
        "released": GRPO.conventions["trl"],
    }

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return super()._advantages(groups.with_rewards(groups.finite("self_certainty")), info)


@dataclass(kw_only=True)
class RENT(GRPO):
    """Certainty as the reward: `grpo` on the negative mean token entropy of a rollout.

    The verifier's rewards are not read, so their collapse rate is undefined here. Groups of
    equal entropy get 0.

    A rollout in which no answer can be read is rewarded with `no_answer` where that is given.
    """

    name: ClassVar[str] = "rent"
    needs: ClassVar[frozenset[str]] = frozenset({"token_entropy_exact"})
    verifier_free: ClassVar[bool] = True

    no_answer: float | None = option(
        None,
        gt=-math.inf,
        lt=math.inf,
        absent=None,
        help="reward of a rollout without an answer; null: none of its own (-7 for released)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preset == "released" and self.no_answer is None:
            self.no_answer = _NO_ANSWER
        if self.no_answer is not None:
            self._narrow(needs=self.needs | {"answered"})

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        certainty = -groups.finite("token_entropy_exact")
        if self.no_answer is not None:
            assert groups.batch.answered is not None
            certainty = torch.where(groups.batch.answered, certainty, self.no_answer)
        return super()._advantages(groups.with_rewards(certainty), info)


# Number of a group's shortest responses whose mean length decides whether the group is long.
_SHORTEST = 3


@dataclass(kw_only=True)
class T2T(GRPO):
    """Thickening to thinning: longer tries while a prompt is hard, shorter ones once solved.

    `grpo` on the reward Rᵢ = 1 - α p Lᵢ of a success and Rᵢ = α (1-p) Lᵢ of a failure, with
    Lᵢ the response's length over the longest of its group (or over `max_len`). With
    K = 1 - α p L̄_S - α q L̄_F, the group masses are p q K / σ_R on both sides; α = 0 is `grpo`.
    An all-wrong group is pushed towards its longer responses and an all-correct one towards
    its shorter ones; a group of equal rewards and equal lengths gets 0.
    """

    name: ClassVar[str] = "t2t"
    needs: ClassVar[frozenset[str]] = frozenset({"lengths"})
    binary_only: ClassVar[bool] = True

    alpha: float = option(0.1, ge=0, lt=1, help="α: how much of the reward hangs on length")
    max_len: float | None = option(None, gt=0, help="tokens of length 1; null: the longest")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        rewards = groups.rewards
        lengths = self._relative_lengths(groups)
        # R = r + α L (1 - r - p): the factor is -p for a success and 1-p for a failure.
        shaped = torch.add(rewards, lengths, alpha=self.alpha)
        shaped = torch.addcmul(shaped, lengths, rewards + groups.mean, value=-self.alpha)
        return super()._advantages(groups.with_rewards(shaped), info)

    def _relative_lengths(self, groups: Groups) -> PerRollout:
        """Lᵢ in [0, 1]."""
        lengths = groups.given("lengths")
        low, high = (limit.item() for limit in torch.aminmax(lengths))
        limit = math.inf if self.max_len is None else self.max_len
        if not (low >= 0 and high <= limit and math.isfinite(high)):
            raise BatchError(
                f"lengths: expected tokens from 0 to max_len = {limit:g}, got {low:g} to {high:g}"
            )
        if self.max_len is not None:
            return lengths / self.max_len
        # Where no response of a group has a token, 0/0 reads as 0.
        return standardise(lengths, lengths.amax(dim=1, keepdim=True))


@dataclass(kw_only=True)
class GRPOLead(Estimator):
    """`grpo` of length-shaped rewards, times a weight by the solve rate.

        zᵢ = (Lᵢ - mean L)/(s_L + ε)     over the group's right answers, L their lengths
        Rᵢ = exp(-α zᵢ)                  of a right answer: shorter ones count more
        Rᵢ = `wrong`                     of a wrong one
        Âᵢ = (Rᵢ - mean R)/(s_R + ε)
        Aᵢ = Âᵢ w(p) if Âᵢ > 0 else Âᵢ w(1-p)
        w(x) = w_min + (w_max - w_min)/(1 + exp(k (x - x₀)))

    s_L and s_R are sample standard deviations; s_L is 1 for a single right answer. p is the
    solve rate. Hard prompts push their successes up, easy prompts their failures down.

    Right answers get Rᵢ = 1 unless the group's three shortest responses, right or wrong, have
    more than `long_from` tokens on average.

    All-wrong groups get 0, and so do all-correct groups of short responses. In long ones the
    shorter get more than the longer. Group masses without the length factor are w(p) c and
    w(q) c with c = √(pq (G-1)/G), ε aside.
    """

    name: ClassVar[str] = "grpo_lead"
    needs: ClassVar[frozenset[str]] = frozenset({"lengths"})
    binary_only: ClassVar[bool] = True
    per_group: ClassVar[bool] = True
    revision: ClassVar[int] = 2  # in 1, w depended on the place in a batch, in the last bit

    alpha: float = option(0.05, ge=0, lt=math.inf, help="α: how much a shorter answer counts")
    wrong: float = option(-1.0, gt=-math.inf, lt=1, help="reward of a wrong answer")
    long_from: float = option(4000.0, ge=0, help="tokens of a long group's three shortest")
    std: Std = option(Std.SAMPLE, help="standard deviation of the shaped rewards: over G or G-1")
    eps: float = option(1e-6, ge=0, help="ε, added to both standard deviations")
    w_min: float = option(0.4, ge=0, lt=math.inf, help="w far above x₀")
    w_max: float = option(1.5, ge=0, lt=math.inf, help="w far below x₀")
    w_mid: float = option(0.75, ge=0, le=1, help="x₀: where w is half-way")
    w_slope: float = option(10.0, ge=0, lt=math.inf, help="k: how steeply w falls")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        lengths = groups.finite("lengths")
        correct = groups.rewards == 1
        bonus = torch.where(
            self._long(groups, lengths), torch.exp(-self.alpha * self._z(lengths, correct)), 1.0
        )
        shaped = groups.with_rewards(torch.where(correct, bonus, self.wrong))
        advantages = standardise(shaped.centred, shaped.std(self.std), self.eps)
        return advantages * torch.where(
            advantages > 0, self._weight(groups.mean), self._weight(1 - groups.mean)
        )

    def _z(self, lengths: PerRollout, correct: FlagPerRollout) -> PerRollout:
        """Standardised lengths among the right answers of each group."""
        # In the dtype of the lengths: torch takes the root of integers in float32.
        count = correct.sum(dim=1, keepdim=True, dtype=lengths.dtype)
        mean = torch.where(correct, lengths, 0.0).sum(dim=1, keepdim=True) / count.clamp(min=1)
        centred = torch.where(correct, lengths - mean, 0.0)
        norm: Tensor = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
        sigma = torch.where(count > 1, norm / (count - 1).clamp(min=1).sqrt(), 1.0)
        return standardise(centred, sigma, self.eps)

    def _long(self, groups: Groups, lengths: PerRollout) -> FlagPerGroup:
        """Groups whose shortest responses are long on average."""
        shown = lengths if groups.mask is None else torch.where(groups.mask, lengths, math.inf)
        shortest = shown.sort(dim=1).values[:, :_SHORTEST]
        total = torch.where(shortest.isfinite(), shortest, 0.0).sum(dim=1, keepdim=True)
        few = shortest.isfinite().sum(dim=1, keepdim=True).clamp(min=1)
        return total / few > self.long_from

    def _weight(self, rate: PerGroup) -> PerGroup:
        # Not torch.sigmoid, which rounds differently by the place of a number in its tensor. Where
        # exp overflows the quotient is 0.
        falling = 1 / (1 + torch.exp(self.w_slope * (rate - self.w_mid)))
        return self.w_min + (self.w_max - self.w_min) * falling
