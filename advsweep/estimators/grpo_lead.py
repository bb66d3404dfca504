"""GRPO-LEAD: rewards shaped by length, and weights by how hard a prompt is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from advsweep.components import option
from advsweep.estimators.base import Estimator, GroupBatch, Provenance
from advsweep.estimators.group_stats import Groups, Std, at_least, standardise

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

_SHORTEST = 3
"""How many of a group's shortest responses tell whether it is a group of long ones."""


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

    Departures: none from the authors' code on rewards of 0 and 1. That code gives 0 to a response
    without an answer, and -2 to one that also repeats itself, which such rewards do not tell
    apart. Ours is the mean over fewer than three responses, where a group has no more.
    """

    name: ClassVar[str] = "grpo_lead"
    family: ClassVar[str] = "reshaped"
    formula: ClassVar[str] = "Aᵢ = Âᵢ (w(p) if Âᵢ > 0 else w(1-p)), Âᵢ of length-shaped rewards"
    paper: ClassVar[str] = "GRPO-LEAD (arXiv:2504.09696)"
    equation: ClassVar[str] = "the authors' code; named by A-GRAE (arXiv:2602.05548)"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.RELEASED,)
    needs: ClassVar[frozenset[str]] = frozenset({"lengths"})
    binary_only: ClassVar[bool] = True
    per_group: ClassVar[bool] = True

    alpha: float = option(0.05, ge=0, lt=math.inf, help="α: how much a shorter answer counts")
    wrong: float = option(-1.0, gt=-math.inf, lt=1, help="reward of a wrong answer")
    long_from: float = option(
        4000.0, ge=0, help="tokens above which the three shortest responses make a group long"
    )
    std: Std = option(Std.SAMPLE, help="standard deviation of the shaped rewards: over G or G-1")
    eps: float = option(1e-6, ge=0, help="ε, added to both standard deviations")
    w_min: float = option(0.4, ge=0, lt=math.inf, help="w far above x₀")
    w_max: float = option(1.5, ge=0, lt=math.inf, help="w far below x₀")
    w_mid: float = option(0.75, ge=0, le=1, help="x₀: where w is half-way")
    w_slope: float = option(10.0, ge=0, lt=math.inf, help="k: how steeply w falls")

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        lengths, correct = groups.finite("lengths"), groups.rewards == 1
        bonus = torch.where(
            self._long(groups, lengths), torch.exp(-self.alpha * self._z(lengths, correct)), 1.0
        )
        shaped = Groups(
            GroupBatch(rewards=torch.where(correct, bonus, self.wrong), mask=groups.mask)
        )
        advantages = standardise(shaped.centred, shaped.std(self.std), self.eps)
        return advantages * torch.where(
            advantages > 0, self._weight(groups.mean), self._weight(1 - groups.mean)
        )

    def _z(
        self, lengths: Float[Tensor, "prompts rollouts"], correct: Bool[Tensor, "prompts rollouts"]
    ) -> Float[Tensor, "prompts rollouts"]:
        """Standardised lengths among the right answers of each group."""
        count = correct.sum(dim=1, keepdim=True)
        mean = torch.where(correct, lengths, 0.0).sum(dim=1, keepdim=True) / count.clamp(min=1)
        centred = torch.where(correct, lengths - mean, 0.0)
        norm: Tensor = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
        sigma = torch.where(count > 1, norm / (count - 1).clamp(min=1).sqrt(), 1.0)
        return standardise(centred, sigma, self.eps)

    def _long(
        self, groups: Groups, lengths: Float[Tensor, "prompts rollouts"]
    ) -> Bool[Tensor, "prompts 1"]:
        """Groups whose shortest responses are long on average."""
        shown = lengths if groups.mask is None else torch.where(groups.mask, lengths, math.inf)
        shortest = shown.sort(dim=1).values[:, :_SHORTEST]
        count = groups.count
        few = count.clamp(max=_SHORTEST) if not isinstance(count, int) else min(count, _SHORTEST)
        total = torch.where(shortest.isfinite(), shortest, 0.0).sum(dim=1, keepdim=True)
        return total / at_least(few, 1) > self.long_from

    def _weight(self, rate: Float[Tensor, "prompts 1"]) -> Float[Tensor, "prompts 1"]:
        # 1/(1 + exp(x)) without overflow.
        falling = torch.sigmoid(self.w_slope * (self.w_mid - rate))
        return self.w_min + (self.w_max - self.w_min) * falling
