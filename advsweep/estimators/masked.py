"""Estimators that keep the advantages of one sign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from advsweep.estimators.base import Provenance
from advsweep.estimators.wrapper import Wrapper

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from advsweep.estimators.groups import Groups


@dataclass(kw_only=True)
class GRPON(Wrapper):
    """Negative advantages alone: Aᵢ = min(Âᵢ, 0), Âᵢ being the base's.

    Group masses are 0 and √(pq) on base `grpo`. The zeroed rollouts stay in the update:
    they count in its average and keep their KL and entropy terms.

    Departures: the base is a choice here; the paper has `grpo`.
    """

    name: ClassVar[str] = "grpo_n"
    family: ClassVar[str] = "masked"
    formula: ClassVar[str] = "Aᵢ = min(Âᵢ, 0), Âᵢ of the base"
    paper: ClassVar[str] = "Two-stage view (arXiv:2510.04028)"
    equation: ClassVar[str] = "App. B.5"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
    per_group: ClassVar[bool] = True

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        return self._inner._advantages(groups, info).clamp(max=0)
