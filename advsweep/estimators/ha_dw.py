"""HA-DW: weights by how a prompt's solve rate compares with the recent past."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import option
from advsweep.errors import BatchError
from advsweep.estimators.base import StatefulEstimator
from advsweep.estimators.groups import Groups, standardise
from advsweep.estimators.reshaped import Scale

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

# Its exponential is far from overflow in float32.
_LARGEST_GAP = 50


class Moves(Enum):
    """Whether C moves after the advantages of a step, or before them."""

    AFTER = "after"
    BEFORE = "before"


@dataclass(frozen=True)
class _Memory:
    """C is None until a mean reward is seen, unless it is given."""

    c: float | None


@dataclass(kw_only=True)
class HADW(StatefulEstimator[_Memory]):
    """Hardness-aware weights: Aᵢ = Âᵢ λ exp(-sgn(Âᵢ) (p - C)), Âᵢ of `dr_grpo`.

    C is a running mean reward, so that on prompts easier than of late successes count less
    and failures more. Group masses are λ e^-(p-C) pq and λ e^(p-C) pq. Homogeneous groups
    get 0. Logged: `c`, the C of this step.

    Departures: the paper gives neither λ nor how C starts and moves; all four are ours. C
    starts as the first batch's mean reward and, after each step, moves towards the batch's
    by `rate`. The reward in the exponent is read as the group's mean; the paper prints the
    failures' mass without the factor that its own formula gives it.
    """

    name: ClassVar[str] = "ha_dw"
    family: ClassVar[str] = "scheduled"
    formula: ClassVar[str] = "Aᵢ = Âᵢ λ exp(-sgn(Âᵢ) (p - C)),  Âᵢ = rᵢ - p, C a running mean"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 8.10; Yang et al. (arXiv:2601.08521)"

    lam: float = option(1.0, gt=0, lt=math.inf, help="λ: scales all advantages (not given there)")
    c0: float | None = option(
        None,
        gt=-math.inf,
        lt=math.inf,
        help="C of the first step; null: its mean reward (not given there)",
    )
    rate: float = option(
        0.1, ge=0, le=1, help="how far C moves towards a batch's mean reward (not given there)"
    )
    moves: Moves = option(
        Moves.AFTER, help="whether C moves after a step's advantages or before (not given there)"
    )
    scale: Scale = option(Scale.MEAN, help="std: Âᵢ divided by the group's σ, as in grpo")

    def _fresh_memory(self) -> _Memory:
        return _Memory(c=self.c0)

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        mean_reward = groups.rollout_mean(groups.rewards)
        old = mean_reward if self._memory.c is None else self._memory.c
        moved = old + self.rate * (mean_reward - old)
        c = info["c"] = moved if self.moves is Moves.BEFORE else old
        low, high = groups.mean_range
        if max(high - c, c - low) > _LARGEST_GAP:
            raise BatchError(
                f"estimator '{self.name}' weighs by the exponential of p - C and needs it within "
                f"{_LARGEST_GAP}, got mean rewards p of {low:g} to {high:g} at C = {c:g}; "
                "rescale the rewards"
            )
        self._memory = _Memory(c=moved)

        base = groups.centred
        if self.scale is Scale.STD:
            base = standardise(base, groups.std())
        weight = (groups.mean - c).exp_()
        success, failure = base.clamp(min=0) / weight, base.clamp(max=0) * weight
        return success.add_(failure).mul_(self.lam)
