"""A greedy rollout of each prompt stands beside its group."""

from __future__ import annotations

import math
from typing import Any

from advsweep.rollouts import ROLLOUTS


def test_every_group_gets_the_greedy_reward_of_its_own_prompt(script: Any) -> None:
    source = script([[0.0, 1.0], [1.0, 1.0]], greedy=[1.0, 0.0])
    collected = ROLLOUTS.build("greedy").collect(source, 2)
    assert collected.groups.tolist() == [0, 1]
    assert collected.inputs["greedy_rewards"].tolist() == [1.0, 0.0]


def test_one_that_could_not_be_judged_counts_as_the_mean_of_its_group(script: Any) -> None:
    nan = math.nan
    source = script([[0.0, 1.0], [nan, 1.0], [nan, nan]], greedy=[nan, nan, nan])
    collected = ROLLOUTS.build("greedy").collect(source, 3)
    assert collected.greedy_rewards.tolist() == [0.5, 1.0, 0.0]
