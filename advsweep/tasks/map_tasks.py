"""What the tasks on the hidden map share: the map of a seed, its problems, and their parts."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from advsweep.components import Plain, option
from advsweep.tasks.base import Floor, Problem, Split, TaskSeed
from advsweep.tasks.generated import LEVELS, GeneratedTask, Part, belongs, fixed_uniform
from advsweep.tasks.route_maps import (
    KEPT_MAPS,
    Prompts,
    prompts_of_levels,
    route_map,
    solvable,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Float, Int

    from advsweep.tasks.route_maps import Walks

    Ints = Int[np.ndarray, " rows"]

# Streams from here on order the problems; the keys of prompts name the streams below it.
_ORDER_STREAM = 1 << 40


@dataclass(kw_only=True)
class MapTask(GeneratedTask):
    """A task on a map of 64 nodes, whose prompts ask for a way past a stop and to a goal."""

    seed: int | TaskSeed = option(
        0,
        ge=0,
        help="chooses the problems within their fixed parts; seed: that of the run, which draws "
        "the map as well, so that each seed has a map and problems of its own",
    )

    def for_seed(self, seed: int) -> Self:
        task = super().for_seed(seed)
        if task is not self:
            task.map_seed = seed
        return task

    @property
    def max_prompt_length(self) -> int:
        return len("avb:")

    def identity(self) -> Plain:
        return super().identity() | self._own_map()

    def _own_map(self) -> Plain:
        return {"map_seed": self.map_seed} if self.map_seed else {}

    def _write(self, walks: Walks) -> list[str]:
        """Return the completions that walk these ways."""
        return write(walks)

    def _floors_of(
        self,
        problems: Sequence[Problem],
        rates: Mapping[str, Float[np.ndarray, " problems"]],
        meanings: Mapping[str, str],
    ) -> dict[str, Floor]:
        """Return floors by name, of the rate at each problem and what the answerer does."""
        ids = [problem.id for problem in problems]
        return {
            name: Floor(name, meanings[name], dict(zip(ids, of_floor.tolist(), strict=True)))
            for name, of_floor in rates.items()
        }

    def _prompts(self, problems: Sequence[Problem]) -> Prompts:
        """Return the start, stop and goal of problems."""
        return Prompts.of_keys(np.array([problem.reference["key"] for problem in problems]))

    @functools.cached_property
    def _train(self) -> list[list[Problem]]:
        """The training problems by trained level."""
        levels = self.train_levels or self.levels
        return [self._choose(level, Part.TRAIN, self.train_per_level) for level in levels]

    @functools.cached_property
    def _held_out(self) -> list[list[Problem]]:
        """The held-out problems by level; a report needs them alone."""
        return [
            self._choose(level, Part.HELD_OUT, self.held_out_per_level) for level in self.levels
        ]

    def by_level(self, split: Split) -> list[list[Problem]]:
        return self._train if split is Split.TRAIN else self._held_out

    def _choose(self, level: int, part: Part, count: int) -> list[Problem]:
        """Return the first problems of a level and a part in the order of the seed."""
        prompts = prompts_of_levels(self.map_seed)[level]
        links = route_map(self.map_seed).open
        prompts = prompts[belongs(prompts.keys, part)]
        places = fixed_uniform(_ORDER_STREAM + self.own_seed, prompts.keys)
        prompts = prompts[np.argsort(places, kind="stable")]
        problems: list[Problem] = []
        start = 0
        while start < len(prompts) and len(problems) < count:
            # A little more than what is missing, as most prompts pass.
            some = prompts[start : start + (count - len(problems)) * 5 // 4 + 8]
            start += len(some)
            passed, solutions = solvable(links, some)
            passing = some[passed]
            problems += [
                Problem(f"{level}/{text[:-1]}", text, level, {"key": key, "solution": solution})
                for text, key, solution in zip(
                    passing.texts(),
                    passing.keys.tolist(),
                    self._write(solutions[passed]),
                    strict=True,
                )
            ]
        return problems[:count]


@functools.lru_cache(KEPT_MAPS)
def pretraining_keys(map_seed: int) -> tuple[Ints, Ints]:
    """Return the keys of prompts for pretraining, level by level, and the size of each level."""
    levels = [prompts.keys for prompts in prompts_of_levels(map_seed)]
    keys = [level[belongs(level, Part.PRETRAINING)] for level in levels]
    return np.concatenate(keys), np.array([len(level) for level in keys])


def pretraining_prompts(count: int, rng: np.random.Generator, map_seed: int) -> Prompts:
    """Draw prompts for pretraining, uniform over the levels and within each."""
    pool, sizes = pretraining_keys(map_seed)
    starts = np.cumsum(sizes) - sizes
    levels = rng.integers(LEVELS, size=count)
    return Prompts.of_keys(pool[starts[levels] + rng.integers(sizes[levels])])
