"""Random walks towards the targets of prompts, many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from advsweep.tasks.parts import fixed_uniform
from advsweep.tasks.routes.maps import (
    MAX_NODES,
    NO_STOP,
    NODE_SYMBOLS,
    NODES,
    Links,
    Prompts,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    Walks = Int[np.ndarray, "rows nodes"]

ATTEMPTS = 24
"""Walks on which a prompt is judged."""
MINIMUM_RIGHT = 2
"""Prompts with fewer right answers among these walks are dropped."""

_PAST = NODES
"""Fills the places of a walk past its end."""


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
    here, goals = prompts.starts, prompts.goals
    targets = np.where(prompts.stops == NO_STOP, goals, prompts.stops)
    visited = np.zeros((rows, NODES + 1), dtype=bool)
    visited[active, here] = True
    for step in range(steps):
        choices = links.neighbours[here]
        weights = links.pull[choices, targets[:, None]]
        weights[visited[active[:, None], choices]] = 0.0
        weights[(choices == goals[:, None]) & (targets != goals)[:, None]] = 0.0
        cumulated = weights.cumsum(axis=1)
        total = cumulated[:, -1]
        alive = total > 0
        passed = cumulated <= (uniform[active, step] * total)[:, None]
        # Rounding must not choose a neighbour of weight 0, nor one past the last.
        last = weights.shape[1] - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)
        chosen = np.minimum(passed.sum(axis=1), last)
        here = choices[np.arange(len(choices)), chosen]
        active, here, goals, targets = active[alive], here[alive], goals[alive], targets[alive]
        nodes[active, step] = here
        visited[active, here] = True
        done = here == goals
        arrived[active[done]] = True
        targets = np.where(here == targets, goals, targets)
        active, here, goals, targets = (x[~done] for x in (active, here, goals, targets))
        if not len(active):
            break
    return nodes, arrived


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
