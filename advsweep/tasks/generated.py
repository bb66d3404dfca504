"""What generated tasks share: options, levels, and disjoint parts of their problems.

The hash of a key alone decides the part of a problem. So prompts for pretraining, training and
evaluation are disjoint for every level and seed, and a part never changes when options change.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.tasks.base import Problem, SeededTask, Split, SymbolTask, TaskSeed
from advsweep.tasks.rewards import RewardedTask

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, UInt64

    AnyInt = int | Int[np.ndarray, "*shape"] | UInt64[np.ndarray, "*shape"]


class Part(Enum):
    """The disjoint parts of all problems; the values are shares in percent."""

    PRETRAINING = range(40)
    TRAIN = range(40, 75)
    HELD_OUT = range(75, 100)


def mix(x: AnyInt) -> UInt64[np.ndarray, "*shape"]:
    """Return a fixed pseudo-random 64-bit number per integer.

    Source: the finaliser of SplitMix64 (Steele, Lea and Flood 2014, Fig. 16).
    """
    z: UInt64[np.ndarray, "*shape"] = np.asarray(x).astype(np.uint64)
    # numpy warns of the overflow of a single number, though not of an array's.
    with np.errstate(over="ignore"):
        z = np.asarray((z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9))
        z = np.asarray((z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB))
    return np.asarray(z ^ (z >> np.uint64(31)))


def belongs(key: Int[np.ndarray, " rows"], part: Part) -> Bool[np.ndarray, " rows"]:
    """Flag the keys that lie in a part."""
    percent = mix(key) % np.uint64(100)
    inside: Bool[np.ndarray, " rows"] = (percent >= part.value.start) & (percent < part.value.stop)
    return inside


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def fixed_uniform(stream: AnyInt, index: AnyInt) -> Float[np.ndarray, "*shape"]:
    """Return numbers in [0, 1) that are the same with every version of numpy.

    `numpy.random.Generator` may change what it draws between versions.

    Args:
        stream: non-negative integers that name independent streams.
        index: the place within the stream, of a shape that broadcasts with `stream`.
    """
    with np.errstate(over="ignore"):
        start = mix(np.asarray(stream).astype(np.uint64) + _GOLDEN)
        place = start + (np.asarray(index).astype(np.uint64) + np.uint64(1)) * _GOLDEN
    drawn: Float[np.ndarray, "*shape"] = (mix(place) >> np.uint64(11)) * 2.0**-53
    return drawn


def choose_levels(levels: Sequence[int], known: int) -> tuple[int, ...]:
    """Return the levels in use, in order.

    Args:
        known: how many levels the task has.

    Raises:
        ConfigError: there are none.
    """
    if not levels:
        raise ConfigError(f"levels: expected some of 0 to {known - 1}, got none")
    return tuple(sorted(set(levels)))


# Levels of a generated task, 0 to 6.
LEVELS = 7


@dataclass(kw_only=True)
class GeneratedTask(RewardedTask, SeededTask, SymbolTask):
    """A task that makes its problems, at seven levels."""

    levels: tuple[int, ...] = option(
        tuple(range(LEVELS)), ge=0, le=LEVELS - 1, help="difficulty levels in use"
    )
    train_levels: tuple[int, ...] | None = option(
        None,
        ge=0,
        le=LEVELS - 1,
        help="those of them that are trained; null: all. Held out are all of them",
    )
    held_out_per_level: int = option(30, ge=1, le=500, help="held-out problems of each level")
    train_per_level: int = option(
        4000, ge=1, help="training problems of each level, fewer where there are fewer"
    )
    seed: int | TaskSeed = option(
        0,
        ge=0,
        help="chooses the problems within their fixed parts; seed: that of the run, so that each "
        "seed has problems of its own",
    )
    reward: str | dict[str, Any] = option(
        "accuracy",
        absent={"accuracy": {"weight": 1.0, "delimiter": ""}},
        help="what training rewards: a part, or parts with their weights",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.levels = choose_levels(self.levels, LEVELS)
        if self.train_levels is not None:
            chosen = tuple(sorted(set(self.train_levels)))
            if not chosen or not set(chosen) <= set(self.levels):
                raise ConfigError(
                    f"train_levels: expected null or some of levels = {list(self.levels)}, got "
                    f"{list(chosen)}"
                )
            self.train_levels = None if chosen == self.levels else chosen

    @abstractmethod
    def by_level(self, split: Split) -> list[list[Problem]]:
        """Return the problems of a split, level by level; training problems of trained levels."""

    def problems(self, split: Split) -> Sequence[Problem]:
        return [problem for level in self.by_level(split) for problem in level]

    def draw(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """Draw training problems, uniform over the trained levels and within each."""
        pools = self.by_level(Split.TRAIN)
        levels = rng.integers(len(pools), size=count)
        rows = rng.integers(np.array([len(pool) for pool in pools])[levels])
        return [pools[i][row] for i, row in zip(levels.tolist(), rows.tolist(), strict=True)]
