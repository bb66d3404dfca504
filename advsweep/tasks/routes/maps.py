"""The hidden map of routes: nodes, links of which some are closed, distances, levels of prompts."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advsweep.tasks.parts import fixed_uniform, mix

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

NODES = 64
NODE_SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
NO_STOP = NODES
"""Stands for the stop of prompts that have none."""
MAX_NODES = 8
"""Nodes of the longest right answer; the start is no part of an answer."""

_MATCHINGS = 6
_CLOSED_SHARE = 0.3
BIAS = 1.5
"""How strongly walks prefer nodes that are nearer to their target."""
_UNREACHABLE = 99
KEPT_MAPS = 16
"""Maps in memory; each seed of a sweep may have one of its own."""

LEVELS = 7


@dataclass(frozen=True, eq=False)
class Links:
    """An undirected graph over the nodes."""

    adjacent: Bool[np.ndarray, "nodes nodes"]

    @functools.cached_property
    def distances(self) -> Int[np.ndarray, "nodes nodes"]:
        """Least number of links between two nodes; 99 if there is no path."""
        found = np.full((NODES, NODES), _UNREACHABLE)
        reached = np.eye(NODES, dtype=bool)
        found[reached] = 0
        for distance in range(1, NODES):
            new = (reached.astype(np.int64) @ self.adjacent > 0) & (found == _UNREACHABLE)
            if not new.any():
                break
            found[new] = distance
            reached = new
        return found

    @property
    def is_connected(self) -> bool:
        return bool((self.distances < _UNREACHABLE).all())

    @functools.cached_property
    def neighbours(self) -> Int[np.ndarray, "nodes degree"]:
        """The neighbours of each node in ascending order, then `NODES` as padding."""
        rows = [np.flatnonzero(row) for row in self.adjacent]
        table = np.full((NODES, max(map(len, rows))), NODES)
        for row, neighbours in zip(table, rows, strict=True):
            row[: len(neighbours)] = neighbours
        return table

    @functools.cached_property
    def pull(self) -> Float[np.ndarray, "nodes+1 nodes"]:
        """exp(-1.5 x distance) of each node to each target; 0 for the padding."""
        weights = np.exp(-BIAS * self.distances)
        return np.vstack([weights, np.zeros(NODES)])


@dataclass(frozen=True, eq=False)
class RouteMap:
    """The map and its past.

    Attributes:
        open: the links that answers may use.
        old: these and the closed links: an outdated map, which part of the corpus follows.
    """

    open: Links
    old: Links


@functools.lru_cache(KEPT_MAPS)
def route_map(seed: int = 0) -> RouteMap:
    """Return the map of a seed, the same in every process and with every version of numpy.

    The old map is the union of 6 random perfect matchings of the nodes. Each link is closed with
    probability .3. Maps are drawn until the open links connect all nodes.
    """
    stream = int(mix(seed))  # 0 for the seed 0
    while True:
        places = fixed_uniform(stream, np.arange(_MATCHINGS * NODES)).reshape(_MATCHINGS, NODES)
        pairs = np.argsort(places, axis=1, kind="stable").reshape(-1, 2)
        old = np.zeros((NODES, NODES), dtype=bool)
        old[pairs[:, 0], pairs[:, 1]] = old[pairs[:, 1], pairs[:, 0]] = True
        link = np.arange(NODES * NODES).reshape(NODES, NODES)
        closing = fixed_uniform((stream + 1) % 2**64, np.minimum(link, link.T))
        links = Links(old & (closing >= _CLOSED_SHARE))
        if links.is_connected:
            return RouteMap(links, Links(old))
        stream = (stream + 1_000_003) % 2**64


@dataclass(frozen=True)
class Prompts:
    """Many prompts: start, stop and goal of each.

    Attributes:
        stops: the node that an answer must pass; `NO_STOP` if there is none.
    """

    starts: Int[np.ndarray, " rows"]
    stops: Int[np.ndarray, " rows"]
    goals: Int[np.ndarray, " rows"]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: np.ndarray | slice) -> Prompts:
        return Prompts(self.starts[rows], self.stops[rows], self.goals[rows])

    @property
    def keys(self) -> Int[np.ndarray, " rows"]:
        """One integer per prompt."""
        before: Int[np.ndarray, " rows"] = self.starts * (NODES + 1) + self.stops
        keys: Int[np.ndarray, " rows"] = before * NODES + self.goals
        return keys

    @classmethod
    def of_keys(cls, keys: Int[np.ndarray, " rows"]) -> Prompts:
        """Return the prompts with these keys."""
        before, goals = np.divmod(keys, NODES)
        starts, stops = np.divmod(before, NODES + 1)
        return cls(starts, stops, goals)

    def texts(self) -> list[str]:
        """Return `avb:` or `ab:` of each prompt."""
        symbols = [*NODE_SYMBOLS, ""]
        return [
            f"{symbols[a]}{symbols[v]}{symbols[b]}:"
            for a, v, b in zip(
                self.starts.tolist(), self.stops.tolist(), self.goals.tolist(), strict=True
            )
        ]


@functools.lru_cache(KEPT_MAPS)
def prompts_of_levels(seed: int = 0) -> tuple[Prompts, ...]:
    """Return all prompts of each level on the map of a seed, in the order of their keys.

    Level 0: no stop, distance 2 or 3. Levels 1 to 6: a stop, and 3 to 8 links in the shortest
    way from the start to the stop and on to the goal.
    """
    distances = route_map(seed).open.distances
    a, v, b = (x.ravel() for x in np.indices((NODES, NODES, NODES)))
    total = distances[a, v] + distances[v, b]
    differ = (a != v) & (v != b) & (a != b)
    start, goal = (x.ravel() for x in np.indices((NODES, NODES)))
    near = (distances[start, goal] == 2) | (distances[start, goal] == 3)
    levels = [Prompts(start[near], np.full(near.sum(), NO_STOP), goal[near])]
    for length in range(3, MAX_NODES + 1):
        rows = differ & (total == length)
        levels.append(Prompts(a[rows], v[rows], b[rows]))
    return tuple(levels)
