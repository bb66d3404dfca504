"""Policies that train on mixed groups alone."""

from __future__ import annotations

from typing import Any

import pytest

from advsweep.errors import TrainingError
from advsweep.rollouts import ROLLOUTS

MIXED, WRONG, RIGHT = [0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]


def test_filter_drop_draws_once_and_keeps_the_mixed_groups(script: Any) -> None:
    source = script([RIGHT, MIXED, WRONG, MIXED])
    assert ROLLOUTS.build("filter_drop").collect(source, 4).groups.tolist() == [1, 3]
    assert source.asked == [4]


@pytest.mark.parametrize("name", ["filter_drop", "dynamic_sampling"])
def test_equal_rewards_that_are_not_dyadic_are_not_mixed(name: str, script: Any) -> None:
    rows = [[0.1] * 3, [0.9] * 3, [1 / 3] * 3, [0.1, 0.1, 0.2]]
    assert ROLLOUTS.build(name).collect(script(rows), 1).groups.tolist() in ([], [3])
    assert ROLLOUTS.build(name).collect(script(rows), 4).groups.tolist()[0] == 3


@pytest.mark.parametrize("name", ["filter_drop", "dynamic_sampling"])
def test_the_verdicts_of_a_group_decide_where_rewards_are_shaped(name: str, script: Any) -> None:
    # Lengths set wrong answers apart, and one of two right ones; in the middle group the right
    # answer is long and the wrong one has the format.
    rows, verdicts = [[-1.0, -0.6], [0.5, 0.5], [1.0, 0.5]], [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    by_verdict = ROLLOUTS.build(name, eps_acr=0.1).collect(script(rows, judged=verdicts), 3)
    assert [group % 3 for group in by_verdict.groups.tolist()][:1] == [1]
    assert set(by_verdict.groups.tolist()) <= {1, 4, 7}
    policy = ROLLOUTS.build(name, eps_acr=0.1, on="reward")
    by_reward = policy.collect(script(rows, judged=verdicts), 3)
    assert by_reward.groups.tolist()[:2] == [0, 2]


@pytest.mark.parametrize("name", ["filter_drop", "dynamic_sampling"])
def test_the_tolerance_decides_what_is_mixed(name: str, script: Any) -> None:
    # σ = 0.01.
    rows = [[0.5, 0.52]]
    assert len(ROLLOUTS.build(name, eps_acr=0.0099).collect(script(rows), 2).groups) == 2
    strict = ROLLOUTS.build(name, eps_acr=0.0101)
    if name == "filter_drop":
        assert len(strict.collect(script(rows), 2).groups) == 0
    else:
        with pytest.raises(TrainingError):
            strict.collect(script(rows), 2)


def test_dynamic_sampling_draws_until_it_has_enough(script: Any) -> None:
    # Three of every four groups have collapsed: the mixed ones are 1, 5, 9, 13, ...
    source = script([RIGHT, MIXED, WRONG, WRONG])
    collected = ROLLOUTS.build("dynamic_sampling").collect(source, 4)
    assert collected.groups.tolist() == [1, 5, 9, 13]
    assert source.asked == [4, 4, 4, 4]


def test_a_pool_without_mixed_groups_ends_with_an_error(script: Any) -> None:
    source = script([WRONG] * 7 + [MIXED])
    policy = ROLLOUTS.build("dynamic_sampling", max_draws=3)
    expected = (
        r"step 7: expected 4 groups with different verdicts, got 1 of 12 drawn; "
        r"raise rollout.max_draws \(now 3\)"
    )
    with pytest.raises(TrainingError, match=expected):
        policy.collect(source, 4)
    assert source.asked == [4, 4, 4]
