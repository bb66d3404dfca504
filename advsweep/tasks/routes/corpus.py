"""The corpus from which a base model learns the map, with mistakes."""

from __future__ import annotations

import functools
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from advsweep.tasks.base import CorpusShares
from advsweep.tasks.parts import Part, belongs
from advsweep.tasks.routes.maps import (
    LEVELS,
    MAX_NODES,
    NO_STOP,
    NODES,
    Prompts,
    prompts_of_levels,
    route_map,
)
from advsweep.tasks.routes.walks import ATTEMPTS, walk, write

if TYPE_CHECKING:
    from jaxtyping import Int


class _Answer(Enum):
    """How an answer of the corpus relates to its prompt."""

    RANDOM = 0
    """A route to another stop and goal."""
    OLD_MAP = 1
    """A route that may use closed links."""
    RIGHT = 2


def corpus(
    count: int, rng: np.random.Generator, shares: CorpusShares
) -> tuple[list[str], list[str]]:
    """Return prompts, uniform over all levels, and their answers.

    Answers are random walks that reach their targets with at most 8 nodes. After 24 walks that
    do not, another prompt of the level takes the place of the prompt.
    """
    levels = rng.integers(LEVELS, size=count)
    kinds = rng.choice(len(_Answer), size=count, p=[*shares, 1 - sum(shares)])
    keys = np.empty(count, dtype=np.int64)
    nodes = np.empty((count, MAX_NODES), dtype=np.int64)
    missing = np.arange(count)
    while len(missing):
        keys[missing] = _draw_prompts(levels[missing], rng)
        targets = Prompts.of_keys(keys)
        random = missing[kinds[missing] == _Answer.RANDOM.value]
        _redirect(targets, random, rng)
        for _ in range(ATTEMPTS):
            left = []
            for is_old in (False, True):
                rows = missing[(kinds[missing] == _Answer.OLD_MAP.value) == is_old]
                links = route_map().old if is_old else route_map().open
                walks, arrived = walk(links, targets[rows], rng.random((len(rows), MAX_NODES)))
                nodes[rows[arrived]] = walks[arrived]
                left.append(rows[~arrived])
            missing = np.concatenate(left)
            if not len(missing):
                break
    return Prompts.of_keys(keys).texts(), write(nodes)


@functools.cache
def _prompt_keys() -> tuple[Int[np.ndarray, " prompts"], ...]:
    """The keys of the prompts of each level that are for pretraining."""
    keys = [prompts.keys for prompts in prompts_of_levels()]
    return tuple(level[belongs(level, Part.PRETRAINING)] for level in keys)


def _draw_prompts(
    levels: Int[np.ndarray, " rows"], rng: np.random.Generator
) -> Int[np.ndarray, " rows"]:
    """Return the keys of random prompts of these levels."""
    sizes = np.array([len(keys) for keys in _prompt_keys()])
    starts = np.cumsum(sizes) - sizes
    rows = starts[levels] + rng.integers(sizes[levels])
    keys: Int[np.ndarray, " rows"] = np.concatenate(_prompt_keys())[rows]
    return keys


def _redirect(prompts: Prompts, rows: Int[np.ndarray, " some"], rng: np.random.Generator) -> None:
    """Replace the stops and goals of some prompts by random nodes, in place.

    Prompts without a stop stay so; start, stop and goal are different nodes.
    """
    places = rng.random((len(rows), NODES))
    places[np.arange(len(rows)), prompts.starts[rows]] = 2.0
    chosen = np.argpartition(places, 1, axis=1)
    prompts.goals[rows] = chosen[:, 0]
    stops = prompts.stops[rows]
    prompts.stops[rows] = np.where(stops == NO_STOP, NO_STOP, chosen[:, 1])
