"""The hidden map: what it is made of, its distances, and that it never changes."""

from __future__ import annotations

import hashlib

import numpy as np

from advsweep.tasks.route_maps import (
    NO_STOP,
    NODES,
    Links,
    Prompts,
    prompts_of_levels,
    route_map,
)


def links_of(*pairs: tuple[int, int]) -> Links:
    adjacent = np.zeros((NODES, NODES), dtype=bool)
    for a, b in pairs:
        adjacent[a, b] = adjacent[b, a] = True
    return Links(adjacent)


def sha256(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(a.astype("<i8").tobytes() for a in arrays)).hexdigest()[:16]


def test_distances_of_a_small_map() -> None:
    """A ring of five nodes with a tail: 0-1-2-3-4-0 and 3-5."""
    links = links_of((0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (3, 5))
    assert links.distances[:6, :6].tolist() == [
        [0, 1, 2, 2, 1, 3],
        [1, 0, 1, 2, 2, 3],
        [2, 1, 0, 1, 2, 2],
        [2, 2, 1, 0, 1, 1],
        [1, 2, 2, 1, 0, 2],
        [3, 3, 2, 1, 2, 0],
    ]
    assert links.distances[0, 6] == 99
    assert not links.is_connected
    assert links.neighbours[[0, 3, 5, 6]].tolist() == [
        [1, 4, NODES],
        [2, 4, 5],
        [3, NODES, NODES],
        [NODES, NODES, NODES],
    ]
    # From node 3 to the target 0: its neighbours 2 and 4 are 2 and 1 links away, 5 is 3.
    np.testing.assert_allclose(links.pull[[2, 4, 5, NODES], 0], [*np.exp([-3, -1.5, -4.5]), 0])


def test_the_map_is_six_matchings_with_closed_links() -> None:
    known = route_map()
    for links in (known.open, known.old):
        assert (links.adjacent == links.adjacent.T).all()
        assert not links.adjacent.diagonal().any()
        assert links.is_connected
    assert known.old.adjacent[known.open.adjacent].all()
    # Each node has a link of each of six matchings, some of which coincide.
    assert known.old.adjacent.sum(axis=1).max() == 6
    assert known.old.adjacent.sum(axis=1).min() >= 4
    links = known.old.adjacent.sum() / 2
    # Binomial: .7 of 183 links are open, with standard deviation 6.2.
    assert abs(known.open.adjacent.sum() / 2 - 0.7 * links) < 3 * 6.2


def test_the_map_never_changes() -> None:
    """Base models that were trained before know this map."""
    assert sha256(np.argwhere(route_map().open.adjacent)) == "324c69cb05c3de15"
    assert sha256(np.argwhere(route_map().old.adjacent)) == "64b81308ab337a2a"


def test_prompts_have_the_distances_of_their_level() -> None:
    distances = route_map().open.distances
    levels = prompts_of_levels()
    assert len(levels) == 7
    for level, prompts in enumerate(levels):
        some = prompts[:: len(prompts) // 50]
        for a, v, b in zip(some.starts, some.stops, some.goals, strict=True):
            if level == 0:
                assert v == NO_STOP
                assert distances[a, b] in (2, 3)
            else:
                assert len({a, v, b}) == 3
                assert distances[a, v] + distances[v, b] == level + 2
    keys = np.concatenate([prompts.keys for prompts in levels])
    assert len(np.unique(keys)) == len(keys)


def test_keys_and_texts() -> None:
    prompts = Prompts(np.array([0, 63]), np.array([NO_STOP, 1]), np.array([25, 26]))
    # 0 x 65 x 64 + 64 x 64 + 25, and 63 x 65 x 64 + 1 x 64 + 26.
    assert prompts.keys.tolist() == [4121, 262_170]
    assert prompts.texts() == ["AZ:", "/Ba:"]
    back = Prompts.of_keys(prompts.keys)
    assert back.texts() == prompts.texts()
