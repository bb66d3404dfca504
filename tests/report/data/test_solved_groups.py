from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from advsweep.errors import ReportError
from advsweep.logs.rollout_records import RolloutNotes
from advsweep.report.data.solved_groups import solved_groups


class Stored:
    """The two faces of a store that are read, with any values in them."""

    def __init__(self, config: dict[str, Any], metrics: dict[str, dict[int, float]]) -> None:
        self.runs = SimpleNamespace(select=lambda ids: [SimpleNamespace(config=config)])
        self.metrics = SimpleNamespace(series=self._series)
        self._values = metrics

    def _series(self, ids: list[int], name: str) -> dict[int, Any]:
        points = self._values.get(name)
        if points is None:
            return {}
        return {ids[0]: (np.array(list(points)), np.array(list(points.values())))}


CONFIG = {"group_size": 2, "prompts_per_step": 4}


def test_groups_are_as_many_as_their_shares() -> None:
    metrics = {
        "solved/0": {1: 0.25, 2: 1.0},
        "solved/1": {1: 0.5, 2: 0.0},
        "solved/2": {1: 0.25, 2: 0.0},
        # A rollout policy drew twice as many groups in step 2.
        "cost/rollouts": {1: 1.0, 2: 2.0},
    }
    notes = RolloutNotes()
    steps = solved_groups(Stored(CONFIG, metrics), 1, notes)  # type: ignore[arg-type]
    assert [(s.step, [g.rewards for g in s.groups]) for s in steps] == [
        (1, [[0, 0], [1, 0], [1, 0], [1, 1]]),
        (2, [[0, 0]] * 8),
    ]
    assert not notes.left_out


@pytest.mark.parametrize(
    ("rollout", "cost"),
    [
        ({"name": "reference"}, 2.0),  # a group of the base model for each
        ({"name": "greedy"}, 1.5),
        ({"name": "retry"}, 1.75),  # later turns are not in solved/K
        ({"name": "pods", "drawn": 2}, 2.0),
        ({"name": "gfpo", "drawn": None}, 4.0),
    ],
)
def test_rollouts_beside_the_groups_are_no_groups(rollout: dict[str, Any], cost: float) -> None:
    metrics = {"solved/0": {1: 0.25}, "solved/2": {1: 0.75}, "cost/rollouts": {1: cost}}
    config = {"group_size": 1 if "drawn" in rollout else 2, "prompts_per_step": 4}
    stored: Any = Stored({**config, "rollout": rollout}, metrics)
    (step,) = solved_groups(stored, 1, RolloutNotes())
    assert [g.rewards for g in step.groups] == [[0, 0], *[[1, 1]] * 3]


def test_steps_that_do_not_add_up_are_left_out() -> None:
    nan = float("nan")
    metrics = {
        "solved/0": {1: 0.3, 2: 0.5, 3: nan, 4: -1.0, 5: 0.5},
        "solved/1": {1: 0.7, 2: 0.5, 3: 1.0, 4: 2.0, 5: 0.25},
        "cost/rollouts": dict.fromkeys(range(1, 6), 1.0),
    }
    notes = RolloutNotes()
    (step,) = solved_groups(Stored(CONFIG, metrics), 1, notes)  # type: ignore[arg-type]
    assert step.step == 2
    assert sum(notes.left_out.values()) == 4


@pytest.mark.parametrize("size", [2, 16])
def test_the_smallest_and_the_largest_groups_are_counted(size: int) -> None:
    metrics = {"solved/0": {1: 0.5}, f"solved/{size}": {1: 0.5}}
    stored: Any = Stored({"group_size": size, "prompts_per_step": 2}, metrics)
    (step,) = solved_groups(stored, 1, RolloutNotes())
    assert [g.rewards for g in step.groups] == [[0] * size, [1] * size]


@pytest.mark.parametrize(
    ("config", "metrics", "message"),
    [
        ({"group_size": 17, "prompts_per_step": 4}, {}, "expected groups of 2 to 16"),
        ({"group_size": 1, "prompts_per_step": 4}, {}, "expected groups of 2 to 16"),
        ({"group_size": "8", "prompts_per_step": 4}, {}, "expected groups of 2 to 16"),
        ({"group_size": 8, "prompts_per_step": 10**9}, {}, "expected groups"),
        ({}, {}, "expected groups"),
        (CONFIG, {}, "expected metrics solved/K, got none"),
        (CONFIG, {"solved/0": {1: 1.0}, "cost/rollouts": {1: float("inf")}}, "got none"),
    ],
)
def test_what_a_store_says_is_checked(
    config: dict[str, Any], metrics: dict[str, Any], message: str
) -> None:
    with pytest.raises(ReportError, match=message):
        solved_groups(Stored(config, metrics), 1, RolloutNotes())  # type: ignore[arg-type]
