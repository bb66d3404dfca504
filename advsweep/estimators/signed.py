"""Reinforcement of successes, of failures, or of both with weights of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from advsweep.components import option
from advsweep.estimators.base import Estimator, Provenance

if TYPE_CHECKING:
    from advsweep.estimators.batch import FlagPerRollout, PerRollout
    from advsweep.estimators.group_stats import Groups

_DROP_HELP = "leave rollouts of weight 0 out of the update and of its averages"


@dataclass(kw_only=True)
class PSR(Estimator):
    """Positive sample reinforcement: Aᵢ = 1 for successes, 0 for failures.

    Masses are p and 0, homogeneous groups included: it is `reinforce` on rewards of 0 and 1.

    Departures: none from its authors' released code, with which A-GRAE's agrees; the papers
    only name it. Both codes drop the failures from the batch, as `drop_zero_rows` does.
    """

    name: ClassVar[str] = "psr"
    family: ClassVar[str] = "signed"
    formula: ClassVar[str] = "Aᵢ = 1 if rᵢ = 1 else 0"
    paper: ClassVar[str] = "PSR (Zhu et al. 2025, arXiv:2506.01347)"
    equation: ClassVar[str] = "the authors' code; A-GRAE (arXiv:2602.05548), by name"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.RELEASED,)
    per_group: ClassVar[bool] = True
    binary_only: ClassVar[bool] = True

    drop_zero_rows: bool = option(False, help=_DROP_HELP)

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.rewards.clone()

    def _keep(self, groups: Groups) -> FlagPerRollout:
        scorable = super()._keep(groups)
        return scorable & (groups.rewards == 1) if self.drop_zero_rows else scorable


@dataclass(kw_only=True)
class NSR(Estimator):
    """Negative sample reinforcement: Aᵢ = 0 for successes, -1 for failures.

    Masses are 0 and q, homogeneous groups included: it is `psr` less 1.

    Departures: none from its authors' released code, with which A-GRAE's agrees; the papers
    only name it. Both codes drop the successes from the batch, as `drop_zero_rows` does.
    """

    name: ClassVar[str] = "nsr"
    family: ClassVar[str] = "signed"
    formula: ClassVar[str] = "Aᵢ = 0 if rᵢ = 1 else -1"
    paper: ClassVar[str] = "NSR (Zhu et al. 2025, arXiv:2506.01347)"
    equation: ClassVar[str] = "the authors' code; Two-stage view (arXiv:2510.04028), by name"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.RELEASED,)
    per_group: ClassVar[bool] = True
    binary_only: ClassVar[bool] = True

    drop_zero_rows: bool = option(False, help=_DROP_HELP)

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.rewards - 1

    def _keep(self, groups: Groups) -> FlagPerRollout:
        scorable = super()._keep(groups)
        return scorable & (groups.rewards == 0) if self.drop_zero_rows else scorable


@dataclass(kw_only=True)
class WReinforce(Estimator):
    """Failures in full and successes a little: Aᵢ = λ for successes, -1 for failures.

    Masses are λp and q, homogeneous groups included: it is λ `psr` + `nsr`.

    Departures: none from its authors' released code, with which A-GRAE's agrees; the papers
    only name it.
    """

    name: ClassVar[str] = "w_reinforce"
    family: ClassVar[str] = "signed"
    formula: ClassVar[str] = "Aᵢ = λ if rᵢ = 1 else -1"
    paper: ClassVar[str] = "W-REINFORCE (Zhu et al. 2025, arXiv:2506.01347)"
    equation: ClassVar[str] = "the authors' code; A-GRAE (arXiv:2602.05548), by name"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.RELEASED,)
    per_group: ClassVar[bool] = True
    binary_only: ClassVar[bool] = True

    lam: float = option(0.1, gt=0, le=1, help="λ: advantage of a success")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        failure = groups.rewards - 1
        return torch.add(failure, groups.rewards, alpha=self.lam)
