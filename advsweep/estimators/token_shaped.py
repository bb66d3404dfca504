"""Estimators that give every token an advantage of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from advsweep.components import option
from advsweep.estimators.base import Provenance
from advsweep.estimators.wrappers import Wrapper

if TYPE_CHECKING:
    from advsweep.estimators.batch import PerToken
    from advsweep.estimators.group_stats import Groups


@dataclass(kw_only=True)
class EntropyShaped(Wrapper):
    """Advantages raised at uncertain tokens: Aᵢₜ = Âᵢ + min(α Hᵢₜ, |Âᵢ|/κ).

    Hᵢₜ is the exact entropy of the next-token distribution at token t, without gradient, and
    Âᵢ the base's advantage of the rollout. The bonus is never negative: right answers gain most
    at uncertain tokens, and wrong answers lose least there. Since κ > 1, no sign changes, and an
    advantage of 0 stays 0, so collapsed groups stay collapsed. α = 0 is the base.

    Departures: the entropies are those of sampling, at the sampling temperature. The paper takes
    them from the policy in training, which differs from the second minibatch on. The base is a
    choice here; the paper has `grpo` (with α = 0.4) and a critic's advantages (α = 0.1).
    """

    name: ClassVar[str] = "entropy_shaped"
    family: ClassVar[str] = "token level"
    formula: ClassVar[str] = "Aᵢₜ = Âᵢ + min(α Hᵢₜ, |Âᵢ|/κ), Âᵢ of the base"
    paper: ClassVar[str] = "Reasoning with Exploration (arXiv:2506.14758)"
    equation: ClassVar[str] = "entropy-based advantage shaping"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
    needs: ClassVar[frozenset[str]] = frozenset({"lengths", "token_entropies"})
    per_token: ClassVar[bool] = True
    per_group: ClassVar[bool] = True

    alpha: float = option(0.4, ge=0, lt=math.inf, help="α: bonus per nat of entropy")
    kappa: float = option(2.0, gt=1, help="κ: the bonus is at most |Âᵢ|/κ")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerToken:
        # Checked before the base, whose memory advances. Rounding can put the entropy of a certain
        # token below 0.
        entropies = groups.finite("token_entropies").detach().clamp(min=0)
        base = self._inner._advantages(groups, info)[..., None]
        return base + torch.minimum(self.alpha * entropies, base.abs() / self.kappa)
