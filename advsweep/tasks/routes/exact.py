"""The exact floors of routes, from all simple paths of the open map."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import perm
from typing import TYPE_CHECKING

import numpy as np

from advsweep.tasks.routes.maps import KEPT_MAPS, MAX_NODES, NODES, route_map

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class PathTables:
    """Sums over the simple paths of 1 to 8 open links between two nodes.

    The axis `stop` is a node that the path passes; its last entry stands for no such condition,
    as `NO_STOP` does in prompts.

    Attributes:
        guess: probability that a uniform well-formed answer is one of these paths.
        walker: probability that the random walker takes one of these paths.
        count: number of these paths.
    """

    guess: Float[np.ndarray, "start stop goal"]
    walker: Float[np.ndarray, "start stop goal"]
    count: Float[np.ndarray, "start stop goal"]


@functools.lru_cache(KEPT_MAPS)
def path_tables(seed: int = 0) -> PathTables:
    """Enumerate the paths on the map of a seed, one million, in about a second.

    A uniform well-formed answer has 1 to 8 nodes, each number with probability 1/8; the last
    node is the goal, and the others are a uniform sequence of different nodes, not the start.
    The walker knows the open links: its next node is uniform among the neighbours that it has
    not visited. It stops at the goal, after 8 nodes, or where all neighbours are visited.
    """
    shape = (NODES, NODES + 1, NODES)
    guess, walker, count = (np.zeros(shape) for _ in range(3))
    links = route_map(seed).open
    bits = np.uint64(1) << np.arange(NODES, dtype=np.uint64)
    # The padding of the table of neighbours counts as visited.
    blocked = np.append(bits, ~np.uint64(0))
    paths = np.arange(NODES)[:, None]
    visited, chance = bits, np.ones(NODES)
    for length in range(1, MAX_NODES + 1):
        choices = links.neighbours[paths[:, -1]]
        free = (visited[:, None] & blocked[choices]) == 0
        rows, columns = np.nonzero(free)
        ends = choices[rows, columns]
        chance = chance[rows] / free.sum(axis=1)[rows]
        visited = visited[rows] | bits[ends]
        paths = np.concatenate([paths[rows], ends[:, None]], axis=1)
        here = np.zeros(shape)
        for place in range(1, length + 1):
            passed = paths[:, place] if place < length else np.full(len(paths), NODES)
            cells = (paths[:, 0] * (NODES + 1) + passed) * NODES + ends
            here += np.bincount(cells, minlength=here.size).reshape(shape)
            walker += np.bincount(cells, chance, minlength=here.size).reshape(shape)
        count += here
        guess += here / (MAX_NODES * perm(NODES - 2, length - 1))
    return PathTables(guess, walker, count)
