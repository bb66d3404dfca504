"""Retries of failed prompts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from advsweep.diagnostics import rollout_metrics
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.rollouts import ROLLOUTS
from advsweep.rollouts.policies import Retry

ROWS = [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]


def build(**options: Any) -> Retry:
    policy = ROLLOUTS.build("retry", **options)
    assert isinstance(policy, Retry)
    return policy


@pytest.mark.parametrize(("on", "again"), [("verdict", [[1]]), ("reward", [[0, 1]])])
def test_shaped_rewards_are_judged_by_their_verdicts(script: Any, on: str, again: Any) -> None:
    source = script([[0.9, 0.9], [0.1, 0.1]], judged=[[1.0, 1.0], [0.0, 0.0]])
    build(on=on).collect(source, 2)
    assert source.repeated == again


@pytest.mark.parametrize(
    ("retry_if", "again"),
    [("first", [0, 2]), ("all", [2]), ("any", [0, 1, 2])],
)
def test_which_prompts_come_again(script: Any, retry_if: str, again: list[int]) -> None:
    source = script(ROWS, again=[[1.0, 1.0]])
    collected = build(retry_if=retry_if).collect(source, 4)
    assert source.repeated == [again]
    assert collected.attempts is not None
    assert collected.attempts.tolist() == [1] * 4 + [2] * len(again)
    assert collected.last_attempt == 2


def test_attempts_at_a_prompt_stand_together_up_to_the_last(script: Any) -> None:
    # The second attempts at prompts 0 and 2 are groups 4 and 5; prompt 2 fails again: group 6.
    source = script(ROWS, again=[[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    collected = build(turns=3).collect(source, 4)
    assert source.repeated == [[0, 2], [5]]
    assert collected.groups.tolist() == [0, 4, 1, 2, 5, 6, 3]
    assert collected.attempts is not None
    assert collected.attempts.tolist() == [1, 1, 1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("row", "first", "all_failed", "any_failed"),
    [
        ([float("nan"), 1.0, 0.0], False, False, True),
        ([float("nan"), 0.0, 1.0], True, False, True),
        ([float("nan"), 0.0, 0.0], True, True, True),
        ([float("nan"), 1.0, 1.0], False, False, False),
        ([float("nan")] * 3, True, True, True),
    ],
)
def test_unscorable_rollouts_are_left_out(
    script: Any, row: list[float], first: bool, all_failed: bool, any_failed: bool
) -> None:
    for retry_if, expected in (("first", first), ("all", all_failed), ("any", any_failed)):
        source = script([row])
        build(retry_if=retry_if).collect(source, 1)
        assert bool(source.repeated) is expected, retry_if


def test_graded_rewards_fail_below_a_threshold(script: Any) -> None:
    rows = [[0.4, 1.0], [0.6, 0.0]]
    for success, again in ((1.0, [[0, 1]]), (0.5, [[0]]), (0.3, [])):
        source = script(rows)
        build(success=success).collect(source, 2)
        assert source.repeated == again


def test_an_attempt_that_nobody_reaches_has_no_mass(script: Any) -> None:
    source = script([[1.0, 0.0]])
    collected = build(turns=2).collect(source, 3)
    batch = GroupBatch(rewards=torch.tensor([[1.0, 0.0]] * 3))
    advantages = build_estimator("dr_grpo").compute(batch)
    found = rollout_metrics(batch, advantages, attempts=collected.attempts, last_attempt=2)
    assert found["retry/reached/turn_2"] == found["mass/success/turn_2"] == 0
    assert found["mass/success/turn_1"] == found["mass/success"] == 0.25
