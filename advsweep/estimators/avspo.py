"""AVSPO: virtual rewards that give collapsed groups an advantage."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from advsweep.components import option
from advsweep.estimators.base import StatefulEstimator
from advsweep.estimators.batch import GroupBatch, Groups, Std, standardise

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from advsweep.estimators.batch import PerRollout


# The algorithm: the paper's, or that of the authors' released code.
Preset = Literal["paper", "released"]

# How many virtual rewards a collapsed group gets.
Count = Literal["power", "scaled"]

# Which virtual rewards a collapsed group is given.
Strategy = Literal["stratified", "random_uniform", "fixed_partial", "exponential_decay"]

# Which collapsed groups are given any: those of failures, of successes, or both.
Cases = Literal["both", "error_only", "correct_only"]

# Virtual rewards above an all-wrong group: rising up to the anchor, or all at it.
AllWrong = Literal["ramp", "constant"]

# How the number of virtual rewards is rounded to an integer.
Rounding = Literal["floor", "ceil", "nearest"]

# How τ moves: by the sign of the gain in mean reward, or by two cases.
ThresholdRule = Literal["sign", "piecewise"]


_TAU_RANGE = (0.1, 0.9)

# ε of the paper's algorithm, which prints no number, and of the released code.
_EPS = {"paper": 1e-8, "released": 1e-4}

_ROUNDING = {"power": "ceil", "scaled": "floor"}


@dataclass(frozen=True)
class _Memory:
    tau: float
    previous_mean: float | None = None
    calls: int = 0


@dataclass(kw_only=True)
class AVSPO(StatefulEstimator[_Memory]):
    """GRPO, with virtual rewards in the statistics of collapsed groups when many collapse.

    A group has collapsed if σ < ε_acr; ACR is the share of such groups in the step.

    If ACR > τ, each collapsed group gets K = max(1, min(G, ⌈G ACR^α⌉)) virtual rewards:

        vₖ = r_max (1 - k/(K+1))         where some rollout succeeds
        vₖ = r_max + anchor (K-k+1)/K    where all are wrong
        Aᵢ = (rᵢ - μ)/(s + ε)            μ, s: mean and population σ of real and virtual rewards

    All other groups are `grpo`. If ACR ≤ τ, all groups are.

    After each step τ += η sgn(ΔJ) (ACR - τ), within [0.1, 0.9]. ΔJ is the gain in mean reward.
    τ stays on the first step, and where ΔJ = 0.

    An all-wrong group gets minus what an all-correct one gets, whatever the anchor;
    |A| ≤ √(K/G) ≤ 1. Logged: `acr` (of the real rewards), `acr_after` (after augmentation),
    `tau` (the one of this step), `triggered` and `virtual` (K, 0 if not triggered).
    """

    name: ClassVar[str] = "avspo"
    revision: ClassVar[int] = 2

    preset: Preset = option("paper", help="the released code's reads eps alone")
    count: Count = option("power", help="K: ⌈G ACR^α⌉ as printed, or ⌊λ G √ACR⌋")
    alpha: float = option(0.5, gt=0, le=1, help="α of count=power")
    lam: float = option(0.5, gt=0, le=1, help="λ of count=scaled")
    rounding: Rounding | None = option(None, help="of K; null: ceil, floor for scaled")
    anchor: float = option(0.1, gt=0, lt=math.inf, help="largest above an all-wrong group")
    all_wrong: AllWrong = option("ramp", help="anchor (K-k+1)/K, or anchor")
    tau0: float = option(0.5, ge=0, le=1, help="τ of the first step")
    eta: float = option(0.01, ge=0, le=1, help="η: step size of τ")
    threshold_rule: ThresholdRule = option(
        "sign",
        help="τ += η sgn(ΔJ) (ACR - τ); piecewise: ΔJ = 0 counts as a loss, and a loss moves τ "
        "only where ACR > τ",
    )
    fixed_tau: float | None = option(None, ge=0, le=1, help="ablation: a constant τ, such as 0.5")
    strategy: Strategy = option("stratified", help="ablation: other virtual rewards")
    cases: Cases = option("both", help="ablation: augment only all-wrong or other groups")
    eps_acr: float = option(1e-6, gt=0, help="groups with a smaller σ are collapsed")
    eps: float | None = option(None, ge=0, help="ε, added to σ; null: 1e-8 (released 1e-4)")
    seed: int = option(0, ge=0, help="of strategy=random_uniform")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fill({"eps": _EPS[self.preset], "rounding": _ROUNDING[self.count]})
        if self.preset == "released":
            self._narrow(stateful=False)

    def _fresh_memory(self) -> _Memory:
        return _Memory(tau=self.tau0)

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        if self.preset == "released":
            return self._released(groups, info)
        mean = groups.mean
        sigma = groups.std()
        collapsed = sigma < self.eps_acr
        mean_reward = groups.rollout_mean(groups.rewards)
        acr = groups.group_mean(collapsed)
        tau = self._memory.tau if self.fixed_tau is None else self.fixed_tau
        info |= {"acr": acr, "acr_after": acr, "tau": tau, "triggered": 0.0, "virtual": 0.0}
        if acr > tau:
            number = self._number(groups.rewards.shape[1], acr)
            augmented = self._augmented(groups, number, acr)
            treated = collapsed
            if self.cases != "both":
                treated = collapsed & ((groups.high > 0) == (self.cases == "correct_only"))
            mean = torch.where(treated, augmented.mean, mean)
            sigma = torch.where(treated, augmented.std(), sigma)
            after = groups.group_mean(sigma < self.eps_acr)
            info |= {"acr_after": after, "triggered": 1.0, "virtual": float(number)}
        self._advance(acr, mean_reward)
        assert self.eps is not None
        return standardise(groups.rewards - mean, sigma, self.eps)

    def _released(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        """The authors' code: one opposite reward per group where a whole step is uniform."""
        acr = groups.group_mean(groups.homogeneous)
        low, high = groups.reward_range
        uniform = low == high and low in (0.0, 1.0)
        info |= {
            "acr": acr,
            "acr_after": 0.0 if uniform else acr,
            "triggered": float(uniform),
            "virtual": float(uniform),
        }
        centred = groups.centred
        augmented = groups
        if uniform:
            virtual = groups.rewards.new_full((len(groups.rewards), 1), 1.0 - low)
            augmented = _joined(groups, virtual, torch.ones_like(virtual, dtype=torch.bool))
            centred = groups.rewards - augmented.mean
        assert self.eps is not None
        return standardise(centred, augmented.std(Std.SAMPLE), self.eps)

    def _augmented(self, groups: Groups, largest: int, acr: float) -> Groups:
        """Return the groups with virtual rewards appended to the real ones.

        Args:
            largest: K of a group without masked rollouts.
        """
        number: Tensor | int = largest
        present = None
        if groups.mask is not None:
            by_count = [self._number(count, acr) for count in range(groups.mask.shape[1] + 1)]
            number = groups.mean.new_tensor(by_count)[groups.mask.sum(dim=1, keepdim=True)]
            present = torch.arange(1, largest + 1, device=number.device) <= number
        return _joined(groups, self._virtual_rewards(groups, number, largest), present)

    def _number(self, count: int, acr: float) -> int:
        """K of a group with `count` rollouts."""
        if self.count == "power":
            exact = count * math.pow(acr, self.alpha)
        else:
            exact = self.lam * count * math.sqrt(acr)
        # Remove floating-point noise before rounding: 0.29 · 100 is 28.999999999999996.
        exact = round(exact, 9)
        if self.rounding == "nearest":
            exact += 0.5
        whole = math.ceil(exact) if self.rounding == "ceil" else math.floor(exact)
        return min(count, max(1, whole))

    def _virtual_rewards(
        self, groups: Groups, number: Tensor | int, largest: int
    ) -> Float[Tensor, "prompts virtual"]:
        """Return virtual rewards 1 to `largest` of each group; those above `number` are masked."""
        high = groups.high
        k = torch.arange(1, largest + 1, dtype=high.dtype, device=high.device)
        shape = (high.shape[0], largest)
        if self.strategy == "random_uniform":
            material = f"{self.seed}:{self._memory.calls}".encode()
            seed = int.from_bytes(hashlib.sha256(material).digest()[:8], "big") >> 1
            generator = torch.Generator().manual_seed(seed)
            drawn = torch.rand(shape, generator=generator, dtype=high.dtype, device="cpu")
            return drawn.to(high.device) * high
        if self.strategy == "fixed_partial":
            return high.new_full(shape, 0.5)
        if self.strategy == "exponential_decay":
            return torch.exp(-k).expand(shape)
        ramp = self.all_wrong == "ramp"
        # In ascending order, while the paper counts down: vₖ and v of K - k + 1 are swapped. Only
        # the set of virtual rewards matters.
        anchors = k * (self.anchor / number) if ramp else self.anchor
        return torch.where(high > 0, high * (k / (number + 1)), high + anchors)

    def _advance(self, acr: float, mean_reward: float) -> None:
        """Move τ by the gain in mean reward, which the first step has not."""
        memory = self._memory
        tau = memory.tau
        if self.fixed_tau is None and memory.previous_mean is not None:
            gain = mean_reward - memory.previous_mean
            step = self.eta * (acr - tau)
            if gain > 0:
                tau += step
            elif self.threshold_rule == "piecewise":
                tau -= max(step, 0.0)
            elif gain < 0:
                tau -= step
            low, high = _TAU_RANGE
            tau = min(max(tau, low), high)
        self._memory = _Memory(tau=tau, previous_mean=mean_reward, calls=memory.calls + 1)


def _joined(
    groups: Groups,
    virtual: Float[Tensor, "prompts virtual"],
    present: Bool[Tensor, "prompts virtual"] | None,
) -> Groups:
    """The groups with virtual rewards beside the real ones.

    Args:
        present: the virtual rewards that count; None where no rollout is masked either.
    """
    rewards = torch.cat((groups.rewards, virtual), dim=1)
    mask = None
    if groups.mask is not None:
        assert present is not None
        mask = torch.cat((groups.mask, present), dim=1)
    return Groups(GroupBatch(rewards=rewards, mask=mask))
