"""The control experiments that break a symmetry of group-relative advantages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from advsweep.components import option
from advsweep.estimators.base import Provenance
from advsweep.estimators.wrapper import Wrapper

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from advsweep.estimators.group_stats import Groups


@dataclass(kw_only=True)
class PositiveDominant(Wrapper):
    """Positive advantages scaled up: Aᵢ = β Âᵢ where Âᵢ > 0, Âᵢ elsewhere.

    Group masses are β√(pq) and √(pq) on base `grpo`, so a mixed group's advantages sum to
    more than 0. Homogeneous groups get what the base gives them.

    Departures: the base is a choice here; the paper has `grpo`.
    """

    name: ClassVar[str] = "positive_dominant"
    family: ClassVar[str] = "control experiments"
    formula: ClassVar[str] = "Aᵢ = β Âᵢ if Âᵢ > 0 else Âᵢ, Âᵢ of the base"
    paper: ClassVar[str] = "A-GRAE (arXiv:2602.05548)"
    equation: ClassVar[str] = "Table 1a"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
    per_group: ClassVar[bool] = True

    beta: float = option(10.0, gt=1, lt=math.inf, help="β: multiplies positive advantages")

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        return _scale_positive(self._inner._advantages(groups, info), self.beta)


@dataclass(kw_only=True)
class NegativeDominant(Wrapper):
    """Positive advantages scaled down: Aᵢ = Âᵢ/β where Âᵢ > 0, Âᵢ elsewhere.

    Group masses are √(pq)/β and √(pq) on base `grpo`, so a mixed group's advantages sum to
    less than 0. Homogeneous groups get what the base gives them.

    Departures: the base is a choice here; the paper has `grpo`.
    """

    name: ClassVar[str] = "negative_dominant"
    family: ClassVar[str] = "control experiments"
    formula: ClassVar[str] = "Aᵢ = Âᵢ/β if Âᵢ > 0 else Âᵢ, Âᵢ of the base"
    paper: ClassVar[str] = "A-GRAE (arXiv:2602.05548)"
    equation: ClassVar[str] = "Table 1a"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
    per_group: ClassVar[bool] = True

    beta: float = option(10.0, gt=1, help="β: divides positive advantages")

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        return _scale_positive(self._inner._advantages(groups, info), 1 / self.beta)


def _scale_positive(advantages: Tensor, factor: float) -> Tensor:
    return torch.add(advantages, advantages.relu(), alpha=factor - 1)


@dataclass(kw_only=True)
class HardFocused(Wrapper):
    """Advantages scaled up on hard prompts: Aᵢ = γ Âᵢ/√p, and Âᵢ where p is 0 or 1.

    Group masses are γ√q on both sides on base `grpo`; with γ = 1/2 the magnitudes of a
    group sum to G√(1-p). It is the sample level of `a_grae` at ω = 1 then.

    Departures: the base is a choice here; the paper has `grpo`.
    """

    name: ClassVar[str] = "hard_focused"
    family: ClassVar[str] = "control experiments"
    formula: ClassVar[str] = "Aᵢ = γ Âᵢ/√p, Âᵢ of the base"
    paper: ClassVar[str] = "A-GRAE (arXiv:2602.05548)"
    equation: ClassVar[str] = "Table 1b"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
    per_group: ClassVar[bool] = True
    rates: ClassVar[bool] = True

    gamma: float = option(0.5, gt=0, lt=math.inf, help="γ: scales all advantages of mixed groups")

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        weight = _inverse_root(groups.mean, groups.mean, self.gamma)
        return self._inner._advantages(groups, info) * weight


@dataclass(kw_only=True)
class EasyFocused(Wrapper):
    """Advantages scaled up on easy prompts: Aᵢ = γ Âᵢ/√(1-p), and Âᵢ where p is 0 or 1.

    Group masses are γ√p on both sides on base `grpo`; with γ = 1/2 the magnitudes of a
    group sum to G√p. It is the sample level of `a_grae` at ω = 0 then.

    Departures: the base is a choice here; the paper has `grpo`.
    """

    name: ClassVar[str] = "easy_focused"
    family: ClassVar[str] = "control experiments"
    formula: ClassVar[str] = "Aᵢ = γ Âᵢ/√(1-p), Âᵢ of the base"
    paper: ClassVar[str] = "A-GRAE (arXiv:2602.05548)"
    equation: ClassVar[str] = "Table 1b"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
    per_group: ClassVar[bool] = True
    rates: ClassVar[bool] = True

    gamma: float = option(0.5, gt=0, lt=math.inf, help="γ: scales all advantages of mixed groups")

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        weight = _inverse_root(1 - groups.mean, groups.mean, self.gamma)
        return self._inner._advantages(groups, info) * weight


def _inverse_root(
    rate: Float[Tensor, "prompts 1"], p: Float[Tensor, "prompts 1"], gamma: float
) -> Float[Tensor, "prompts 1"]:
    """γ/√rate; 1 where p is 0 or 1."""
    return (gamma * rate.rsqrt()).masked_fill((p == 0) | (p == 1), 1.0)
