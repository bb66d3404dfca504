"""The random numbers of a bandit's training."""

from __future__ import annotations

import numpy as np

from advsweep.backends.randomness import Stream

# Steps whose numbers are drawn at once: making a generator takes as long as 1,000 numbers.
_STEPS = 32


class RandomDraws:
    """The random numbers of one run, drawn for many steps at once.

    They depend on the seed and the step alone, so a resumed run needs no generator state.

    Args:
        seed: of the order of prompts.
        rollout_seed: of everything else.
        group_size: rollouts drawn per prompt.
        population: number of prompts in training.
    """

    def __init__(self, seed: int, rollout_seed: int, group_size: int, population: int) -> None:
        self._seed = seed
        self._rollout_seed = rollout_seed
        self._group_size = group_size
        self._population = population
        # The newest block of each stream, number of the draw and number of groups.
        self._newest: dict[tuple[Stream, int, int], tuple[int, np.ndarray]] = {}

    def of_step(self, stream: Stream, step: int, draw: int, groups: int) -> np.ndarray:
        """Return the numbers of a step's draw: of `Stream.PROMPTS` its prompts `[groups]`.

        These count from 0, and no prompt repeats before all have come. Of other streams the
        numbers are in [0, 1), one for each rollout, float32 `[groups, rollouts]`.

        Args:
            draw: number of the draw in the step, from 0.
        """
        block, row = divmod(step, _STEPS)
        key = (stream, draw, groups)
        newest = self._newest.get(key)
        if newest is None or newest[0] != block:
            newest = (block, self._draw_block(stream, block, draw, groups))
            self._newest[key] = newest
        numbers: np.ndarray = newest[1][row]
        return numbers

    def _draw_block(self, stream: Stream, block: int, draw: int, groups: int) -> np.ndarray:
        seed = self._seed if stream is Stream.PROMPTS else self._rollout_seed
        rng = np.random.default_rng((seed, stream, block, draw))
        if stream is not Stream.PROMPTS:
            return rng.random((_STEPS, groups, self._group_size), dtype=np.float32)
        rounds = -(-groups // self._population)
        prompts = np.tile(np.arange(self._population), (_STEPS, rounds, 1))
        return rng.permuted(prompts, axis=2).reshape(_STEPS, -1)[:, :groups]
