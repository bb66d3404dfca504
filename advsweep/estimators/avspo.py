"""AVSPO: virtual rewards that give collapsed groups an advantage."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from advsweep.components import option
from advsweep.estimators.base import GroupBatch, StatefulEstimator
from advsweep.estimators.groups import Groups, standardise

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


class Strategy(Enum):
    """Which virtual rewards a collapsed group is given."""

    STRATIFIED = "stratified"
    RANDOM_UNIFORM = "random_uniform"
    FIXED_PARTIAL = "fixed_partial"
    EXPONENTIAL_DECAY = "exponential_decay"


class Cases(Enum):
    """Which collapsed groups are given any: those of failures, of successes, or both."""

    BOTH = "both"
    ERROR_ONLY = "error_only"
    CORRECT_ONLY = "correct_only"


class AllWrong(Enum):
    """Virtual rewards above an all-wrong group: all at the anchor, or rising up to it."""

    CONSTANT = "constant"
    RAMP = "ramp"


class Rounding(Enum):
    """How the number of virtual rewards is made whole."""

    FLOOR = "floor"
    CEIL = "ceil"
    NEAREST = "nearest"


class ThresholdRule(Enum):
    """How τ moves: two cases as rebuilt from the text, or always by the sign of the gain."""

    PIECEWISE = "piecewise"
    SIGN = "sign"


_TAU_RANGE = (0.1, 0.9)


@dataclass(frozen=True)
class _Memory:
    tau: float
    previous_mean: float | None = None
    calls: int = 0


@dataclass(kw_only=True)
class AVSPO(StatefulEstimator[_Memory]):
    """GRPO, with virtual rewards in the statistics of collapsed groups when many collapse.

    ACR is the share of groups with σ < ε_acr. If ACR > τ, each such group gets
    N = min(G, max(1, ⌊λ G √ACR⌋)) virtual rewards, vⱼ = r_max j/(N+1) above failure or the
    anchor on an all-wrong group, and Aᵢ = (rᵢ - μ)/(s + ε) with mean and population σ of
    real and virtual rewards. All other groups, and all groups when ACR ≤ τ, are `grpo`.
    Afterwards τ moves by η towards ACR if the mean reward rose, and by η (ACR - τ) down if
    it did not and ACR > τ; it stays within [0.1, 0.9].

    An all-wrong group gets -√(N/G) whatever the anchor; |A| ≤ √(N/G) ≤ 1. Logged: `acr`,
    `acr_after` (after augmentation), `tau` (the one of this step), `triggered` and
    `virtual` (N, 0 if not triggered).

    Departures: the paper's formulas and constants are lost and rebuilt here; the options
    hold the other readings. Rewards below 0 are an extension. `random_uniform` draws from a
    generator of its own, seeded by `seed` and the call's number.
    """

    name: ClassVar[str] = "avspo"
    family: ClassVar[str] = "virtual samples"
    formula: ClassVar[str] = "Aᵢ = (rᵢ - μ)/(s + ε), μ and s with N virtual rewards if ACR > τ"
    paper: ClassVar[str] = "AVSPO (Advantage Collapse in GRPO)"
    equation: ClassVar[str] = "Eq. 6-12, sec. 4.2"

    lam: float = option(0.5, gt=0, le=1, help="λ: how many virtual rewards for a collapse rate")
    anchor: float = option(0.1, gt=0, lt=math.inf, help="virtual reward above an all-wrong group")
    all_wrong: AllWrong = option(
        AllWrong.CONSTANT, help="virtual rewards of all-wrong groups: anchor, or anchor j/N"
    )
    rounding: Rounding = option(Rounding.FLOOR, help="of the number of virtual rewards")
    tau0: float = option(0.5, ge=0, le=1, help="τ of the first step")
    eta: float = option(0.01, ge=0, le=1, help="η: step size of τ")
    threshold_rule: ThresholdRule = option(
        ThresholdRule.PIECEWISE, help="how τ moves when the mean reward did not rise"
    )
    fixed_tau: float | None = option(
        None, ge=0, le=1, help="ablation: a constant τ, such as 0.3, 0.5 or 0.7"
    )
    strategy: Strategy = option(Strategy.STRATIFIED, help="ablation: other virtual rewards")
    cases: Cases = option(Cases.BOTH, help="ablation: augment only all-wrong or other groups")
    eps_acr: float = option(1e-6, gt=0, help="groups with a smaller σ are collapsed")
    eps: float = option(1e-8, ge=0, help="ε, added to every σ")
    seed: int = option(0, ge=0, help="of strategy=random_uniform")

    def _fresh_memory(self) -> _Memory:
        return _Memory(tau=self.tau0)

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        mean, sigma = groups.mean, groups.std()
        collapsed = sigma < self.eps_acr
        mean_reward = groups.rollout_mean(groups.rewards)
        acr = groups.group_mean(collapsed)
        tau = self._memory.tau if self.fixed_tau is None else self.fixed_tau
        info |= {"acr": acr, "acr_after": acr, "tau": tau, "triggered": 0.0, "virtual": 0.0}
        if acr > tau:
            number = self._number(groups.rewards.shape[1], acr)
            augmented = self._augmented(groups, number, acr)
            treated = self._treated(groups, collapsed)
            mean = torch.where(treated, augmented.mean, mean)
            sigma = torch.where(treated, augmented.std(), sigma)
            untreated = 0.0
            if treated is not collapsed:
                untreated = groups.group_mean(collapsed & ~treated)
            info |= {"acr_after": untreated, "triggered": 1.0, "virtual": float(number)}
        self._advance(acr, mean_reward)
        return standardise(groups.rewards - mean, sigma, self.eps)

    def _treated(
        self, groups: Groups, collapsed: Bool[Tensor, "prompts 1"]
    ) -> Bool[Tensor, "prompts 1"]:
        """The collapsed groups that get virtual rewards."""
        if self.cases is Cases.ERROR_ONLY:
            return collapsed & (groups.high <= 0)
        if self.cases is Cases.CORRECT_ONLY:
            return collapsed & (groups.high > 0)
        return collapsed

    def _augmented(self, groups: Groups, largest: int, acr: float) -> Groups:
        """The groups as if each had virtual rewards beside its real ones.

        Args:
            largest: N of a group without masked rollouts.
        """
        number: Tensor | int = largest
        mask = None
        if groups.mask is not None:
            by_count = [self._number(count, acr) for count in range(groups.mask.shape[1] + 1)]
            number = groups.mean.new_tensor(by_count)[groups.mask.sum(dim=1, keepdim=True)]
            present = torch.arange(1, largest + 1, device=number.device) <= number
            mask = torch.cat((groups.mask, present), dim=1)
        virtual = self._virtual_rewards(groups, number, largest)
        rewards = torch.cat((groups.rewards, virtual), dim=1)
        return Groups(GroupBatch(rewards=rewards, mask=mask))

    def _number(self, count: int, acr: float) -> int:
        """N = min(G, max(1, λ G √ACR made whole))."""
        # Without this 0.29 * 100 would be 28.999999999999996 and lose one.
        wanted = round(self.lam * count * math.sqrt(acr), 9)
        whole = {
            Rounding.FLOOR: math.floor(wanted),
            Rounding.CEIL: math.ceil(wanted),
            Rounding.NEAREST: math.floor(wanted + 0.5),
        }[self.rounding]
        return min(count, max(1, whole))

    def _virtual_rewards(
        self, groups: Groups, number: Tensor | int, largest: int
    ) -> Float[Tensor, "prompts virtual"]:
        """Virtual rewards 1 to `largest` of each group, whatever `number` it has."""
        high = groups.high
        j = torch.arange(1, largest + 1, dtype=high.dtype, device=high.device)
        shape = (high.shape[0], largest)
        if self.strategy is Strategy.RANDOM_UNIFORM:
            generator = self._generator()
            drawn = torch.rand(shape, generator=generator, dtype=high.dtype, device="cpu")
            return drawn.to(high.device)
        if self.strategy is Strategy.FIXED_PARTIAL:
            return high.new_full(shape, 0.5)
        if self.strategy is Strategy.EXPONENTIAL_DECAY:
            return torch.exp(-j).expand(shape)
        ramp = self.all_wrong is AllWrong.RAMP
        anchors = j * (self.anchor / number) if ramp else self.anchor
        return torch.where(high > 0, high * (j / (number + 1)), high + anchors)

    def _generator(self) -> torch.Generator:
        material = f"{self.seed}:{self._memory.calls}".encode()
        seed = int.from_bytes(hashlib.sha256(material).digest()[:8], "big") >> 1
        return torch.Generator().manual_seed(seed)

    def _advance(self, acr: float, mean_reward: float) -> None:
        memory = self._memory
        tau = memory.tau
        if self.fixed_tau is None and memory.previous_mean is not None:
            tau = self._moved(tau, acr, gain=mean_reward - memory.previous_mean)
        self._memory = _Memory(tau=tau, previous_mean=mean_reward, calls=memory.calls + 1)

    def _moved(self, tau: float, acr: float, *, gain: float) -> float:
        step = self.eta * (acr - tau)
        if gain > 0:
            tau += step
        elif acr > tau or self.threshold_rule is ThresholdRule.SIGN:
            tau -= step
        low, high = _TAU_RANGE
        return min(max(tau, low), high)
