"""The median rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from advsweep.components import option
from advsweep.sweep.stopping.base import Comparison, Trial


@dataclass(kw_only=True)
class MedianRule(Comparison):
    """Stops a run whose configuration is worse than the median of the others at its step.

    Golovin et al., "Google Vizier" (2017), sec. 3.2.

    Departures: both sides are means over the last `window` steps, where Vizier compares the
    best value so far with running averages from the start; replicates count as one.
    """

    name: ClassVar[str] = "median"

    grace: int = option(50, ge=1, help="steps that every run may do")
    every: int = option(25, ge=1, help="steps between two judgements")
    minimum: int = option(4, ge=1, help="other configurations that a judgement takes")

    @property
    def least_configurations(self) -> int:
        return self.minimum + 1

    def is_due(self, step: int) -> bool:
        return step >= self.grace and (step - self.grace) % self.every == 0

    def judge(self, own: Trial, others: Sequence[Trial], step: int) -> str | None:
        compared = self.compared(own, others, step)
        if compared is None:
            return None
        value, rest = compared
        if len(rest) < self.minimum:
            return None
        median = float(np.median(rest))
        if not self.is_better(median, than=value):
            return None
        return (
            f"{self.where(step)} is {value:.3f}, worse than {median:.3f}, the median of "
            f"{len(rest)} other configurations"
        )
