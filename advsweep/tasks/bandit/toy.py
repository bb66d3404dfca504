"""The toy of the two-stage view: one softmax over a few actions with fixed rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.tasks.bandit.base import Arms, BanditTask

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(kw_only=True)
class Toy(BanditTask):
    """Actions with a reward and a first probability each: by default likely and fair, rare and
    best, likely and worthless.

    Source: two-stage view (arXiv:2510.04028), Sec. 3.2 and Alg. 1.

    Departures: the values behind the paper's figures are not stated; these are ours, with its
    order of rewards and probabilities.
    """

    name: ClassVar[str] = "toy"

    action_rewards: tuple[float, ...] = option((0.5, 1.0, 0.0), help="reward of each action")
    probabilities: tuple[float, ...] = option(
        (0.5, 0.1, 0.4), gt=0, lt=1, help="of each action before training; they add up to 1"
    )
    temperature: float = option(
        1.0, gt=0, help="sampling temperature at which actions have these probabilities"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.probabilities) != len(self.action_rewards):
            raise ConfigError(
                f"probabilities: expected one for each of {len(self.action_rewards)} actions of "
                f"action_rewards, got {len(self.probabilities)}"
            )
        if len(set(self.action_rewards)) < 2:
            raise ConfigError("action_rewards: expected at least two different rewards")
        if not math.isclose(total := sum(self.probabilities), 1, abs_tol=1e-6):
            raise ConfigError(f"probabilities: expected a sum of 1, got {total:g}")

    @property
    def shape(self) -> tuple[int, int, int]:
        return 1, 1, len(self.action_rewards)

    @property
    def reward_range(self) -> tuple[float, float]:
        return min(self.action_rewards), max(self.action_rewards)

    @property
    def is_binary(self) -> bool:
        return set(self.action_rewards) == {0.0, 1.0}

    @property
    def is_shaped(self) -> bool:
        # Rewards of 0 and 1 alone are the verdicts.
        return not self.is_binary

    def rewards(
        self,
        completions: Sequence[str],
        outcomes: Float[np.ndarray, " completions"],
        lengths: Float[np.ndarray, " completions"],
    ) -> Float[np.ndarray, " completions"]:
        """The action's reward; that of no action is 0."""
        actions = [self._read(text) for text in completions]
        return np.array([0.0 if a is None else self.action_rewards[a] for a in actions])

    def _make_arms(self) -> Arms:
        return Arms(
            rewards=np.array([self.action_rewards]),
            logits=self.temperature * np.log([self.probabilities]),
            levels=np.zeros(1, dtype=np.int64),
        )
