"""Asynchronous successive halving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import option
from advsweep.sweep.stopping.base import Comparison, Trial


@dataclass(kw_only=True)
class Asha(Comparison):
    """Lets the best 1/`factor` of the configurations pass each rung.

    Rungs are at `grace`, `grace · factor`, `grace · factor²`, ... steps. Of the n
    configurations that have got to a rung so far, the best max(1, ⌊n/factor⌋) go on; while
    n < `factor` all do. Li et al., "A System for Massively Parallel Hyperparameter Tuning"
    (2020), arXiv:1810.05934.

    Departures: a run is stopped at a rung rather than paused until it may go on, so that
    early ones pass that later ones would have held; replicates count as one configuration.
    """

    name: ClassVar[str] = "asha"

    grace: int = option(25, ge=1, help="steps to the first rung")
    factor: int = option(3, ge=2, help="one of so many passes a rung; the next is so much later")

    @property
    def least_configurations(self) -> int:
        return self.factor

    def is_due(self, step: int) -> bool:
        rung = self.grace
        while rung < step:
            rung *= self.factor
        return rung == step

    def judge(self, own: Trial, others: Sequence[Trial], step: int) -> str | None:
        compared = self.compared(own, others, step)
        if compared is None:
            return None
        value, rest = compared
        n = len(rest) + 1
        if n < self.factor:
            return None
        passing = n // self.factor
        ahead = sum(self.is_better(other, than=value) for other in rest)
        if ahead < passing:
            return None
        return (
            f"{self.where(step)} is {value:.3f}, number {ahead + 1} of {n} configurations; "
            f"the best {passing} go on"
        )
