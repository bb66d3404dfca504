"""AAPO: the lead over a reference rollout, on top of GRPO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import option
from advsweep.estimators.baselines import GRPO, Conventions, Preset

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from advsweep.estimators.groups import Groups


@dataclass(kw_only=True)
class AAPO(GRPO):
    """`grpo` and a clipped margin: Aᵢ = (rᵢ - p)/(σ + ε) + clip(rᵢ - rʳᵉᶠᵢ, δ_low, δ_high).

    rʳᵉᶠᵢ is the reward of rollout i of the reference model on the same prompt; the pairing
    is by index alone. Homogeneous groups get the margin, which is all 0 only if every
    rollout does as well as its reference. Advantages do not sum to 0 and are at most
    √(G-1) + max(|δ_low|, δ_high).

    Departures: none by default. `preset=released` takes the sample σ and ε = 1e-4 of the
    authors' code.
    """

    name: ClassVar[str] = "aapo"
    family: ClassVar[str] = "reference margin"
    formula: ClassVar[str] = "Aᵢ = (rᵢ - p)/(σ + ε) + clip(rᵢ - rʳᵉᶠᵢ, δ_low, δ_high)"
    paper: ClassVar[str] = "AAPO (arXiv:2505.14264)"
    equation: ClassVar[str] = "Eq. 5"
    needs: ClassVar[frozenset[str]] = frozenset({"ref_rewards"})
    conventions: ClassVar[Mapping[Preset, Conventions]] = {
        **GRPO.conventions,
        # The authors' code is built on TRL and standardises as TRL does.
        Preset.RELEASED: GRPO.conventions[Preset.TRL],
    }

    delta_low: float = option(-0.2, le=0, help="δ_low: smallest margin; -inf: not clipped")
    delta_high: float = option(0.28, ge=0, help="δ_high: largest margin; inf: not clipped")

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        margin = groups.rewards - groups.finite("ref_rewards")
        clipped = margin.clamp_(min=self.delta_low, max=self.delta_high)
        return super()._advantages(groups, info) + clipped
