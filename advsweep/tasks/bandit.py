"""Bandits: prompts whose answers are a few behaviours with known rewards."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.tasks.base import Floor, Problem, SeededTask, Split, Task, TaskSeed
from advsweep.tasks.generated import choose_levels

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.tasks.base import PerCompletion

__all__ = ["Arms", "Bandit", "BanditTask", "Toy"]


@dataclass(frozen=True, eq=False)
class Arms:
    """P prompts with N behaviours each.

    Attributes:
        rewards: reward of each behaviour.
        logits: logits of the base policy at temperature 1.
        levels: difficulty level of each prompt.
    """

    rewards: Float[np.ndarray, "prompts behaviours"]
    logits: Float[np.ndarray, "prompts behaviours"]
    levels: Int[np.ndarray, " prompts"]

    @functools.cached_property
    def correct(self) -> Bool[np.ndarray, "prompts behaviours"]:
        """The behaviours with their prompt's greatest reward."""
        best: Bool[np.ndarray, "prompts behaviours"]
        best = self.rewards == self.rewards.max(axis=1, keepdims=True)
        return best


class BanditTask(Task):
    """Prompts whose completions are numbers of behaviours, `0` to `N-1`.

    The behaviours with the greatest reward are correct. A table of logits does not generalise to
    prompts that it was not trained on. So the held-out problem of a number has the behaviours of
    the training problem of that number, and evaluations measure what was trained. If only some
    prompts are trained, all prompts are held out.
    """

    @property
    def is_text(self) -> bool:
        return False

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Number of trained prompts, of prompts, and of behaviours; known without the table."""

    @property
    @abstractmethod
    def arms(self) -> Arms:
        """The table."""

    @functools.cached_property
    def train_rows(self) -> Int[np.ndarray, " trained"]:
        """The trained rows of the table in order; by default all."""
        return np.arange(len(self.arms.levels))

    def problems(self, split: Split) -> Sequence[Problem]:
        return self._problems[split]

    def draw(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """Draw every prompt once before any prompt a second time."""
        problems = self._problems[Split.TRAIN]
        rounds = -(-count // len(problems))
        rows = np.concatenate([rng.permutation(len(problems)) for _ in range(rounds)])[:count]
        return [problems[row] for row in rows.tolist()]

    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> PerCompletion:
        correct = self.arms.correct
        rows = [problem.reference["row"] for problem in problems]
        chosen = zip(rows, map(self._numbers.get, completions), strict=True)
        return np.array([a is not None and correct[row, a] for row, a in chosen], dtype=np.float64)

    def answers(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[str | None]:
        return [text if text in self._numbers else None for text in completions]

    def floors(self, split: Split = Split.HELD_OUT) -> Mapping[str, Floor]:
        """Return the exact floor `guess`: uniform behaviours."""
        shares = self.arms.correct.mean(axis=1).tolist()
        rates = {p.id: shares[p.reference["row"]] for p in self.problems(split)}
        return {"guess": Floor("guess", "uniform behaviours", rates)}

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        """The behaviours by the completions that name them."""
        return {str(number): number for number in range(self.arms.rewards.shape[1])}

    @functools.cached_property
    def _problems(self) -> dict[Split, list[Problem]]:
        levels = self.arms.levels.tolist()
        best = self.arms.correct.argmax(axis=1).tolist()
        rows = {Split.TRAIN: self.train_rows.tolist(), Split.HELD_OUT: range(len(levels))}
        problems: dict[Split, list[Problem]] = {}
        for split in Split:
            problems[split] = [
                Problem(
                    id=f"{split.value}/{row}",
                    prompt=f"{row}:",
                    level=levels[row],
                    reference={"row": row, "solution": str(best[row])},
                )
                for row in rows[split]
            ]
        return problems


@dataclass(kw_only=True)
class Bandit(SeededTask, BanditTask):
    """Prompts with N behaviours, of which C are correct and have the level's success rate.

    Logits are normal with standard deviation `spread`. The logits of the correct behaviours are
    then shifted, so that together they have exactly the success rate of their prompt. With C > 1
    and spread > 0 there are many correct modes of different probability, which pass@k and
    diversity measure; with C = 1 there are only levels.

    The correct behaviours are drawn for each prompt, except the first `common`, which are correct
    for every prompt. Where prompts share parameters these carry over from trained to untrained
    levels.
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
    seed: int | TaskSeed = option(
        0,
        ge=0,
        help="draws the logits, and which behaviours are correct; seed: that of the run, so that "
        "each seed has a table of its own",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        count = len(self.rates)
        self.levels = choose_levels(self.levels, count)
        self.train_levels = tuple(sorted(set(self.train_levels)))
        if self.levels[-1] >= count:
            raise ConfigError(
                f"levels: expected at most {count - 1}, the last that rates has a success rate "
                f"for, got {self.levels[-1]}"
            )
        if not set(self.train_levels) <= set(self.levels):
            raise ConfigError(
                f"train_levels: expected some of levels = {list(self.levels)}, got "
                f"{list(self.train_levels)}"
            )
        if not self.common <= self.correct < self.behaviours:
            raise ConfigError(
                f"correct: expected at least common = {self.common} and fewer than behaviours = "
                f"{self.behaviours}, got {self.correct}"
            )

    @functools.cached_property
    def train_rows(self) -> Int[np.ndarray, " trained"]:
        if not self.train_levels:
            return super().train_rows
        return np.flatnonzero(np.isin(self.arms.levels, self.train_levels))

    @property
    def shape(self) -> tuple[int, int, int]:
        trained = len(self.train_levels or self.levels)
        levels = len(self.levels)
        return trained * self.prompts_per_level, levels * self.prompts_per_level, self.behaviours

    @functools.cached_property
    def arms(self) -> Arms:
        drawn = [self._draw_level(level) for level in self.levels]
        rewards, logits = map(np.concatenate, zip(*drawn, strict=True))
        return Arms(rewards, logits, np.repeat(self.levels, self.prompts_per_level))

    def _draw_level(self, level: int) -> tuple[np.ndarray, np.ndarray]:
        """Return rewards and logits of the prompts of a level."""
        # Each level has its own generator, so its prompts do not depend on the other levels.
        rng = np.random.default_rng([self.own_seed, level])
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


@dataclass(kw_only=True)
class Toy(BanditTask):
    """Actions with a reward and an initial probability: one is likely and fair, one rare and best,
    one likely and worthless.

    Source: two-stage view (arXiv:2510.04028), Sec. 3.2 and Alg. 1.

    Departures: the values behind the paper's figures are not in the text we have; these are ours,
    with its order of rewards and probabilities.
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
        # Rewards of only 0 and 1 equal the verdicts.
        return not self.is_binary

    @property
    def rewards_verdicts(self) -> bool:
        return self.is_binary

    def rewards(
        self, completions: Sequence[str], verdicts: PerCompletion, lengths: PerCompletion
    ) -> PerCompletion:
        """Return the reward of each action; a completion that names no action gets 0."""
        actions = [self._numbers.get(text) for text in completions]
        return np.array([0.0 if a is None else self.action_rewards[a] for a in actions])

    @functools.cached_property
    def arms(self) -> Arms:
        return Arms(
            rewards=np.array([self.action_rewards]),
            logits=self.temperature * np.log([self.probabilities]),
            levels=np.zeros(1, dtype=np.int64),
        )
