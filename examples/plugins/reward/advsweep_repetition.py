"""A reward: the share of a completion that repeats itself, to be given a negative weight."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from advsweep.components import option
from advsweep.tasks.rewards import RewardPart


@dataclass(kw_only=True)
class Repetition(RewardPart):
    """The share of n-grams of words that occurred before in the same completion, 0 to 1.

    `task.reward={accuracy: 1, repetition: -0.5}` takes up to half a point from a loop.
    """

    name: ClassVar[str] = "repetition"

    weight: float = option(-1.0, help="what the part is multiplied by in the sum")
    n: int = option(3, ge=1, help="words of an n-gram")

    @property
    def range(self) -> tuple[float, float]:
        return 0.0, 1.0

    def values(self, completions, correct, lengths):
        return np.array([self._share(text.split()) for text in completions])

    def _share(self, words: list[str]) -> float:
        grams = list(self._grams(words))
        return 1 - len(set(grams)) / len(grams) if grams else 0.0

    def _grams(self, words: list[str]) -> Iterator[tuple[str, ...]]:
        return zip(*(words[i:] for i in range(self.n)), strict=False)
