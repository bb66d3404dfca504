"""A-GRAE: advantages made asymmetric between signs and between prompts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from advsweep.components import option
from advsweep.errors import BatchError
from advsweep.estimators.base import Provenance
from advsweep.estimators.group_stats import Groups
from advsweep.estimators.registry import ESTIMATORS
from advsweep.estimators.wrappers import Wrapper

if TYPE_CHECKING:
    from advsweep.estimators.batch import PerGroup, PerRollout

_RELEASED_EPS = 1e-6


class Parts(Enum):
    """Which of the two steps are taken: both, or one alone."""

    FULL = "full"
    SAMPLE = "sample"
    GROUP = "group"


@dataclass(kw_only=True)
class AGRAE(Wrapper):
    """Difficulty-aware weights, and successes held back while few are found.

    ω is the mean reward of the whole batch, p a prompt's solve rate, Âᵢ the base's advantage.
    Sample level: Âᵢ becomes Âᵢ (ω/(2√p) + (1-ω)/(2√(1-p))), unless p is 0 or 1.
    Group level: Âᵢ becomes Âᵢ min(1, ω/α) where it is positive.

    Group masses on a mixed group, base `grpo`: m_F = (ω√q + (1-ω)√p)/2 and
    m_S = m_F min(1, ω/α). With ω = 0 no success is reinforced.

    Released code: the easy term is divided by 1 - √p + ε. ω is the mean of row means, and p is
    always the row mean. A base with presets takes the sample σ and ε = 1e-6. As published, the
    scripts never reach this formula and train `grpo` with that σ and ε.

    Departures: none by default.
    """

    name: ClassVar[str] = "a_grae"
    family: ClassVar[str] = "asymmetric"
    formula: ClassVar[str] = "Aᵢ = Âᵢ (ω/(2√p) + (1-ω)/(2√(1-p))) · (min(1, ω/α) if Âᵢ > 0)"
    paper: ClassVar[str] = "A-GRAE (arXiv:2602.05548)"
    equation: ClassVar[str] = "Eq. 11-13"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
    released_options: ClassVar[tuple[str, ...]] = ("released=true",)
    uses: ClassVar[frozenset[str]] = frozenset({"solve_rates"})

    alpha: float = option(1.0, gt=0, le=1, help="α: mean reward from which successes count in full")
    parts: Parts = option(Parts.FULL, help="both steps, or the sample or group level alone")
    released: bool = option(False, help="the formula of the authors' code")

    def _base_spec(self, spec: str | dict[str, Any]) -> str | dict[str, Any]:
        given = {"name": spec} if isinstance(spec, str) else spec
        name = str(given.get("name"))
        has_presets = name in ESTIMATORS and "preset" in ESTIMATORS.get(name).__dataclass_fields__
        return {"preset": "released", **given} if self.released and has_presets else given

    def _check_rewards(self, groups: Groups) -> None:
        super()._check_rewards(groups)
        given = groups.batch.solve_rates is not None and not self.released
        low, high = groups.mean_range
        if given:
            low, high = torch.stack(torch.aminmax(self._solve_rates(groups))).tolist()
        if not (low >= 0 and high <= 1):
            what = "solve_rates" if given else "a prompt's mean reward as its solve rate"
            raise BatchError(
                f"estimator '{self.name}' needs {what} in [0, 1], got {low:g} to {high:g}; "
                "rescale the rewards, or pass solve_rates"
            )

    def _solve_rates(self, groups: Groups) -> PerGroup:
        given = groups.batch.solve_rates
        if given is None or self.released:
            return groups.mean
        return given.to(groups.rewards)[:, None]

    def _omega(self, groups: Groups) -> float:
        if self.released:
            return groups.group_mean(groups.mean)
        return groups.rollout_mean(groups.rewards)

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        omega = self._omega(groups)
        if not 0 <= omega <= 1:
            raise BatchError(
                f"estimator '{self.name}' needs a mean reward in [0, 1] over the batch, got "
                f"{omega:g}; rescale the rewards"
            )
        info["omega"] = omega
        advantages = self._inner._advantages(groups, info)
        if self.parts is not Parts.GROUP:
            advantages = advantages * self._difficulty_weight(self._solve_rates(groups), omega)
        share = min(1.0, omega / self.alpha)
        if self.parts is not Parts.SAMPLE and share < 1:
            advantages = torch.sub(advantages, advantages.relu(), alpha=1 - share)
        return advantages

    def _difficulty_weight(self, p: PerGroup, omega: float) -> PerGroup:
        if self.released:
            root = p.sqrt()
            hard = (root + _RELEASED_EPS).reciprocal()
            easy = (1 - root + _RELEASED_EPS).reciprocal()
            skipped = (p == 0) | (p == 1)
            return (torch.lerp(easy, hard, omega) / 2).masked_fill(skipped, 1.0)
        weight = torch.lerp((1 - p).rsqrt(), p.rsqrt(), omega) / 2
        # Nothing but p = 0 and p = 1 makes a weight infinite or undefined.
        return weight.nan_to_num(nan=1.0, posinf=1.0, neginf=1.0)
