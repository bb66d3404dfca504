"""The floors of routes: against arithmetic on a small map and against simulated answers."""

from __future__ import annotations

import numpy as np
import pytest

from advsweep.tasks import route_maps as exact
from advsweep.tasks.base import Split
from advsweep.tasks.route_maps import NO_STOP, NODES, RouteMap, route_map
from advsweep.tasks.routes import NODE_SYMBOLS, Routes
from tests.tasks.routes.test_maps import links_of

DRAWS = 100_000


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> exact.PathTables:
    """The tables of the ring 0-1-2-3-4-0 with the tail 3-5."""
    links = links_of((0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (3, 5))
    monkeypatch.setattr(exact, "route_map", lambda seed: RouteMap(links, links))
    return exact.path_tables.__wrapped__()


def test_tables_of_a_small_map(ring: exact.PathTables) -> None:
    """Two ways from 0 to 3: over 4 with two links, over 1 and 2 with three."""
    assert ring.count[0, NO_STOP, 3] == 2
    assert ring.count[0, 4, 3] == ring.count[0, 1, 3] == 1
    assert ring.count[0, 5, 3] == ring.count[0, NO_STOP, 6] == ring.count[0, NO_STOP, 0] == 0
    # One of 62 sequences with one node before the goal, one of 62 x 61 with two; lengths 1/8.
    assert ring.guess[0, NO_STOP, 3] == pytest.approx((1 / 62 + 1 / (62 * 61)) / 8)
    assert ring.guess[0, 1, 3] == pytest.approx(1 / (62 * 61 * 8))
    # 0 -> 1 or 4 with 1/2; from there one way is left up to 3.
    assert ring.walker[0, NO_STOP, 3] == pytest.approx(1)
    assert ring.walker[0, 1, 3] == pytest.approx(0.5)
    # To 5 over 3, where the other neighbour is not visited: 1/2 of either way.
    assert ring.walker[0, NO_STOP, 5] == pytest.approx(0.5)
    assert ring.walker[0, 4, 5] == pytest.approx(0.25)


def guesses(start: int, goal: int, rng: np.random.Generator) -> list[str]:
    """Draw well-formed answers: the goal after 0 to 7 other nodes."""
    others = np.setdiff1d(np.arange(NODES), [start, goal])
    orders = rng.permuted(np.tile(others, (DRAWS, 1)), axis=1)
    lengths = rng.integers(0, 8, DRAWS)
    ends = NODE_SYMBOLS[goal]
    return [
        "".join(NODE_SYMBOLS[node] for node in row[:length]) + ends
        for row, length in zip(orders[:, :7].tolist(), lengths.tolist(), strict=True)
    ]


def walk_at_random(start: int, stop: int, goal: int, rng: np.random.Generator) -> bool:
    """Walk to unvisited neighbours until the goal, 8 nodes or a dead end."""
    adjacent, visited = route_map().open.adjacent, [start]
    while len(visited) <= 8 and visited[-1] != goal:
        free = [n for n in np.flatnonzero(adjacent[visited[-1]]).tolist() if n not in visited]
        if not free:
            return False
        visited.append(free[rng.integers(len(free))])
    return visited[-1] == goal and (stop == NO_STOP or stop in visited)


def test_guess_equals_simulated_answers(routes: Routes) -> None:
    rng = np.random.default_rng(0)
    rates = routes.floors()["guess"].rates
    for problem in sorted(routes.problems(Split.HELD_OUT), key=lambda p: -rates[p.id])[:2]:
        start, *_, goal = map(NODE_SYMBOLS.index, problem.prompt[:-1])
        found = routes.score([problem] * DRAWS, guesses(start, goal, rng)).mean()
        rate = rates[problem.id]
        assert rate > 1e-3
        assert found == pytest.approx(rate, abs=4 * (rate / DRAWS) ** 0.5)


def test_walker_equals_simulated_walks(routes: Routes) -> None:
    rng = np.random.default_rng(1)
    rates = routes.floors()["walker"].rates
    held_out = routes.problems(Split.HELD_OUT)
    for problem in (held_out[0], held_out[31], held_out[95]):
        start, *stop, goal = map(NODE_SYMBOLS.index, problem.prompt[:-1])
        stops = stop[0] if stop else NO_STOP
        found = np.mean([walk_at_random(start, stops, goal, rng) for _ in range(4000)])
        rate = rates[problem.id]
        assert 0 < rate < 0.5
        assert found == pytest.approx(rate, abs=4 * (rate / 4000) ** 0.5)
