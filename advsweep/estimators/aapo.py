"""AAPO: the lead over a reference rollout, on top of GRPO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import option
from advsweep.estimators.base import Provenance
from advsweep.estimators.baselines import GRPO, Conventions, Preset
from advsweep.estimators.reshaped import Scale

if TYPE_CHECKING:
    from advsweep.estimators.batch import PerRollout
    from advsweep.estimators.group_stats import Groups


class AAPOPreset(Enum):
    """Whose conventions: the paper's, a framework's, or one of the two released scripts'."""

    PAPER = "paper"
    TRL = "trl"
    VERL = "verl"
    RELEASED = "released"
    RELEASED_1_5B = "released_1_5b"
    RELEASED_7B = "released_7b"


@dataclass(kw_only=True)
class AAPO(GRPO):
    """`grpo` and a clipped margin: Aᵢ = (rᵢ - p)/(σ + ε) + clip(rᵢ - rʳᵉᶠᵢ, δ_low, δ_high).

    rʳᵉᶠᵢ is the reward of rollout i of the reference model on the same prompt; the pairing
    is by index alone. Homogeneous groups get the margin, which is all 0 only if every
    rollout does as well as its reference. Advantages do not sum to 0 and are at most
    √(G-1) + max(|δ_low|, δ_high).

    Released code: two scripts with two advantages. That of the 1.5B models has the sample σ and
    ε = 1e-4; `preset=released` is the same. That of the 7B and Llama models divides by no σ,
    against Eq. 5: Aᵢ = rᵢ - p + clip(...), so |A| ≤ 1 - 1/G + max(|δ_low|, δ_high) on rewards of
    0 and 1.

    Departures: none by default.
    """

    name: ClassVar[str] = "aapo"
    family: ClassVar[str] = "reference margin"
    formula: ClassVar[str] = "Aᵢ = (rᵢ - p)/(σ + ε) + clip(rᵢ - rʳᵉᶠᵢ, δ_low, δ_high)"
    paper: ClassVar[str] = "AAPO (arXiv:2505.14264)"
    equation: ClassVar[str] = "Eq. 5"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
    released_options: ClassVar[tuple[str, ...]] = ("preset=released_1_5b", "preset=released_7b")
    needs: ClassVar[frozenset[str]] = frozenset({"ref_rewards"})
    conventions: ClassVar[Mapping[Enum, Conventions]] = {
        AAPOPreset.PAPER: GRPO.conventions[Preset.PAPER],
        AAPOPreset.TRL: GRPO.conventions[Preset.TRL],
        AAPOPreset.VERL: GRPO.conventions[Preset.VERL],
        # The authors' code is built on TRL and standardises as TRL does.
        AAPOPreset.RELEASED: GRPO.conventions[Preset.TRL],
        AAPOPreset.RELEASED_1_5B: GRPO.conventions[Preset.TRL],
        AAPOPreset.RELEASED_7B: GRPO.conventions[Preset.TRL],
    }

    preset: AAPOPreset = option(  # type: ignore[assignment]
        AAPOPreset.PAPER,
        identity=False,
        help="sets scale, std, eps and zero_variance where they are not given",
    )
    scale: Scale | None = option(
        None,
        absent="std",
        help="mean: rᵢ - p is not divided by σ; null: the preset's (mean for released_7b)",
    )
    delta_low: float = option(-0.2, le=0, help="δ_low: smallest margin; -inf: not clipped")
    delta_high: float = option(0.28, ge=0, help="δ_high: largest margin; inf: not clipped")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale is None:
            unscaled = self.preset is AAPOPreset.RELEASED_7B
            self.scale = Scale.MEAN if unscaled else Scale.STD

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        margin = groups.rewards - groups.finite("ref_rewards")
        clipped = margin.clamp_(min=self.delta_low, max=self.delta_high)
        if self.scale is Scale.MEAN:
            return groups.centred + clipped
        return super()._advantages(groups, info) + clipped
