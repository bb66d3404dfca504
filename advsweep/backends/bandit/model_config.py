"""The model of a bandit: a logit for each behaviour, or a map that prompts share.

Imports no torch, so that listing models stays fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import Component, option
from advsweep.errors import ConfigError


@dataclass(kw_only=True)
class Table(Component):
    """Offsets that are added to the base policy's logits: a table, or a product of low rank.

    With rank 0 each prompt has its own offsets. With rank r the offsets are F W: the rows of F
    are fixed unit vectors, one per prompt, and W is trained. An update that raises a behaviour
    for one prompt then raises it for prompts with similar features, correct there or not, so
    solve rates and pass@k can fall.
    """

    name: ClassVar[str] = "table"

    rank: int = option(
        0, ge=0, help="r of the map that prompts share, 2 or more; 0: none is shared"
    )
    overlap: float = option(
        0.5, ge=0, le=1, help="mean cosine between the features of two prompts, of a shared map"
    )
    seed: int = option(0, ge=0, help="draws the features, of a shared map")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank == 1:
            raise ConfigError("rank: expected 0 or at least 2, got 1: all prompts would be one")
