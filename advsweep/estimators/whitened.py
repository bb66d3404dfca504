"""Estimators that whiten over the batch, and KL penalties in the reward."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from advsweep.components import option
from advsweep.errors import BatchError, ConfigError
from advsweep.estimators.base import Estimator
from advsweep.estimators.baselines import GRPO
from advsweep.estimators.batch import CountBy, Groups, Std
from advsweep.estimators.wrappers import Wrapper

if TYPE_CHECKING:
    from advsweep.estimators.batch import PerRollout, PerToken

# Whose code whitens: the variance is of n - 1 and s = √(s² + 1e-8), of n and s = √max(s², 1e-8), or
# of n - 1 and s + 1e-4.
Whitening = Literal["verl", "openrlhf", "trl"]

# Estimates of the KL from d = log π - log π_ref, by the names of `objective.kl_estimator`: d, d²/2,
# exp(-d) - 1 + d, |d|, and verl's k3, in which d is within ±20 and the estimate at most 10.
KL = Literal["k1", "k2", "k3", "abs", "low_var_kl"]

# In 1, the name k3 stood for low_var_kl.
_REVISION_OF_K3 = 2

# In k3 a token counts as at most e⁴⁰ times as probable under the reference, as in the objectives.
_LARGEST_LOG_RATIO = 40.0


def whiten(
    groups: Groups, values: PerRollout | PerToken, over: CountBy, how: Whitening
) -> PerRollout | PerToken:
    """Return (x - m)/s, m and s over all rollouts or all tokens of the batch."""
    moments = groups.moments(values, over)
    variance = moments.variance(Std.POPULATION if how == "openrlhf" else Std.SAMPLE)
    if how == "verl":
        sigma = math.sqrt(variance + 1e-8)
    elif how == "openrlhf":
        sigma = math.sqrt(max(variance, 1e-8))
    else:
        sigma = math.sqrt(variance) + 1e-4
    return (values - moments.mean) / sigma


def token_penalties(groups: Groups, kl: KL) -> PerToken:
    """Return the estimate of each token's KL from the reference model, 0 past the end.

    Raises:
        BatchError: a number is not finite.
    """
    gaps = groups.finite("token_kl")
    if kl == "abs":
        penalties = gaps.abs()
    elif kl == "k2":
        penalties = gaps.square() / 2
    elif kl == "k3":
        gaps = gaps.clamp(min=-_LARGEST_LOG_RATIO)
        penalties = torch.exp(-gaps) - 1 + gaps
    elif kl == "low_var_kl":
        gaps = gaps.clamp(-20, 20)
        penalties = (torch.exp(-gaps) - 1 + gaps).clamp(max=10)
    else:
        penalties = gaps
    return torch.where(groups.within(penalties.shape[2]), penalties, 0.0)


@dataclass(kw_only=True)
class _WhitenedReturns(Estimator):
    needs: ClassVar[frozenset[str]] = frozenset({"lengths"})

    preset: Literal["verl", "openrlhf"] = option("verl", help="whose σ over the tokens")
    beta: float = option(0.0, ge=0, lt=math.inf, help="β: weight of the KL in the reward")
    kl: KL = option("k1", help="estimate of the KL; low_var_kl is verl's k3, within bounds")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta > 0:
            self._narrow(needs=self.needs | {"token_kl"})
        if self.kl == "k3":
            self._narrow(revision=_REVISION_OF_K3)

    def _penalties(self, groups: Groups) -> PerToken:
        """β times the KL of each token, which OpenRLHF bounds."""
        penalties = token_penalties(groups, self.kl)
        return self.beta * (penalties.clamp(-10, 10) if self.preset == "openrlhf" else penalties)

    def _returns(self, groups: Groups, rewards: PerRollout, gamma: float) -> PerToken:
        """The discounted sum of rewards from each token on; `rewards` come at the last one.

        Tokens of an environment have no return, and nothing is discounted over them.
        """
        lengths = groups.finite("lengths")
        turn_of_token = groups.batch.turn_of_token
        if self.beta > 0:
            returns = -self._penalties(groups)
        elif turn_of_token is not None:
            returns = rewards.new_zeros(turn_of_token.shape)
        else:
            longest = max(1, math.ceil(lengths.amax().item()))
            returns = rewards.new_zeros(*rewards.shape, longest)
        generated = groups.within(returns.shape[2])
        places = torch.arange(returns.shape[2], device=rewards.device)
        last = places.where(generated, -1).amax(dim=-1, keepdim=True)
        returns = returns + rewards[..., None] * (places == last)
        following = torch.zeros_like(rewards)
        for place in range(returns.shape[2] - 1, -1, -1):
            returns[..., place] += gamma * following
            following = returns[..., place].where(generated[..., place], following)
        return returns


@dataclass(kw_only=True)
class ReinforcePP(_WhitenedReturns):
    """REINFORCE++: the return of each token, whitened over all tokens of the batch.

        Gᵢₜ = Σ_{u ≥ t} γ^(u-t) (rᵢᵤ - β kᵢᵤ)     rᵢᵤ: the reward at the last token, 0 before
        Aᵢₜ = (Gᵢₜ - m)/s                         m, s: over all tokens of the batch

    kᵢₜ estimates the token's KL from the reference model. There is no baseline per prompt: the
    sign of a rollout depends on the other prompts of its step. With β = 0 and γ = 1 all tokens of
    a rollout have one advantage.

    verl: s² is the sample variance + 1e-8. OpenRLHF: s² is the population variance, at least
    1e-8, and |kᵢₜ| is at most 10.
    """

    name: ClassVar[str] = "reinforce_pp"

    gamma: float = option(1.0, gt=0, le=1, help="γ: discount per token")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._narrow(per_token=self.beta > 0 or self.gamma < 1)

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout | PerToken:
        returns = groups.rewards
        if self.per_token:
            returns = self._returns(groups, groups.rewards, self.gamma)
        return whiten(groups, returns, CountBy.TOKENS, self.preset)


@dataclass(kw_only=True)
class ReinforcePPBaseline(_WhitenedReturns):
    """REINFORCE++ with the group's mean as baseline: rᵢ - p, whitened over the batch's tokens.

        Aᵢ = (dᵢ - m)/s,  dᵢ = rᵢ - p     m, s: over all tokens of the batch

    Groups of equal rewards get -m/s, which is 0 only where right and wrong answers are equally
    long.

    verl: rᵢ and p are those of rewards less β Σₜ kᵢₜ. OpenRLHF: the KL comes after the baseline,
    dᵢₜ = rᵢ - p - β Σ_{u ≥ t} kᵢᵤ, one advantage per token. s and kᵢₜ are those of `reinforce_pp`.
    """

    name: ClassVar[str] = "reinforce_pp_baseline"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._narrow(per_token=self.beta > 0 and self.preset == "openrlhf")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout | PerToken:
        returns: PerRollout | PerToken = groups.centred
        if self.per_token:
            returns = self._returns(groups, groups.centred, 1.0)
        elif self.beta > 0:
            penalised = groups.rewards - self._penalties(groups).sum(dim=-1)
            returns = groups.with_rewards(penalised).centred
        return whiten(groups, returns, CountBy.TOKENS, self.preset)


# Whose conventions: the paper's, TRL's or verl's.
GDPOPreset = Literal["paper", "trl", "verl"]

# Whether each part of the reward is normalised, or their sum.
Order = Literal["normalise_then_sum", "sum_then_normalise"]


@dataclass(kw_only=True)
class GDPO(GRPO):
    """Parts of the reward, each normalised in its group, summed, and whitened over the batch.

        aᵢₖ = (rᵢₖ - pₖ)/(σₖ + ε)           pₖ, σₖ: of part k in the group
        Aᵢ = (Σ wₖ aᵢₖ - m)/s               m, s: over all rollouts of the batch

    A part of small spread counts as much as one of large spread, so no part drowns another. With
    `order=sum_then_normalise` it is `grpo` of Σ wₖ rᵢₖ. A part that is NaN for a rollout adds
    nothing to it, and enters no statistic.

    TRL (`multi_objective_aggregation=normalize_then_sum`): the sample σ, ε = 1e-4, and 1e-4 added
    to s. verl: the sample σ, ε = 1e-6, m and s over all tokens of the batch, 1e-8 added to s².
    """

    name: ClassVar[str] = "gdpo"
    needs: ClassVar[frozenset[str]] = frozenset({"reward_parts"})
    uses: ClassVar[frozenset[str]] = frozenset({"part_weights"})

    preset: GDPOPreset = option(
        "paper", help="whose m and s; sets std, eps and zero_variance where they are not given"
    )
    order: Order = option("normalise_then_sum", help="normalise each part, or their sum")
    weights: tuple[float, ...] | None = option(
        None, help="wₖ, one per part; null: those of the task, else 1"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preset == "verl":
            self._narrow(needs=self.needs | {"lengths"})
        if self.order == "normalise_then_sum":
            self._narrow(per_group=False)
            if self.scope != "group":
                raise ConfigError(
                    f"scope: expected group with order=normalise_then_sum, got {self.scope}"
                )

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        reward_parts = groups.batch.reward_parts
        assert reward_parts is not None
        parts = reward_parts.to(groups.rewards).unbind(dim=2)
        if len(parts) < 2:
            raise BatchError(
                f"estimator '{self.name}' normalises each part of the reward: expected at least 2 "
                f"parts, got {len(parts)}; take grpo, or a reward of several parts"
            )
        weights = self.weights or groups.batch.part_weights or (1.0,) * len(parts)
        if len(weights) != len(parts):
            raise BatchError(f"weights: expected {len(parts)} weights, got {len(weights)}")
        normalises = self.order == "normalise_then_sum"
        total = torch.zeros_like(groups.rewards)
        for weight, part in zip(weights, parts, strict=True):
            scored = ~part.isnan() if groups.mask is None else groups.mask & ~part.isnan()
            of_part = groups.with_rewards(part, scored)
            values = super()._advantages(of_part, info) if normalises else of_part.rewards
            total += weight * torch.where(scored, values, 0.0)
        if not math.isfinite(total.sum().item()):
            raise BatchError("reward_parts: expected finite numbers, or NaN where one is missing")
        if not normalises:
            return super()._advantages(groups.with_rewards(total), info)
        if self.preset == "verl":
            return whiten(groups, total, CountBy.TOKENS, "verl")
        return whiten(groups, total, CountBy.ROLLOUTS, "trl")


@dataclass(kw_only=True)
class Whitened(Wrapper):
    """The base's advantages whitened over the batch: Aᵢ = (Âᵢ - m)/s.

    m and s are the mean and σ of Âᵢ over all rollouts of the batch, or over all its tokens. With
    the base `rloo` it is TRL's RLOO with `normalize_advantages`; frameworks that whiten
    advantages mostly do so over tokens.
    """

    name: ClassVar[str] = "whitened"

    base: str | dict[str, Any] | Estimator = option(
        "rloo", help="the estimator whose advantages are whitened: a name or a mapping"
    )
    over: CountBy = option(CountBy.ROLLOUTS, help="m and s of all rollouts, or of all tokens")
    preset: Whitening = option("trl", help="whose s: + 1e-4; verl, openrlhf: as in reinforce_pp")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.over is CountBy.TOKENS:
            self._narrow(needs=self.needs | {"lengths"})

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return whiten(groups, self._inner._advantages(groups, info), self.over, self.preset)


@dataclass(kw_only=True)
class KLInReward(Wrapper):
    """The base's advantages of rewards less a KL penalty: rᵢ - β Σₜ kᵢₜ in the place of rᵢ.

    kᵢₜ estimates the KL of the policy from the reference model at token t. It is TRL's `beta` of
    RLOO with the base `rloo`, and verl's `use_kl_in_reward` with estimators of one advantage per
    rollout. `reinforce_pp` has an option of its own, which penalises each token.
    """

    name: ClassVar[str] = "kl_in_reward"
    needs: ClassVar[frozenset[str]] = frozenset({"lengths", "token_kl"})
    per_group: ClassVar[bool] = True

    base: str | dict[str, Any] | Estimator = option(
        "rloo", help="the estimator of the penalised rewards: a name or a mapping"
    )
    beta: float = option(1e-3, ge=0, lt=math.inf, help="β: weight of the KL")
    kl: KL = option("k1", help="estimate of the KL; low_var_kl is verl's k3, within bounds")

    def __post_init__(self) -> None:
        super().__post_init__()
        faults = {
            "reads no rewards": self.verifier_free,
            "is for rewards of 0 and 1 only": self.binary_only,
            "reads their means as solve rates": self.rates,
            "reads the parts of the reward alone": "reward_parts" in self.needs,
        }
        for fault, is_there in faults.items():
            if is_there:
                raise ConfigError(
                    f"base: expected an estimator of rewards of any size, got "
                    f"'{self._inner.name}', which {fault}"
                )
        if self.kl == "k3":
            self._narrow(revision=_REVISION_OF_K3)

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        penalties = token_penalties(groups, self.kl).sum(dim=-1)
        penalised = groups.with_rewards(groups.rewards - self.beta * penalties)
        self._inner._check_rewards(penalised)
        return self._inner._advantages(penalised, info)
