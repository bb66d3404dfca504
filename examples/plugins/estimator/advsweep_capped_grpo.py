"""An estimator: GRPO with capped advantages."""

from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import option
from advsweep.estimators import Estimator, Provenance


@dataclass(kw_only=True)
class CappedGRPO(Estimator):
    """GRPO's advantage, cut off at ±c: Aᵢ = clip((rᵢ - p)/(σ + ε), -c, c).

    A single success among G rollouts gets √(G - 1) in GRPO: 2.6 for 8 rollouts and 7.9 for 64.
    The cap keeps one lucky rollout from making the largest update of a step. `estimator/capped`
    is the share of rollouts that it cuts.
    """

    name: ClassVar[str] = "capped_grpo"
    family: ClassVar[str] = "plug-ins"
    formula: ClassVar[str] = "Aᵢ = clip((rᵢ - p)/(σ + ε), -c, c)"
    paper: ClassVar[str] = "ours"
    equation: ClassVar[str] = "none"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.OURS,)
    departures: ClassVar[str] = "no paper defines it; cap and ε are our choice."

    cap: float = option(2.0, gt=0, help="c, the largest size of an advantage")
    epsilon: float = option(1e-6, gt=0, help="ε")

    def _advantages(self, groups, info):
        values = groups.centred / (groups.std() + self.epsilon)
        info["capped"] = groups.rollout_mean(values.abs() > self.cap)
        return values.clamp(-self.cap, self.cap)
