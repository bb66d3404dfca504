"""Walks: their probabilities on a small map, and what makes them arrive."""

from __future__ import annotations

import numpy as np
import pytest

from advsweep.tasks.route_maps import (
    MAX_NODES,
    NO_STOP,
    Prompts,
    prompts_of_levels,
    route_map,
    solvable,
    walk,
    write,
)
from tests.tasks.routes.test_maps import links_of

RING = links_of((0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (3, 5))


def prompts(start: int, stop: int, goal: int, count: int) -> Prompts:
    return Prompts(*(np.full(count, node) for node in (start, stop, goal)))


def counts(nodes: np.ndarray, arrived: np.ndarray) -> dict[str, int]:
    texts, number = np.unique(write(nodes[arrived]), return_counts=True)
    return dict(zip(texts.tolist(), number.tolist(), strict=True))


def test_walks_prefer_near_nodes() -> None:
    """From 0 to 3 on a ring: over 4, one link away, or over 1, two links away."""
    uniform = np.random.default_rng(0).random((20_000, MAX_NODES))
    found = counts(*walk(RING, prompts(0, NO_STOP, 3, 20_000), uniform))
    # e^-1.5 against e^-3: 0 -> 4 with probability 1 / (1 + e^-1.5) = .8176, then only 3 is left.
    # Over 1, the only way is 2 and 3. No walk reaches 5 before 3.
    assert found.keys() == {"ED", "BCD"}
    assert found["ED"] == pytest.approx(0.8176 * 20_000, abs=4 * 55)


def test_walks_pass_the_stop_first_and_may_fail() -> None:
    """From 0 over 5 to 4: 5 is a dead end, so no walk arrives; from 0 over 2 to 4 all do."""
    uniform = np.random.default_rng(1).random((500, MAX_NODES))
    assert not walk(RING, prompts(0, 5, 4, 500), uniform)[1].any()
    nodes, arrived = walk(RING, prompts(0, 2, 4, 500), uniform)
    # The goal 4 is not entered before the stop, so the walk must take 1, 2, 3; at 3 it goes to
    # 4 (distance 0) or to the dead end 5 (distance 2): 1 / (1 + e^-3) = .9526 arrive.
    assert set(write(nodes[arrived])) == {"BCDE"}
    assert arrived.mean() == pytest.approx(0.9526, abs=4 * 0.0095)


def test_prompts_are_judged_alone() -> None:
    """The judgement of a prompt does not depend on the others."""
    level = prompts_of_levels()[6][:600]
    passed, solutions = solvable(route_map().open, level)
    assert 0.5 < passed.mean() < 1
    order = np.random.default_rng(2).permutation(600)[:100]
    again, same = solvable(route_map().open, level[order])
    assert (again == passed[order]).all()
    assert (same[again] == solutions[order][again]).all()
