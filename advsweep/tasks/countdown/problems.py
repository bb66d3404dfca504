"""Problems of countdown: levels, random expressions, and the parts that share no problem.

A problem's key is its multiset of digits and its target. A hash of the key alone says which
part it belongs to, so pretraining, training and held-out prompts are disjoint whatever the
level, the order of the digits or the seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from advsweep.tasks.countdown.expressions import evaluate, signatures

if TYPE_CHECKING:
    from jaxtyping import Int

    Expressions = tuple[Int[np.ndarray, "rows m"], Int[np.ndarray, "rows m-1"]]

TARGETS = 100


@dataclass(frozen=True)
class Level:
    """A difficulty: how many digits, and the first so many of `OPERATORS` in its making.

    Answers may use every operator at every level.
    """

    numbers: int
    operators: int

    def draw(self, count: int, rng: np.random.Generator) -> Expressions:
        """Random expressions over the digits 1 to 9."""
        numbers = rng.integers(1, 10, (count, self.numbers))
        return numbers, rng.integers(0, self.operators, (count, self.numbers - 1))


LEVELS = (
    Level(2, 3),
    Level(3, 2),
    Level(3, 3),
    Level(4, 2),
    Level(4, 3),
    Level(5, 2),
    Level(5, 3),
)


class Part(Enum):
    """The disjoint parts of all problems; the values are shares in percent."""

    PRETRAINING = range(40)
    TRAIN = range(40, 75)
    HELD_OUT = range(75, 100)


def keys(
    numbers: Int[np.ndarray, "rows m"], targets: Int[np.ndarray, " rows"]
) -> Int[np.ndarray, " rows"]:
    """The problems' keys: equal for the same digits in any order and the same target."""
    packed: Int[np.ndarray, " rows"] = signatures(numbers) * TARGETS + targets
    return packed


def hash_keys(key: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    """A fixed pseudo-random number in 0..99 per key (the finaliser of SplitMix64)."""
    x = key.astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return (x % np.uint64(100)).astype(np.int64)


def belongs(key: Int[np.ndarray, " rows"], part: Part) -> np.ndarray:
    """Which keys lie in a part."""
    hashed = hash_keys(key)
    inside: np.ndarray = (hashed >= part.value.start) & (hashed < part.value.stop)
    return inside


@dataclass(frozen=True)
class Pool:
    """Solvable problems, each with the expression that made it."""

    numbers: Int[np.ndarray, "rows m"]
    operators: Int[np.ndarray, "rows m-1"]
    targets: Int[np.ndarray, " rows"]
    keys: Int[np.ndarray, " rows"]

    def __getitem__(self, rows: np.ndarray | slice) -> Pool:
        return Pool(self.numbers[rows], self.operators[rows], self.targets[rows], self.keys[rows])


def make_pool(level: Level, candidates: int, rng: np.random.Generator) -> Pool:
    """The distinct problems among so many random expressions, in order of appearance."""
    numbers, operators = level.draw(candidates, rng)
    values = evaluate(numbers, operators)
    inside = (values >= 0) & (values < TARGETS)
    numbers, operators, values = numbers[inside], operators[inside], values[inside]
    key = keys(numbers, values)
    first = np.sort(np.unique(key, return_index=True)[1])
    return Pool(numbers, operators, values, key)[first]
