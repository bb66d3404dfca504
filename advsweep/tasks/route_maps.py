"""The hidden map of routes: links and distances, prompts by level, walks, and exact floors."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import perm
from typing import TYPE_CHECKING

import numpy as np

from advsweep.tasks.generated import fixed_uniform, mix

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    Walks = Int[np.ndarray, "rows nodes"]

NODES = 64
NODE_SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
# Stands for the stop of prompts that have none.
NO_STOP = NODES
# Nodes of the longest right answer; the start is no part of an answer.
MAX_NODES = 8

_MATCHINGS = 6
_CLOSED_SHARE = 0.3
# How strongly walks prefer nodes that are nearer to their target.
BIAS = 1.5
_UNREACHABLE = 99
# Maps in memory; each seed of a sweep may have one of its own.
KEPT_MAPS = 16


@dataclass(frozen=True, eq=False)
class Links:
    """An undirected graph over the nodes."""

    adjacent: Bool[np.ndarray, "nodes nodes"]

    @functools.cached_property
    def distances(self) -> Int[np.ndarray, "nodes nodes"]:
        """Least number of links between two nodes; 99 if there is no path."""
        distances = np.full((NODES, NODES), _UNREACHABLE)
        reached = np.eye(NODES, dtype=bool)
        distances[reached] = 0
        for distance in range(1, NODES):
            new = (reached.astype(np.int64) @ self.adjacent > 0) & (distances == _UNREACHABLE)
            if not new.any():
                break
            distances[new] = distance
            reached = new
        return distances

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
        if (links.distances < _UNREACHABLE).all():
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
            for a, v, b in np.column_stack([self.starts, self.stops, self.goals]).tolist()
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


# Walks on which a prompt is judged.
ATTEMPTS = 24
# Prompts with fewer right answers among these walks are dropped.
MINIMUM_RIGHT = 2

# Fills the places of a walk past its end.
_PAST = NODES


def walk(
    links: Links, prompts: Prompts, uniform: Float[np.ndarray, "rows steps"]
) -> tuple[Walks, Bool[np.ndarray, " rows"]]:
    """Walk from the starts to the stops and on to the goals.

    The next node is one of the neighbours that were not visited, with probability proportional
    to exp(-1.5 x distance to the next target). The goal is not entered before the stop.

    Args:
        uniform: one number in [0, 1) per step; there are at most as many steps.

    Returns:
        The nodes after the start, then 64 as padding; and whether the walk reached its goal.
    """
    rows, steps = uniform.shape
    nodes = np.full((rows, steps), _PAST)
    arrived = np.zeros(rows, dtype=bool)
    active = np.arange(rows)
    here = prompts.starts
    goals = prompts.goals
    targets = np.where(prompts.stops == NO_STOP, goals, prompts.stops)
    visited = np.zeros((rows, NODES + 1), dtype=bool)
    visited[active, here] = True
    for step in range(steps):
        choices = links.neighbours[here]
        weights = links.pull[choices, targets[:, None]]
        weights[visited[active[:, None], choices]] = 0.0
        weights[(choices == goals[:, None]) & (targets != goals)[:, None]] = 0.0
        alive = (weights > 0).any(axis=1)
        here = choose(choices, weights, uniform[active, step])
        active = active[alive]
        here = here[alive]
        goals = goals[alive]
        targets = targets[alive]
        nodes[active, step] = here
        visited[active, here] = True
        done = here == goals
        arrived[active[done]] = True
        targets = np.where(here == targets, goals, targets)
        active, here, goals, targets = (x[~done] for x in (active, here, goals, targets))
        if not len(active):
            break
    return nodes, arrived


def choose(
    choices: Int[np.ndarray, "rows degree"],
    weights: Float[np.ndarray, "rows degree"],
    uniform: Float[np.ndarray, " rows"],
) -> Int[np.ndarray, " rows"]:
    """Choose a node of each row with probability proportional to its weight.

    Args:
        weights: 0 for what is not chosen; of a row of zeros the result is arbitrary.
        uniform: one number in [0, 1) per row.
    """
    cumulated = weights.cumsum(axis=1)
    passed = cumulated <= (uniform * cumulated[:, -1])[:, None]
    # Rounding must not choose a neighbour of weight 0, nor one past the last.
    last = weights.shape[1] - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)
    chosen: Int[np.ndarray, " rows"] = choices[
        np.arange(len(choices)), np.minimum(passed.sum(axis=1), last)
    ]
    return chosen


def write(walks: Walks) -> list[str]:
    """Return the answers as texts."""
    points = np.array([*map(ord, NODE_SYMBOLS), 0], dtype=np.uint32)[walks]
    texts: list[str] = points.view(f"U{walks.shape[1]}").ravel().tolist()
    return texts


def solvable(links: Links, prompts: Prompts) -> tuple[Bool[np.ndarray, " rows"], Walks]:
    """Judge prompts by 24 walks each, which depend on the prompt alone.

    Returns:
        Whether at least two of them are right, with the first right one of each prompt.
    """
    keys = prompts.keys
    right = np.zeros(len(prompts), dtype=np.int64)
    solutions = np.full((len(prompts), MAX_NODES), _PAST)
    undecided = np.arange(len(prompts))
    for attempt in range(ATTEMPTS):
        index = attempt * MAX_NODES + np.arange(MAX_NODES)
        uniform = fixed_uniform(keys[undecided, None], index)
        nodes, arrived = walk(links, prompts[undecided], uniform)
        found = undecided[arrived]
        first = right[found] == 0
        solutions[found[first]] = nodes[arrived][first]
        right[found] += 1
        undecided = undecided[right[undecided] < MINIMUM_RIGHT]
        if not len(undecided):
            break
    return right >= MINIMUM_RIGHT, solutions


@functools.lru_cache(KEPT_MAPS)
def path_tables(seed: int = 0) -> dict[str, Float[np.ndarray, "start stop goal"]]:
    """Sum probabilities over the simple paths of 1 to 8 open links between two nodes.

    There are one million, which takes about a second. The axis `stop` is a node that the path
    passes; its last entry stands for no such condition, as `NO_STOP` does in prompts.

    Returns:
        `guess`, the probability that a uniform well-formed answer is one of these paths, and
        `walker`, that the random walker takes one.

    A uniform well-formed answer has 1 to 8 nodes, each number with probability 1/8; the last
    node is the goal, and the others are a uniform sequence of different nodes, not the start.
    The walker knows the open links: its next node is uniform among the neighbours that it has
    not visited. It stops at the goal, after 8 nodes, or where all neighbours are visited.
    """
    shape = (NODES, NODES + 1, NODES)
    guess = np.zeros(shape)
    walker = np.zeros(shape)
    links = route_map(seed).open
    bits = np.uint64(1) << np.arange(NODES, dtype=np.uint64)
    # The padding of the table of neighbours counts as visited.
    blocked = np.append(bits, ~np.uint64(0))
    paths = np.arange(NODES)[:, None]
    visited = bits
    chance = np.ones(NODES)
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
        guess += here / (MAX_NODES * perm(NODES - 2, length - 1))
    return {"guess": guess, "walker": walker}
