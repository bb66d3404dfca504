"""Rewards less a baseline, reweighted by solve rate, by sign or exponentially."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from advsweep.components import option
from advsweep.errors import BatchError
from advsweep.estimators.base import Estimator
from advsweep.estimators.batch import Groups, Std, at_least, standardise

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from advsweep.estimators.batch import FlagPerRollout, PerGroup, PerRollout


# What centred rewards are divided by: nothing (mean only), or the group's σ.
Scale = Literal["mean", "std"]


class SkewR(Estimator):
    """Weight moved towards prompts of middling difficulty: Aᵢ = (rᵢ - p) √(pq), q = 1-p.

    Group masses are (pq)^1.5 on both sides. Homogeneous groups get 0.
    """

    name: ClassVar[str] = "skew_r"
    per_group: ClassVar[bool] = True
    rates: ClassVar[bool] = True

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.centred * (groups.mean * (1 - groups.mean)).sqrt()


@dataclass(kw_only=True)
class PowerNorm(Estimator):
    """The centred reward by a power of the binary variance: Aᵢ = (rᵢ - p) / (pq)^γ, q = 1-p.

    Group masses are (pq)^(1-γ) on both sides. On binary groups γ = 1/2 is `grpo`, 0
    `dr_grpo` and -1/2 `skew_r`. Homogeneous groups get 0.
    """

    name: ClassVar[str] = "power_norm"
    rates: ClassVar[bool] = True

    gamma: float = option(0.5, le=1, help="γ: 1/2 is grpo on binary groups, 0 dr_grpo")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        spread = (groups.mean * (1 - groups.mean)).masked_fill(groups.homogeneous, 1.0)
        if self.gamma > 0 and spread.amin().item() == 0:
            raise BatchError(
                f"estimator '{self.name}' divides by a power of p(1-p), which is 0 in a group "
                "of different rewards; rescale the rewards to [0, 1]"
            )
        return groups.centred / spread**self.gamma


@dataclass(kw_only=True)
class PowerAlpha(Estimator):
    """Weight moved towards hard prompts: Aᵢ = C (rᵢ - p) (1-p)^(α-1).

    Group masses are C p qᵅ on both sides; α = 1 is `dr_grpo`. Homogeneous groups get 0.
    """

    name: ClassVar[str] = "power_alpha"
    rates: ClassVar[bool] = True

    alpha: float = option(2.0, ge=1, lt=math.inf, help="α: the larger, the further it is moved")
    normalize: bool = option(False, help="C = (1+α)^(1+α) / (4 α^α) instead of 1")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        alpha = self.alpha
        constant = 1.0
        if self.normalize:
            # The largest mass over p, C p qᵅ at p = 1/(1+α), is 1/4 with
            # C = (1+α)^(1+α) / (4 αᵅ), in an order that does not overflow.
            constant = (1 + 1 / alpha) ** alpha * (1 + alpha) / 4
        return groups.centred * (constant * self._rate(groups.mean) ** (alpha - 1))

    def _rate(self, p: PerGroup) -> PerGroup:
        return 1 - p


class EasyPower(PowerAlpha):
    """Weight moved towards easy prompts: Aᵢ = C (rᵢ - p) p^(α-1).

    The mirror image of `power_alpha`: group masses are C pᵅ q on both sides, α = 1 is
    `dr_grpo`. Homogeneous groups get 0.
    """

    name: ClassVar[str] = "easy_power"

    def _rate(self, p: PerGroup) -> PerGroup:
        return p


@dataclass(kw_only=True)
class AsymPowerAlpha(Estimator):
    """A power for each sign: Aᵢ = dᵢ (1-p)^(α_s-1) if dᵢ ≥ 0, else dᵢ p^(α_f-1).

    With dᵢ = rᵢ - p. Group masses are p q^α_s and p^α_f q; α_s = α_f = 1 is `dr_grpo`.
    Homogeneous groups get 0.
    """

    name: ClassVar[str] = "asym_power_alpha"
    rates: ClassVar[bool] = True

    alpha_s: float = option(2.0, ge=1, help="α_s: power of 1-p, for successes")
    alpha_f: float = option(1.0, ge=1, help="α_f: power of p, for failures")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        success = (1 - groups.mean) ** (self.alpha_s - 1)
        failure = groups.mean ** (self.alpha_f - 1)
        centred = groups.centred
        return centred.clamp(min=0) * success + centred.clamp(max=0) * failure


@dataclass(kw_only=True)
class AsymGRPO(Estimator):
    """Failures pushed down harder: Aᵢ = dᵢ if dᵢ ≥ 0, else dᵢ / δ, with dᵢ = rᵢ - p.

    Group masses are pq and pq/δ; δ = 1 is `dr_grpo` (`grpo` with `scale=std`). Homogeneous
    groups get 0.
    """

    name: ClassVar[str] = "asym_grpo"
    per_group: ClassVar[bool] = True

    delta: float = option(0.5, gt=0, help="δ: divides the advantages of failures")
    scale: Scale = option("mean", help="std: divide dᵢ by the group's σ first")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        centred = groups.centred
        if self.scale == "std":
            centred = standardise(centred, groups.std())
        return torch.where(centred < 0, centred / self.delta, centred)


class MaxRL(Estimator):
    """The centred reward by the solve rate: Aᵢ = (rᵢ - p) / p.

    Group masses are q on both sides. Homogeneous groups get 0, so the expected masses are
    q - q^G and vanish with p.
    """

    name: ClassVar[str] = "maxrl"
    per_group: ClassVar[bool] = True
    rates: ClassVar[bool] = True

    def _check_rewards(self, groups: Groups) -> None:
        super()._check_rewards(groups)
        if ((groups.mean == 0) & ~groups.homogeneous).any():
            raise BatchError(
                f"estimator '{self.name}' divides by a prompt's mean reward, which is 0 in a "
                "group of different rewards; shift the rewards so that none is negative"
            )

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.centred / groups.mean.masked_fill(groups.homogeneous, 1.0)


class BinaryContrastive(Estimator):
    """Successes at 1 and failures at their odds: Aᵢ = 1 if rᵢ = 1, else -p/(1-p).

    Group masses are p on both sides of a mixed group. All-wrong groups get 0, all-correct
    ones 1: their failure term is empty, so expected masses are p and p - p^G.
    """

    name: ClassVar[str] = "binary_contrastive"
    per_group: ClassVar[bool] = True
    binary_only: ClassVar[bool] = True

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        rewards = groups.rewards
        q = 1 - groups.mean
        # An all-correct group has no failure to which its odds of 1/0 could apply.
        odds = groups.mean / q.masked_fill(q == 0, 1.0)
        return rewards - (1 - rewards) * odds


# What δ is added to: the mean of the group, nothing, or its smallest reward.
Baseline = Literal["mean", "none", "min"]

# Which quantile τ asks for: the paper's, which is that of 1-τ, or the usual one.
Convention = Literal["printed", "standard"]

# The median of an even number: the lower of the two in the middle, or between them.
Median = Literal["lower", "midpoint"]


@dataclass(kw_only=True)
class AsymRE(Estimator):
    """Successes held back and failures pushed down by δ: Aᵢ = rᵢ - (b + δ).

    Group masses with the group's mean as b are p (q-δ) and q (p+δ). Homogeneous groups get
    -δ there, all-correct ones too. With δ = 0, b the mean is `dr_grpo`, none `reinforce` and
    the minimum `min_baseline`.
    """

    name: ClassVar[str] = "asym_re"
    per_group: ClassVar[bool] = True

    delta: float = option(0.01, gt=-math.inf, lt=math.inf, help="δ: above 0 for failures")
    baseline: Baseline = option("mean", help="b: mean, 0 or smallest reward")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        if self.baseline == "mean":
            return groups.centred - self.delta
        if self.baseline == "min":
            return groups.rewards - groups.low - self.delta
        return groups.rewards - self.delta


@dataclass(kw_only=True)
class Quantile(Estimator):
    """The reward less a quantile of its group, one of its rewards: Aᵢ = rᵢ - Q_τ.

    On a binary group the printed Q_τ is 0 if p ≤ τ and 1 otherwise, so the group masses are
    p and 0 up to τ, 0 and q above: it learns from successes on hard prompts and from
    failures on easy ones. Homogeneous groups get 0.

    The method's own paper is QAE (arXiv:2509.22611): the standard quantile at 0.4, divided by
    σ + ε. That is `convention=standard`, `tau=0.4`, `scale=std`. It is FADE's print with τ = 0.6.
    """

    name: ClassVar[str] = "quantile"
    per_group: ClassVar[bool] = True

    tau: float = option(0.5, gt=0, lt=1, help="τ: the solve rate up to which successes count")
    convention: Convention = option("printed", help="of 1-τ, or of τ (standard)")
    interpolate: bool = option(False, absent=False, help="between two rewards, as QAE")
    scale: Scale = option("mean", absent="mean", help="std: divided by σ, as in QAE")
    std: Std = option(Std.POPULATION, absent="population", help="σ of scale=std: over G or G-1")
    eps: float = option(0.0, ge=0, absent=0.0, help="ε of scale=std, added to σ")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        level = self.tau if self.convention == "standard" else 1 - self.tau
        if self.interpolate:
            # As for ranks, 0.1 * 7 is 0.7000000000000001.
            most = groups.rewards.shape[1]
            places = [round(level * max(count - 1, 0), 9) for count in range(most + 1)]
            lower = _order_statistic(groups, lambda count: math.floor(places[count]) + 1)
            upper = _order_statistic(groups, lambda count: math.ceil(places[count]) + 1)
            shares = lower.new_tensor([place % 1 for place in places])
            baseline = torch.lerp(lower, upper, shares[_counts(groups)])
        else:
            baseline = _order_statistic(groups, lambda count: _rank(level, count))
        advantages = groups.rewards - baseline
        if self.scale == "std":
            return standardise(advantages, groups.std(self.std), self.eps)
        return advantages


@dataclass(kw_only=True)
class MCGRPO(Estimator):
    """The reward less the median of its group: Aᵢ = rᵢ - med r.

    It is `quantile` at τ = 1/2: an even split has the baseline 0, or 1/2 with
    `median=midpoint`. Homogeneous groups get 0.
    """

    name: ClassVar[str] = "mc_grpo"
    per_group: ClassVar[bool] = True

    median: Median = option("lower", help="of an even number of rewards")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        median = _order_statistic(groups, lambda count: _rank(0.5, count))
        if self.median == "midpoint":
            upper = _order_statistic(groups, lambda count: count // 2 + 1)
            median = median + (upper - median) / 2
        return groups.rewards - median


def _rank(level: float, count: int) -> int:
    """Return the rank (from 1) of the smallest of `count` rewards with CDF(x) ≥ level."""
    # Remove floating-point noise: (1 - 0.7) * 10 is 3.0000000000000004, whose ceiling is 4.
    return max(1, math.ceil(round(level * count, 9)))


def _order_statistic(groups: Groups, rank: Callable[[int], int]) -> PerGroup:
    """Return the reward of a rank (1: the smallest), which depends on the number that count."""
    rewards = groups.rewards
    if groups.mask is not None:
        rewards = torch.where(groups.mask, rewards, math.inf)
    counts = _counts(groups)
    places = counts.new_tensor([rank(max(n, 1)) - 1 for n in range(rewards.shape[1] + 1)])
    return rewards.sort(dim=1).values.gather(1, places[counts])


def _counts(groups: Groups) -> Int[Tensor, "prompts 1"]:
    """Return the number of rollouts of each group that count."""
    counted = torch.ones_like(groups.rewards, dtype=torch.bool)
    return (counted if groups.mask is None else groups.mask).sum(dim=1, keepdim=True)


@dataclass(kw_only=True)
class PSR(Estimator):
    """Positive sample reinforcement: Aᵢ = 1 for successes, 0 for failures.

    Masses are p and 0, homogeneous groups included: it is `reinforce` on rewards of 0 and 1.
    """

    name: ClassVar[str] = "psr"
    per_group: ClassVar[bool] = True
    binary_only: ClassVar[bool] = True

    drop_zero_rows: bool = option(False, help="leave weights of 0 out of the update")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.rewards.clone()

    def _keep(self, groups: Groups) -> FlagPerRollout:
        scorable = super()._keep(groups)
        taught = self._advantages(groups, {}) != 0
        return scorable & taught if self.drop_zero_rows else scorable


class NSR(PSR):
    """Negative sample reinforcement: Aᵢ = 0 for successes, -1 for failures.

    Masses are 0 and q, homogeneous groups included: it is `psr` less 1.
    """

    name: ClassVar[str] = "nsr"

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.rewards - 1


@dataclass(kw_only=True)
class WReinforce(Estimator):
    """Failures in full and successes a little: Aᵢ = λ for successes, -1 for failures.

    Masses are λp and q, homogeneous groups included: it is λ `psr` + `nsr`.
    """

    name: ClassVar[str] = "w_reinforce"
    per_group: ClassVar[bool] = True
    binary_only: ClassVar[bool] = True

    lam: float = option(0.1, gt=0, lt=math.inf, help="λ: advantage of a success")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        failure = groups.rewards - 1
        return torch.add(failure, groups.rewards, alpha=self.lam)


# Where the other weights of a group sum to less, the best one's being 1, subtracting the best
# from the total loses too many digits.
_SWAMPED = 0.1


# Which reading of log-mean-exp: the formula, or one of two that the masses may mean.
Variant = Literal["loo", "loo_same_count", "signed_softmax"]

# What the exponentials are divided by: their sum, or β times their mean.
Normalise = Literal["share", "rs"]


@dataclass(kw_only=True)
class Softmax(Estimator):
    """A softmax over the group less the uniform share: Aᵢ = exp(β rᵢ)/Z - 1/G, Z = Σ exp(β rⱼ).

    The masses of a group, summed over its rollouts, are (e^β - 1) p q / (1 + p (e^β - 1)) on
    both sides. Homogeneous groups get 0. As β → 0 it is β/G `dr_grpo`; as β → ∞, on binary
    rewards, `maxrl`/G.

    With `normalise=rs` it is RS-GRPO (arXiv:2509.24261), Aᵢ = (exp(β rᵢ)/mean exp(β rⱼ) - 1)/β.
    That is the gradient of (1/β) log E exp(β r), and G/β times the default. Its paper has β = 2.
    The masses of a group are p q (e^β - 1)/(β (1 + p (e^β - 1))) per rollout. As β → 0 it is
    `dr_grpo`.
    """

    name: ClassVar[str] = "softmax"
    per_group: ClassVar[bool] = True

    beta: float = option(1.0, gt=0, lt=math.inf, help="β: the larger, the more the best count")
    normalise: Normalise = option("share", absent="share", help="rs: RS-GRPO, G/β times share")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        weights = _weights(groups, self.beta, groups.high)
        total = weights.sum(dim=1, keepdim=True)
        mean = total / at_least(groups.count, 1)
        # Not as weights / total - 1/G, where equal rewards would round to noise.
        if self.normalise == "rs":
            return (weights - mean) / (self.beta * mean)
        return (weights - mean) / total


@dataclass(kw_only=True)
class LogMeanExp(Estimator):
    """What a rollout adds to the group's log-mean-exp: Aᵢ = lme(r) - lme(r without i).

    With lme(x) = (1/β) log(mean of exp(β x)), each over its own count. Homogeneous groups
    get 0, and so does the only scorable rollout of a group. As β → 0 it is `rloo`/G, as
    β → ∞ `passk_loo`.
    """

    name: ClassVar[str] = "log_mean_exp"
    per_group: ClassVar[bool] = True
    minimum_group: ClassVar[int] = 2

    beta: float = option(1.0, gt=0, lt=math.inf, help="β: the larger, the more the best count")
    variant: Variant = option("loo", help="the formula, or that of the masses")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "signed_softmax":
            self._narrow(binary_only=True)

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        if self.variant == "signed_softmax":
            weights = _weights(groups, self.beta, groups.high)
            shares = weights / weights.sum(dim=1, keepdim=True)
            return torch.where(groups.rewards == 1, shares, -shares)
        advantages = self._leave_one_out(groups)
        if self.variant == "loo_same_count":
            ratio = groups.count / at_least(groups.count - 1, 1)
            log_ratio = ratio.log() if isinstance(ratio, torch.Tensor) else math.log(ratio)
            advantages = advantages + log_ratio / self.beta
        if isinstance(groups.count, torch.Tensor):
            advantages = torch.where(groups.count > 1, advantages, 0.0)
        return advantages

    def _leave_one_out(self, groups: Groups) -> PerRollout:
        others = at_least(groups.count - 1, 1)
        weights = _weights(groups, self.beta, groups.high)
        total = weights.sum(dim=1, keepdim=True)
        mean = total / at_least(groups.count, 1)
        rest = total - weights
        advantages = torch.log1p((weights - mean) / rest).div_(self.beta)
        if rest.amin().item() >= _SWAMPED:
            return advantages

        # The best reward outweighs the others so much that they are lost in the total or
        # underflow. Their weights are therefore taken relative to the second best reward; the
        # best one, clamped to the second, then has weight 1.
        rewards = groups.rewards
        if groups.mask is not None:
            rewards = torch.where(groups.mask, rewards, -math.inf)
        second = rewards.topk(2).values[:, 1:]
        without_best = _weights(groups, self.beta, second).sum(dim=1, keepdim=True) - 1
        logs = torch.log(mean / (without_best / others))
        of_best = torch.add(groups.high - second, logs, alpha=1 / self.beta)
        return torch.where(rest < _SWAMPED, of_best, advantages)


def _weights(groups: Groups, beta: float, largest: PerGroup) -> PerRollout:
    """exp(β (rᵢ - largest)) of the rewards cut off at `largest`; 0 where masked."""
    weights = (groups.rewards - largest).clamp_(max=0).mul_(beta).exp_()
    return weights if groups.mask is None else torch.where(groups.mask, weights, 0.0)
