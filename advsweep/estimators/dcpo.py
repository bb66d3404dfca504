"""DCPO: advantages smoothed over a prompt's visits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from advsweep.estimators.base import Provenance, StatefulEstimator
from advsweep.estimators.group_stats import Groups, Std, standardise

if TYPE_CHECKING:
    from advsweep.estimators.batch import PerGroup, PerRollout

# A smaller spread over a prompt's visits is rounding error of equal rewards.
_NO_SPREAD = 1e-12


class _Visits(NamedTuple):
    """The history of a prompt: number of visits, and mean and variance of its rewards."""

    number: int
    mean: float
    variance: float

    def visited(self, mean: float, variance: float) -> _Visits:
        """After one more visit with this mean and sample variance."""
        before, number = self.number, self.number + 1
        moved = before / number * (mean - self.mean) ** 2
        return _Visits(
            number=number,
            mean=(before * self.mean + mean) / number,
            variance=(before * self.variance + variance + moved) / number,
        )


@dataclass(frozen=True)
class _Memory:
    """By prompt its number of visits, mean and variance."""

    visits: Mapping[str, list[float]] = field(default_factory=dict)


@dataclass(kw_only=True)
class DCPO(StatefulEstimator[_Memory]):
    """Smooth advantage standardisation over all visits of a prompt.

    At a prompt's i-th visit, m and s the mean and sample σ of its rewards now, μᵢ and vᵢ the
    mean and variance over all its visits,

        μᵢ = ((i-1) μᵢ₋₁ + m)/i
        vᵢ = ((i-1) vᵢ₋₁ + s² + ((i-1)/i) (m - μᵢ₋₁)²)/i
        a = (r - m)/s,  b = (r - μᵢ)/√vᵢ, each 0 where its σ is 0
        x = (1 - 1/i) a + b/i,  y = a/i + (1 - 1/i) b

    and A is the smaller of x and y in size, y where they are equal. The first visit is `grpo`
    with the sample σ. A later group of equal rewards is not 0: it says how far the reward is
    from the prompt's own past. The table of visits grows with the number of different prompts
    and is part of every checkpoint. Logged: `visits`, the mean i of a step. The objective of the
    method is `adaptive_clipped`, and `method=dcpo` has both.

    Departures: none from the authors' code on what it meets. Ours are three cases that it does
    not. √vᵢ below 1e-12 counts as 0, so that equal rewards over all visits give exactly 0.
    Groups of one prompt in a batch are visits in their order. A group without a scorable rollout
    is no visit.
    """

    name: ClassVar[str] = "dcpo"
    family: ClassVar[str] = "memory per prompt"
    formula: ClassVar[str] = (
        "Aᵢ = the smaller of two means of (rᵢ - m)/s now and (rᵢ - μ)/√v over all visits"
    )
    paper: ClassVar[str] = "DCPO (arXiv:2509.02333)"
    equation: ClassVar[str] = "the authors' code; named by AVSPO (arXiv:2605.21125)"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.RELEASED,)
    needs: ClassVar[frozenset[str]] = frozenset({"prompt_ids"})

    def _fresh_memory(self) -> _Memory:
        return _Memory()

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        sigma = groups.std(Std.SAMPLE)
        visits = self._visit(groups, sigma)
        info["visits"] = math.fsum(v.number for v in visits) / len(visits)

        table = groups.rewards.new_tensor(visits, dtype=torch.float64)
        number, mean, variance = table.unsqueeze(-1).unbind(dim=1)
        spread = variance.sqrt()
        now = standardise(groups.centred, sigma).double()
        past = (groups.rewards.double() - mean) / spread
        past = torch.where(spread < _NO_SPREAD, 0.0, past)
        share = 1 / number
        x = (1 - share) * now + share * past
        y = share * now + (1 - share) * past
        return torch.where(x.abs() < y.abs(), x, y).to(groups.rewards)

    def _visit(self, groups: Groups, sigma: PerGroup) -> list[_Visits]:
        """Record the groups as visits; return each prompt's history after its visit."""
        prompts = groups.batch.prompt_ids
        assert prompts is not None
        means = groups.mean[:, 0].double().tolist()
        variances = sigma[:, 0].double().square().tolist()
        present = [True] * len(prompts) if groups.mask is None else groups.mask.any(dim=1).tolist()
        known = dict(self._memory.visits)
        visits = []
        for prompt, mean, variance, counts in zip(prompts, means, variances, present, strict=True):
            before = _Visits(*_first(known.get(prompt)))
            after = before.visited(mean, variance)
            visits.append(after)
            if counts:
                known[prompt] = list(after)
        self._memory = _Memory(visits=known)
        return visits


def _first(known: list[float] | None) -> tuple[int, float, float]:
    if known is None:
        return 0, 0.0, 0.0
    number, mean, variance = known
    return int(number), mean, variance
