"""The hidden map: what it is made of, its distances, and that it never changes."""

from __future__ import annotations

import hashlib

import numpy as np

from advsweep.tasks.route_maps import (
    NODES,
    Links,
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


def test_the_map_never_changes() -> None:
    """Base models that were trained before know this map."""
    assert sha256(np.argwhere(route_map().open.adjacent)) == "324c69cb05c3de15"
    assert sha256(np.argwhere(route_map().old.adjacent)) == "64b81308ab337a2a"
