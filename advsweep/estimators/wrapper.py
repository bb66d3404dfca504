"""Estimators that reshape the advantages of another one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from advsweep.components import option
from advsweep.estimators.base import Estimator, Provenance
from advsweep.estimators.registry import ESTIMATORS

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from advsweep.estimators.group_stats import Groups


@dataclass(kw_only=True)
class Wrapper(Estimator):
    """Base of those that take the advantages of `base` further.

    Whatever the base asks of a batch is asked of it here, and its memory is this one's.
    """

    base: str | dict[str, Any] | Estimator = option(
        "grpo", help="the estimator whose advantages are reshaped: a name or a mapping"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = self.base
        if not isinstance(inner, Estimator):
            inner = ESTIMATORS.build(self._base_spec(inner), where="base")
        self.base = self._inner = inner
        self._narrow(
            needs=self.needs | inner.needs,
            uses=self.uses | inner.uses,
            minimum_group=max(self.minimum_group, inner.minimum_group),
            group_multiple=math.lcm(self.group_multiple, inner.group_multiple),
            exchangeable=self.exchangeable and inner.exchangeable,
            binary_only=self.binary_only or inner.binary_only,
            verifier_free=inner.verifier_free,
            stateful=inner.stateful,
            per_group=self.per_group and inner.per_group,
        )

    def _base_spec(self, spec: str | dict[str, Any]) -> str | dict[str, Any]:
        """What the base is built from, given what the user asked for."""
        return spec

    def _check_rewards(self, groups: Groups) -> None:
        super()._check_rewards(groups)
        self._inner._check_rewards(groups)

    def _keep(self, groups: Groups) -> Bool[Tensor, "prompts rollouts"]:
        return self._inner._keep(groups)

    def state_dict(self) -> dict[str, Any]:
        return {"base": self._inner.state_dict()} if self.stateful else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._check_state(state, expected=("base",) if self.stateful else ())
        if self.stateful:
            self._inner.load_state_dict(state["base"])

    def reset(self) -> None:
        self._inner.reset()


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
