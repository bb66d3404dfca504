"""What is random in the steps of a run, drawn for many steps at once.

To make a generator takes as long as to draw a thousand numbers. It all follows from the run's
seed and the step, so that a run that goes on needs no state of a generator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from advsweep.backends.randomness import Stream

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_STEPS = 32


class Noise:
    """The random numbers of one run.

    Args:
        group_size: rollouts per prompt (G).
        population: prompts that are trained.
    """

    def __init__(self, seed: int, group_size: int, population: int) -> None:
        self._seed = seed
        self._group_size = group_size
        self._population = population
        self._known: dict[tuple[Stream, int, int], tuple[int, np.ndarray]] = {}

    def uniform(
        self, stream: Stream, step: int, draw: int, groups: int
    ) -> Float[np.ndarray, "groups rollouts"]:
        """Numbers in [0, 1), one for each rollout of a step's draw, float32.

        Args:
            draw: which of the step's, from 0.
        """
        shape = _STEPS, groups, self._group_size
        return self._of_step(
            stream, step, draw, groups, lambda rng: rng.random(shape, dtype=np.float32)
        )

    def places(self, step: int, draw: int, groups: int) -> Int[np.ndarray, " groups"]:
        """Prompts for a step's draw, counted from 0: all of them before any comes again."""
        rounds = -(-groups // self._population)
        prompts = np.tile(np.arange(self._population), (_STEPS, rounds, 1))

        def permuted(rng: np.random.Generator) -> np.ndarray:
            return rng.permuted(prompts, axis=2).reshape(_STEPS, -1)[:, :groups]

        return self._of_step(Stream.PROMPTS, step, draw, groups, permuted)

    def _of_step(
        self,
        stream: Stream,
        step: int,
        draw: int,
        groups: int,
        make: Callable[[np.random.Generator], np.ndarray],
    ) -> np.ndarray:
        block, place = divmod(step, _STEPS)
        key = stream, draw, groups
        known = self._known.get(key)
        if known is None or known[0] != block:
            rng = np.random.default_rng((self._seed, stream, block, draw))
            known = self._known[key] = block, make(rng)
        numbers: np.ndarray = known[1][place]
        return numbers
