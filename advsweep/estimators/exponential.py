"""Weights from exponentials of the rewards, relative to the largest reward of the group.

So no β overflows, and equal rewards have weight exactly 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from advsweep.components import option
from advsweep.estimators.base import Estimator, Provenance
from advsweep.estimators.group_stats import Groups, at_least

if TYPE_CHECKING:
    from advsweep.estimators.batch import PerGroup, PerRollout

# Where the other weights of a group sum to less, the best one's being 1, subtracting the best
# from the total loses too many digits.
_SWAMPED = 0.1


class Variant(Enum):
    """Which reading of log-mean-exp: the formula, or one of two that the masses may mean."""

    LOO = "loo"
    LOO_SAME_COUNT = "loo_same_count"
    SIGNED_SOFTMAX = "signed_softmax"


class Normalise(Enum):
    """What the exponentials are divided by: their sum, or β times their mean."""

    SHARE = "share"
    RS = "rs"


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

    Departures: FADE has no value of β, 1 is ours, and calls the second limit the pass@k weight.
    """

    name: ClassVar[str] = "softmax"
    family: ClassVar[str] = "exponential"
    formula: ClassVar[str] = "Aᵢ = exp(β rᵢ)/Z - 1/G,  Z = Σ exp(β rⱼ)"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 8.9; normalise=rs: Jiang et al. 2025 (arXiv:2509.24261)"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER, Provenance.OURS)
    per_group: ClassVar[bool] = True

    beta: float = option(1.0, gt=0, lt=math.inf, help="β: the larger, the more the best count")
    normalise: Normalise = option(
        Normalise.SHARE, absent="share", help="share: less 1/G; rs: RS-GRPO, G/β times that"
    )

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        weights = _weights(groups, self.beta, groups.high)
        total = weights.sum(dim=1, keepdim=True)
        mean = total / at_least(groups.count, 1)
        # Not as weights / total - 1/G, where equal rewards would round to noise.
        if self.normalise is Normalise.RS:
            return (weights - mean) / (self.beta * mean)
        return (weights - mean) / total


@dataclass(kw_only=True)
class LogMeanExp(Estimator):
    """What a rollout adds to the group's log-mean-exp: Aᵢ = lme(r) - lme(r without i).

    With lme(x) = (1/β) log(mean of exp(β x)), each over its own count. Homogeneous groups
    get 0, and so does the only scorable rollout of a group. As β → 0 it is `rloo`/G, as
    β → ∞ `passk_loo`.

    Departures: the paper's masses, p e^β/(p e^β + q) and q/(p e^β + q) summed over a group,
    do not follow from this formula. They are exactly those of `variant=signed_softmax`,
    Aᵢ = e^β/Z for successes and -1/Z for failures (binary rewards only). The paper's
    derivation keeps the count G in both means, `loo_same_count`: Aᵢ grows by
    log(G/(G-1))/β, which makes every advantage positive. RS-GRPO, which FADE cites for
    log-mean-exp, has another weight: `softmax` with `normalise=rs`. β = 1 is ours.
    """

    name: ClassVar[str] = "log_mean_exp"
    family: ClassVar[str] = "exponential"
    formula: ClassVar[str] = "Aᵢ = lme(r) - lme(r without i),  lme(x) = log(mean exp(β x))/β"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 8.9, after Jiang et al. 2025 (arXiv:2509.24261)"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER, Provenance.OURS)
    per_group: ClassVar[bool] = True
    minimum_group: ClassVar[int] = 2

    beta: float = option(1.0, gt=0, lt=math.inf, help="β: the larger, the more the best count")
    variant: Variant = option(
        Variant.LOO, help="the formula, or what the paper's masses may come from"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant is Variant.SIGNED_SOFTMAX:
            self._narrow(binary_only=True)

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        if self.variant is Variant.SIGNED_SOFTMAX:
            return self._signed_softmax(groups)
        advantages = self._leave_one_out(groups)
        if self.variant is Variant.LOO_SAME_COUNT:
            ratio = groups.count / at_least(groups.count - 1, 1)
            log_ratio = ratio.log() if isinstance(ratio, Tensor) else math.log(ratio)
            advantages = advantages + log_ratio / self.beta
        if isinstance(groups.count, Tensor):
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

    def _signed_softmax(self, groups: Groups) -> PerRollout:
        weights = _weights(groups, self.beta, groups.high)
        shares = weights / weights.sum(dim=1, keepdim=True)
        return torch.where(groups.rewards == 1, shares, -shares)


def _weights(groups: Groups, beta: float, largest: PerGroup) -> PerRollout:
    """exp(β (rᵢ - largest)) of the rewards cut off at `largest`; 0 where masked."""
    weights = (groups.rewards - largest).clamp_(max=0).mul_(beta).exp_()
    return weights if groups.mask is None else torch.where(groups.mask, weights, 0.0)
