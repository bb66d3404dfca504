"""Plain rollouts: one group per prompt, all of them trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from advsweep.rollouts.base import RolloutPolicy, RolloutSource

if TYPE_CHECKING:
    from jaxtyping import Int


@dataclass(kw_only=True)
class Plain(RolloutPolicy):
    """Draws as many groups as the step asks for and keeps every one."""

    name: ClassVar[str] = "plain"

    def collect(self, source: RolloutSource, prompts: int) -> Int[Tensor, " groups"]:
        return torch.arange(len(source.draw(prompts)))
