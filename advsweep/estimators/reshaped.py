"""Mean-centred rewards dᵢ = rᵢ - p, reweighted by solve rate or by sign."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import torch

from advsweep.components import option
from advsweep.errors import BatchError
from advsweep.estimators.base import Estimator, Provenance
from advsweep.estimators.group_stats import Groups, standardise

if TYPE_CHECKING:
    from advsweep.estimators.batch import PerRollout


class Scale(Enum):
    """What centred rewards are divided by: nothing (mean only), or the group's σ."""

    MEAN = "mean"
    STD = "std"


@dataclass(kw_only=True)
class SkewR(Estimator):
    """Weight moved towards prompts of middling difficulty: Aᵢ = (rᵢ - p) √(pq), q = 1-p.

    Group masses are (pq)^1.5 on both sides. Homogeneous groups get 0.

    Departures: none; the paper's "product of both" is read as that of the masses of
    `dr_grpo` and `grpo`, as it prints.
    """

    name: ClassVar[str] = "skew_r"
    family: ClassVar[str] = "reshaped"
    formula: ClassVar[str] = "Aᵢ = (rᵢ - p) √(p(1-p))"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 8.1, after Thrampoulidis et al. 2025 (arXiv:2510.23049)"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
    per_group: ClassVar[bool] = True
    rates: ClassVar[bool] = True

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.centred * (groups.mean * (1 - groups.mean)).sqrt()


@dataclass(kw_only=True)
class PowerNorm(Estimator):
    """The centred reward by a power of the binary variance: Aᵢ = (rᵢ - p) / (pq)^γ, q = 1-p.

    Group masses are (pq)^(1-γ) on both sides. On binary groups γ = 1/2 is `grpo`, 0
    `dr_grpo` and -1/2 `skew_r`. Homogeneous groups get 0.

    Departures: the paper prints the failures' advantage without its minus sign, and no value
    of γ; 1/2 is ours.
    """

    name: ClassVar[str] = "power_norm"
    family: ClassVar[str] = "reshaped"
    formula: ClassVar[str] = "Aᵢ = (rᵢ - p) / (p(1-p))^γ"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 8.8, after Andrychowicz et al. 2021 (arXiv:2006.05990)"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER, Provenance.OURS)
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

    Departures: C = 1 as in Algorithm 1; `normalize` takes the C of section 4.3, with which
    the largest mass is 1/4 for any α.
    """

    name: ClassVar[str] = "power_alpha"
    family: ClassVar[str] = "reshaped"
    formula: ClassVar[str] = "Aᵢ = C (rᵢ - p) (1-p)^(α-1)"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 4.3, 8.2, Alg. 1"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
    rates: ClassVar[bool] = True

    alpha: float = option(
        2.0, ge=1, lt=math.inf, help="α: the larger, the more weight on hard prompts"
    )
    normalize: bool = option(False, help="C = (1+α)^(1+α) / (4 α^α) instead of 1")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        constant = _peak_constant(self.alpha) if self.normalize else 1.0
        return groups.centred * (constant * (1 - groups.mean) ** (self.alpha - 1))


@dataclass(kw_only=True)
class EasyPower(Estimator):
    """Weight moved towards easy prompts: Aᵢ = C (rᵢ - p) p^(α-1).

    The mirror image of `power_alpha`: group masses are C pᵅ q on both sides, α = 1 is
    `dr_grpo`. Homogeneous groups get 0.

    Departures: C = 1 by default, as in `power_alpha`.
    """

    name: ClassVar[str] = "easy_power"
    family: ClassVar[str] = "reshaped"
    formula: ClassVar[str] = "Aᵢ = C (rᵢ - p) p^(α-1)"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 4.3"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
    rates: ClassVar[bool] = True

    alpha: float = option(
        2.0, ge=1, lt=math.inf, help="α: the larger, the more weight on easy prompts"
    )
    normalize: bool = option(False, help="C = (1+α)^(1+α) / (4 α^α) instead of 1")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        constant = _peak_constant(self.alpha) if self.normalize else 1.0
        return groups.centred * (constant * groups.mean ** (self.alpha - 1))


def _peak_constant(alpha: float) -> float:
    """C with which the largest mass over p, C p qᵅ at p = 1/(1+α), is 1/4."""
    # (1+α)^(1+α) / (4 αᵅ), in an order that does not overflow.
    peak: float = (1 + 1 / alpha) ** alpha * (1 + alpha) / 4
    return peak


@dataclass(kw_only=True)
class AsymPowerAlpha(Estimator):
    """A power for each sign: Aᵢ = dᵢ (1-p)^(α_s-1) if dᵢ ≥ 0, else dᵢ p^(α_f-1).

    With dᵢ = rᵢ - p. Group masses are p q^α_s and p^α_f q; α_s = α_f = 1 is `dr_grpo`.
    Homogeneous groups get 0.

    Departures: none; the paper has no default exponents, 2 and 1 are ours. A larger α_s than α_f
    does not by itself hold successes back more than failures, as the two have different bases.
    """

    name: ClassVar[str] = "asym_power_alpha"
    family: ClassVar[str] = "reshaped"
    formula: ClassVar[str] = "Aᵢ = dᵢ (1-p)^(α_s-1) if dᵢ ≥ 0 else dᵢ p^(α_f-1),  dᵢ = rᵢ - p"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 8.2"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER, Provenance.OURS)
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

    Departures: none; the paper tries δ = 0.5 and has no default.
    """

    name: ClassVar[str] = "asym_grpo"
    family: ClassVar[str] = "reshaped"
    formula: ClassVar[str] = "Aᵢ = dᵢ if dᵢ ≥ 0 else dᵢ/δ,  dᵢ = rᵢ - p"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 4.1, 8.2"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
    per_group: ClassVar[bool] = True

    delta: float = option(0.5, gt=0, help="δ: divides the advantages of failures")
    scale: Scale = option(Scale.MEAN, help="std: divide dᵢ by the group's σ first")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        centred = groups.centred
        if self.scale is Scale.STD:
            centred = standardise(centred, groups.std())
        return torch.where(centred < 0, centred / self.delta, centred)


@dataclass(kw_only=True)
class MaxRL(Estimator):
    """The centred reward by the solve rate: Aᵢ = (rᵢ - p) / p.

    Group masses are q on both sides. Homogeneous groups get 0, so the expected masses are
    q - q^G and vanish with p.

    Departures: none; the 0/0 of an all-wrong group reads as 0.
    """

    name: ClassVar[str] = "maxrl"
    family: ClassVar[str] = "reshaped"
    formula: ClassVar[str] = "Aᵢ = (rᵢ - p) / p"
    paper: ClassVar[str] = "MaxRL (Tajwar et al. 2026, arXiv:2602.02710)"
    equation: ClassVar[str] = "as in FADE (arXiv:2607.01490), sec. 8.3"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
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


@dataclass(kw_only=True)
class BinaryContrastive(Estimator):
    """Successes at 1 and failures at their odds: Aᵢ = 1 if rᵢ = 1, else -p/(1-p).

    Group masses are p on both sides of a mixed group. All-wrong groups get 0, all-correct
    ones 1: their failure term is empty, so expected masses are p and p - p^G.

    Departures: none; taken literally where a centred form would give all-correct groups 0.
    """

    name: ClassVar[str] = "binary_contrastive"
    family: ClassVar[str] = "reshaped"
    formula: ClassVar[str] = "Aᵢ = 1 if rᵢ = 1 else -p/(1-p)"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 8.7, after Greensmith et al. 2004 (JMLR 5)"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
    per_group: ClassVar[bool] = True
    binary_only: ClassVar[bool] = True

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        rewards, q = groups.rewards, 1 - groups.mean
        # An all-correct group has no failure to which its odds of 1/0 could apply.
        odds = groups.mean / q.masked_fill(q == 0, 1.0)
        return rewards - (1 - rewards) * odds
