"""Estimators that take groups out of the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import option
from advsweep.estimators.base import Provenance
from advsweep.estimators.wrapper import Wrapper

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from advsweep.estimators.group_stats import Groups


@dataclass(kw_only=True)
class FilterDrop(Wrapper):
    """The base's advantages, with collapsed groups out of the update and its averages.

    A group has collapsed if the σ of its rewards is below ε_acr; none of its rollouts is
    kept. Nothing is drawn instead, so the share of rollouts that are used is 1 - ACR.

    Departures: the paper names it without a formula; ε_acr is its collapse threshold. The base
    is a choice here, the paper has `grpo`.
    """

    name: ClassVar[str] = "filter_drop"
    family: ClassVar[str] = "selection"
    formula: ClassVar[str] = "Aᵢ = Âᵢ of the base; groups with σ < ε_acr are dropped"
    paper: ClassVar[str] = "AVSPO (arXiv:2605.21125)"
    equation: ClassVar[str] = "by name, as a baseline"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.OURS,)
    per_group: ClassVar[bool] = True

    eps_acr: float = option(1e-6, gt=0, help="groups with a smaller σ are dropped")

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        return self._inner._advantages(groups, info)

    def _keep(self, groups: Groups) -> Bool[Tensor, "prompts rollouts"]:
        return super()._keep(groups) & (groups.std() >= self.eps_acr)
