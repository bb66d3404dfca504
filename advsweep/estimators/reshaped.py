"""Mean-centred rewards dᵢ = rᵢ - p, reweighted by solve rate or by sign."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import torch

from advsweep.components import option
from advsweep.errors import BatchError
from advsweep.estimators.base import Estimator
from advsweep.estimators.groups import Groups, standardise

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Scale(Enum):
    """What centred rewards are divided by: nothing (mean only), or the group's σ."""

    MEAN = "mean"
    STD = "std"


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
    rates: ClassVar[bool] = True

    alpha: float = option(2.0, ge=1, help="α: the larger, the more weight on hard prompts")
    normalize: bool = option(False, help="C = (1+α)^(1+α) / (4 α^α) instead of 1")

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        peak = (1 + self.alpha) ** (1 + self.alpha) / (4 * self.alpha**self.alpha)
        constant = peak if self.normalize else 1.0
        return groups.centred * (constant * (1 - groups.mean) ** (self.alpha - 1))


@dataclass(kw_only=True)
class AsymGRPO(Estimator):
    """Failures pushed down harder: Aᵢ = dᵢ if dᵢ ≥ 0, else dᵢ / δ, with dᵢ = rᵢ - p.

    Group masses are pq and pq/δ; δ = 1 is `dr_grpo` (`grpo` with `scale=std`). Homogeneous
    groups get 0.
    """

    name: ClassVar[str] = "asym_grpo"
    family: ClassVar[str] = "reshaped"
    formula: ClassVar[str] = "Aᵢ = dᵢ if dᵢ ≥ 0 else dᵢ/δ,  dᵢ = rᵢ - p"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 4.1, 8.2"

    delta: float = option(0.5, gt=0, help="δ: divides the advantages of failures")
    scale: Scale = option(Scale.MEAN, help="std: divide dᵢ by the group's σ first")

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        centred = groups.centred
        if self.scale is Scale.STD:
            centred = standardise(centred, groups.std())
        return torch.where(centred < 0, centred / self.delta, centred)


@dataclass(kw_only=True)
class MaxRL(Estimator):
    """The centred reward by the solve rate: Aᵢ = (rᵢ - p) / p.

    Group masses are q on both sides. Homogeneous groups get 0, so the expected masses are
    q - q^G and vanish with p.
    """

    name: ClassVar[str] = "maxrl"
    family: ClassVar[str] = "reshaped"
    formula: ClassVar[str] = "Aᵢ = (rᵢ - p) / p"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 8.3"
    rates: ClassVar[bool] = True

    def _check_rewards(self, groups: Groups) -> None:
        super()._check_rewards(groups)
        if ((groups.mean == 0) & ~groups.homogeneous).any():
            raise BatchError(
                f"estimator '{self.name}' divides by a prompt's mean reward, which is 0 in a "
                "group of different rewards; shift the rewards so that none is negative"
            )

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        return groups.centred / groups.mean.masked_fill(groups.homogeneous, 1.0)
