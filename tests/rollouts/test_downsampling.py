"""Policies that train on some of the rollouts that they draw for a prompt."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.errors import ConfigError
from advsweep.rollouts import ROLLOUTS

NAN = float("nan")


def chosen(script: Any, rows: list[list[float]], size: int, name: str, **options: Any) -> Any:
    counts = options.pop("counts", ())
    source = script(rows, group_size=size, counts=counts)
    collected = ROLLOUTS.build(name, **options).collect(source, len(rows))
    assert collected.groups.tolist() == list(range(len(rows)))
    return collected.rollouts.tolist()


def test_gfpo_keeps_the_shortest_or_the_most_efficient(script: Any) -> None:
    rows, counts = [[0.0, 1.0, 1.0, 0.0], [1.0, 0.0, NAN, 1.0]], [[9, 5, 4, 4], [3, 3, 1, 8]]
    # Tokens 4 and 4; then 3 and 3, as the one of 1 token could not be scored.
    assert chosen(script, rows, 2, "gfpo", counts=counts) == [[2, 3], [0, 1]]
    # Rewards per token: 0, 1/5, 1/4, 0; then 1/3, 0, -, 1/8.
    found = chosen(script, rows, 2, "gfpo", counts=counts, metric="efficiency")
    assert found == [[1, 2], [0, 3]]


def test_pods_keeps_the_rewards_of_the_largest_variance(script: Any) -> None:
    # Of 1 and 0, two each. Of 0, 1, 2, 9 and three: {0, 1, 9} has 146/9, {0, 2, 9} 134/9.
    rows = [[1.0, 1.0, 1.0, 0.0, 0.0, 1.0]]
    (found,) = chosen(script, rows, 4, "pods")
    assert sorted(rows[0][i] for i in found) == [0, 0, 1, 1]
    assert chosen(script, [[2.0, 9.0, 0.0, 1.0]], 3, "pods") == [[1, 2, 3]]
    # Those that could not be scored come last, where the others do not suffice.
    assert chosen(script, [[NAN, 1.0, 0.0, NAN]], 2, "pods") == [[1, 2]]
    assert chosen(script, [[NAN, NAN, 0.0, NAN]], 2, "pods") == [[0, 2]]


@given(st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=7), st.data())
def test_no_other_choice_of_pods_varies_more(rewards: list[float], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(rewards)))
    policy: Any = ROLLOUTS.build("pods")
    kept = policy._choose(torch.tensor([rewards]).double(), None, size)[0].tolist()
    assert len(set(kept)) == size

    def variance(places: Any) -> float:
        return torch.tensor([rewards[i] for i in places]).double().var(correction=0).item()

    best = max(map(variance, itertools.combinations(range(len(rewards)), size)))
    assert variance(kept) == pytest.approx(best, abs=1e-9)


def test_fewer_than_the_trained_rollouts_are_refused() -> None:
    policy: Any = ROLLOUTS.build("gfpo", drawn=4)
    assert policy.drawn_size(4) == 4
    assert ROLLOUTS.build("pods").drawn_size(6) == 12  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"rollout.drawn: expected at least group_size = 8"):
        policy.drawn_size(8)
