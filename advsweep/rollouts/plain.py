"""Plain rollouts: one group per prompt, all of them trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from advsweep.rollouts.base import Collected, RolloutPolicy, RolloutSource


@dataclass(kw_only=True)
class Plain(RolloutPolicy):
    """Draws as many groups as the step asks for and keeps every one."""

    name: ClassVar[str] = "plain"
    keeps_all: ClassVar[bool] = True

    def collect(self, source: RolloutSource, prompts: int) -> Collected:
        return Collected(torch.arange(len(source.draw(prompts))))
