"""REINFORCE and the estimators that only subtract or divide by a group statistic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from advsweep.components import option
from advsweep.estimators.base import Estimator
from advsweep.estimators.batch import Groups, Std, at_least, standardise

if TYPE_CHECKING:
    from advsweep.estimators.batch import PerRollout


# What a homogeneous group gets: exactly 0, or whatever the formula rounds to.
ZeroVariance = Literal["exact", "formula"]

# Whose conventions: the papers', a framework's, or those of released code. That is A-GRAE's code,
# except where an estimator's own authors released theirs.
Preset = Literal["paper", "trl", "verl", "released"]

# GPG's divisor of the centred reward: 1, or the group's σ.
FNorm = Literal["1", "sigma"]


class _Baseline(Estimator):
    per_group: ClassVar[bool] = True


class Reinforce(_Baseline):
    """The reward itself, without a baseline (Williams, 1992): Aᵢ = rᵢ.

    Not centred: a group of successes gets 1, not 0.

    Departures: none.
    """

    name: ClassVar[str] = "reinforce"

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.rewards.clone()


class DrGRPO(_Baseline):
    """The reward less its group's mean: Aᵢ = rᵢ - p.

    Homogeneous groups get 0.

    Departures: none; FADE's body calls this GRPO, its appendix the form with σ.
    """

    name: ClassVar[str] = "dr_grpo"

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.centred.clone()


class MinBaseline(_Baseline):
    """The reward less the smallest one of its group: Aᵢ = rᵢ - min r.

    A mixed binary group gets its rewards, of masses p and 0; homogeneous groups get 0.

    Departures: none; the paper has it in words.
    """

    name: ClassVar[str] = "min_baseline"

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.rewards - groups.low


class ReLU(_Baseline):
    """The positive part of the centred reward: Aᵢ = max(0, rᵢ - p).

    Group masses are pq and 0. Homogeneous groups get 0.

    Departures: none.
    """

    name: ClassVar[str] = "relu"

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.centred.clamp(min=0)


@dataclass(kw_only=True)
class GPG(_Baseline):
    """The centred reward over a constant or σ: Aᵢ = (rᵢ - p) / F.

    With F = 1 it is `dr_grpo`, with F = σ `grpo`; what sets GPG apart is its loss.
    Homogeneous groups get 0.

    Departures: the emphasis of AAPO's text on the responses usable for a gradient estimate has no
    formula there and is left out.
    """

    name: ClassVar[str] = "gpg"

    f_norm: FNorm = option("1", help="F: 1, or the group's σ")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        if self.f_norm == "sigma":
            return standardise(groups.centred, groups.std())
        return groups.centred.clone()


class RLOO(_Baseline):
    """The reward less the mean of the group's other rewards: Aᵢ = G/(G-1) · (rᵢ - p).

    Its expected masses are pq without the factor 1-1/G of `dr_grpo`. Homogeneous groups
    get 0, and so does the only scorable rollout of a group.

    Departures: none.
    """

    name: ClassVar[str] = "rloo"
    minimum_group: ClassVar[int] = 2

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.centred * (groups.count / at_least(groups.count - 1, 1))


@dataclass(kw_only=True)
class GRPO(_Baseline):
    """The reward standardised within its group: Aᵢ = (rᵢ - p) / (σ + ε).

    On a binary group successes get √(q/p), failures -√(p/q). Homogeneous groups get 0.

    Departures: none by default; of the papers AVSPO alone has an ε, without a number.
    With `preset=trl` the numbers are TRL 1.16's to the last bit, noise on homogeneous groups
    of 0.9 included; with `preset=verl` they are verl 0.9's to rounding. verl and A-GRAE's
    code give a group of one its reward, which is not taken over.
    """

    name: ClassVar[str] = "grpo"
    conventions: ClassVar[dict[str, Mapping[str, Any]]] = {
        "paper": {"std": Std.POPULATION, "eps": 0.0, "zero_variance": "exact"},
        "trl": {"std": Std.SAMPLE, "eps": 1e-4, "zero_variance": "formula"},
        "verl": {"std": Std.SAMPLE, "eps": 1e-6, "zero_variance": "formula"},
        "released": {"std": Std.SAMPLE, "eps": 1e-6, "zero_variance": "formula"},
    }

    preset: Preset = option(
        "paper",
        identity=False,
        help="sets std, eps and zero_variance where they are not given",
    )
    std: Std | None = option(None, help="standard deviation over G or G-1; null: the preset's")
    eps: float | None = option(None, ge=0, help="ε, added to σ; null: the preset's (0 for paper)")
    zero_variance: ZeroVariance | None = option(
        None, help="homogeneous groups: exactly 0, or the bare formula; null: the preset's"
    )
    tolerance: float = option(0.0, ge=0, help="max - min of a homogeneous group (exact)")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fill(self.conventions[self.preset])

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        assert self.std is not None
        assert self.eps is not None
        if self.zero_variance == "formula":
            return _standardise_as_frameworks(groups, self.std, self.eps)
        advantages = standardise(groups.centred, groups.std(self.std), self.eps)
        if self.tolerance > 0:
            advantages = torch.where(groups.high - groups.low <= self.tolerance, 0.0, advantages)
        return advantages


def _standardise_as_frameworks(groups: Groups, std: Std, eps: float) -> PerRollout:
    # TRL 1.16's operations one by one (GRPOTrainer._generate_and_score_completions and its
    # nanstd): another order of the same sums rounds differently, and torch.std does.
    rewards, mask = groups.rewards, groups.mask
    if mask is not None:
        rewards = torch.where(mask, rewards, math.nan)
    mean = torch.nanmean(rewards, dim=1, keepdim=True)
    centred = rewards - mean
    variance = torch.nanmean(centred**2, dim=1, keepdim=True)
    if std is Std.SAMPLE:
        count = (~torch.isnan(rewards)).sum(dim=1, keepdim=True, dtype=rewards.dtype)
        variance = variance * (count / (count - 1).clamp(min=1))
    return standardise(centred, torch.sqrt(variance), eps)
