"""The options of the bandit backend."""

from __future__ import annotations

from dataclasses import dataclass

from advsweep.backends.options import StepOptions
from advsweep.components import option


@dataclass(kw_only=True)
class BanditOptions(StepOptions):
    """What a step of the bandit backend measures, and how many runs train together."""

    metrics_every: int = option(
        1,
        ge=1,
        identity=False,
        help="steps between all metrics; between them reward/*, collapse/*, cost/* and time/*",
    )
    exact_every: int = option(
        10, ge=0, identity=False, help="steps between exact quantities, as exact/*; 0: none"
    )
    exact_k: tuple[int, ...] = option(
        (1, 8, 64), ge=1, identity=False, help="the k of the exact pass@k"
    )

    stack: int = option(
        64, ge=1, identity=False, help="runs of a sweep that are trained as one tensor, at most"
    )
