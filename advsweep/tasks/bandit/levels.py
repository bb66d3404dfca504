"""Bandits with difficulty levels: how often, and in how many ways, prompts are solved."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.tasks.bandit.base import Arms, BanditTask

if TYPE_CHECKING:
    from jaxtyping import Int


@dataclass(kw_only=True)
class Bandit(BanditTask):
    """Prompts with N behaviours, of which C are correct and have the level's success rate.

    Logits within the correct and within the wrong behaviours are normal with deviation
    `spread`; the correct ones are then shifted, so that together they have exactly the success
    rate of their prompt. C > 1 and spread > 0 give many correct modes of different
    probability, which is what pass@k and diversity tell of; C = 1 gives levels alone.

    Which behaviours are correct is drawn for each prompt anew, but for the first `common`, which
    are so everywhere: over a map that prompts share they carry over, from the levels that are
    trained to the others.
    """

    name: ClassVar[str] = "bandit"

    rates: tuple[float, ...] = option(
        (0.9, 0.75, 0.5, 0.3, 0.15, 0.05, 0.02),
        gt=0,
        lt=1,
        help="success rate of the base policy at each level",
    )
    levels: tuple[int, ...] = option(
        (0, 1, 2, 3, 4, 5, 6), ge=0, help="difficulty levels in use, counted from 0"
    )
    train_levels: tuple[int, ...] = option(
        (), ge=0, help="those of them that are trained; none: all. Held out are all of them"
    )
    prompts_per_level: int = option(8, ge=1, help="prompts of each level")
    behaviours: int = option(64, ge=2, help="N, behaviours of each prompt")
    correct: int = option(8, ge=1, help="C, how many of them are correct")
    common: int = option(0, ge=0, help="how many of these are correct for every prompt")
    spread: float = option(1.0, ge=0, help="standard deviation of the logits on either side")
    ability: float = option(
        0.0, help="of the base policy: log-odds added to the success rates of all levels"
    )
    jitter: float = option(
        0.0, ge=0, help="standard deviation of a level's success rates, in log-odds"
    )
    seed: int = option(0, ge=0, help="draws the logits, and which behaviours are correct")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.levels:
            raise ConfigError(f"levels: expected some of 0 to {len(self.rates) - 1}, got none")
        self.levels = tuple(sorted(set(self.levels)))
        if self.levels[-1] >= len(self.rates):
            raise ConfigError(
                f"levels: expected at most {len(self.rates) - 1}, the last that rates has a "
                f"success rate for, got {self.levels[-1]}"
            )
        self.train_levels = tuple(sorted(set(self.train_levels)))
        if unknown := set(self.train_levels) - set(self.levels):
            raise ConfigError(
                f"train_levels: expected some of levels = {list(self.levels)}, got {min(unknown)}"
            )
        if self.correct >= self.behaviours:
            raise ConfigError(
                f"correct: expected fewer than behaviours = {self.behaviours}, got {self.correct}"
            )
        if self.common > self.correct:
            raise ConfigError(
                f"common: expected at most correct = {self.correct}, got {self.common}"
            )

    @functools.cached_property
    def train_rows(self) -> Int[np.ndarray, " trained"]:
        if not self.train_levels:
            return super().train_rows
        return np.flatnonzero(np.isin(self.arms.levels, self.train_levels))

    @property
    def shape(self) -> tuple[int, int, int]:
        trained, levels = len(self.train_levels or self.levels), len(self.levels)
        return trained * self.prompts_per_level, levels * self.prompts_per_level, self.behaviours

    def _make_arms(self) -> Arms:
        # Each level has a generator of its own: its prompts are the same beside any others.
        drawn = [self._draw_level(level) for level in self.levels]
        return Arms(
            rewards=np.concatenate([rewards for rewards, _ in drawn]),
            logits=np.concatenate([logits for _, logits in drawn]),
            levels=np.repeat(self.levels, self.prompts_per_level),
        )

    def _draw_level(self, level: int) -> tuple[np.ndarray, np.ndarray]:
        """Rewards and logits of the prompts of a level."""
        rng = np.random.default_rng([self.seed, level])
        shape = self.prompts_per_level, self.behaviours
        rewards = np.tile(np.arange(self.behaviours) < self.correct, (shape[0], 1))
        rewards[:, self.common :] = rng.permuted(rewards[:, self.common :], axis=1)
        logits = self.spread * rng.standard_normal(shape)
        rate = self.rates[level]
        scatter = self.jitter * rng.standard_normal(shape[0])
        log_odds = np.log(rate / (1 - rate)) + self.ability + scatter
        weights = np.exp(logits)
        masses = (weights * rewards).sum(axis=1), (weights * ~rewards).sum(axis=1)
        shift = log_odds - np.log(masses[0] / masses[1])
        return rewards.astype(np.float64), logits + np.where(rewards, shift[:, None], 0.0)
