"""The rollout policy that measures the values of turns by further rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from advsweep.components import option
from advsweep.rollouts.base import Collected, RolloutPolicy, RolloutSource


@dataclass(kw_only=True)
class Vine(RolloutPolicy):
    """Plain rollouts, and from the state before each of their turns K further ones.

    Their mean reward still to come is the value of the state, for estimators that read
    `turn_values` and for the credit error of any estimator. What stands before a turn is the whole
    episode up to it, so that states of different episodes are one only if all before them is.
    The further rollouts are not trained on. They count in `cost/rollouts`, `cost/tokens` and
    `cost/turns`.

    Source: VinePPO (Kazemnejad et al. 2024, arXiv:2410.01679), sec. 4, with K = 9.

    Departures: K is 4, and a state that several episodes of a step share is measured once.
    """

    name: ClassVar[str] = "vine"
    provides: ClassVar[frozenset[str]] = frozenset({"turn_values"})
    draws_values: ClassVar[bool] = True
    keeps_all: ClassVar[bool] = True

    rollouts: int = option(4, ge=1, help="K, rollouts from each state")
    episodes: int | None = option(
        None, ge=1, help="episodes of each group whose states are measured; null: all"
    )
    every: int = option(
        1, ge=1, help="steps from one measurement to the next; above 1 for the credit error alone"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every > 1:
            # What only some steps have is nothing that an estimator can rest on.
            vars(self)["provides"] = frozenset()

    def collect(self, source: RolloutSource, prompts: int) -> Collected:
        rewards = source.draw(prompts)
        if source.step % self.every == 0:
            source.draw_values(self.episodes or source.group_size, self.rollouts)
        return Collected(torch.arange(len(rewards)))
