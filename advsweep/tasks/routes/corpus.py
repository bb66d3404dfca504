"""The corpus from which a base model learns the map, with mistakes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from advsweep.tasks.base import CorpusShares
from advsweep.tasks.parts import Part, belongs
from advsweep.tasks.routes.maps import (
    KEPT_MAPS,
    LEVELS,
    MAX_NODES,
    NO_STOP,
    NODES,
    Prompts,
    prompts_of_levels,
    route_map,
)
from advsweep.tasks.routes.walks import walk, write

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
    count: int, rng: np.random.Generator, shares: CorpusShares, map_seed: int = 0
) -> tuple[list[str], list[str]]:
    """Return prompts of all levels and their answers, which reach their targets with 8 nodes.

    Prompts are uniform over the levels, and each gets one walk. Where it does not arrive, prompt
    and level are drawn again. So hard levels are rarer, about half as frequent as easy ones, and
    the base model is worse at them.
    """
    known, pools = route_map(map_seed), _prompt_keys(map_seed)
    kinds = rng.choice(len(_Answer), size=count, p=[*shares, 1 - sum(shares)])
    keys = np.empty(count, dtype=np.int64)
    nodes = np.empty((count, MAX_NODES), dtype=np.int64)
    missing = np.arange(count)
    while len(missing):
        keys[missing] = _draw_prompts(pools, rng.integers(LEVELS, size=len(missing)), rng)
        targets = Prompts.of_keys(keys)
        _redirect(targets, missing[kinds[missing] == _Answer.RANDOM.value], rng)
        left = []
        for is_old, links in ((False, known.open), (True, known.old)):
            rows = missing[(kinds[missing] == _Answer.OLD_MAP.value) == is_old]
            walks, arrived = walk(links, targets[rows], rng.random((len(rows), MAX_NODES)))
            nodes[rows[arrived]] = walks[arrived]
            left.append(rows[~arrived])
        missing = np.concatenate(left)
    return Prompts.of_keys(keys).texts(), write(nodes)


@functools.lru_cache(KEPT_MAPS)
def _prompt_keys(map_seed: int) -> tuple[Int[np.ndarray, " prompts"], ...]:
    """The keys of the prompts of each level that are for pretraining."""
    keys = [prompts.keys for prompts in prompts_of_levels(map_seed)]
    return tuple(level[belongs(level, Part.PRETRAINING)] for level in keys)


def _draw_prompts(
    pools: Sequence[Int[np.ndarray, " prompts"]],
    levels: Int[np.ndarray, " rows"],
    rng: np.random.Generator,
) -> Int[np.ndarray, " rows"]:
    """Return the keys of random prompts of these levels.

    Args:
        pools: the keys of each level's prompts.
    """
    sizes = np.array([len(keys) for keys in pools])
    starts = np.cumsum(sizes) - sizes
    rows = starts[levels] + rng.integers(sizes[levels])
    keys: Int[np.ndarray, " rows"] = np.concatenate(pools)[rows]
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
