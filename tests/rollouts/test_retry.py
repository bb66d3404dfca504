"""Retries of failed prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from advsweep.diagnostics import Masses, expected_masses, masses, rollout_metrics
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.rollouts import ROLLOUTS
from advsweep.rollouts.base import Collected
from advsweep.rollouts.policies import Retry

ROWS = [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]


def build(**options: Any) -> Retry:
    policy = ROLLOUTS.build("retry", **options)
    assert isinstance(policy, Retry)
    return policy


@pytest.mark.parametrize(
    ("retry_if", "again"),
    [("first", [0, 2]), ("all", [2]), ("any", [0, 1, 2])],
)
def test_which_prompts_come_again(script: Any, retry_if: str, again: list[int]) -> None:
    source = script(ROWS, again=[[1.0, 1.0]])
    collected = build(retry_if=retry_if).collect(source, 4)
    assert source.repeated == [again]
    assert collected.turns is not None
    assert collected.turns.tolist() == [1] * 4 + [2] * len(again)
    assert collected.last_turn == 2


def test_turns_of_a_prompt_stand_together_up_to_the_last(script: Any) -> None:
    # Turn 2 of prompts 0 and 2 are groups 4 and 5; prompt 2 fails again: group 6.
    source = script(ROWS, again=[[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    collected = build(turns=3).collect(source, 4)
    assert source.repeated == [[0, 2], [5]]
    assert collected.groups.tolist() == [0, 4, 1, 2, 5, 6, 3]
    assert collected.turns is not None
    assert collected.turns.tolist() == [1, 1, 1, 1, 2, 2, 3]


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


@pytest.mark.parametrize("p", [0.1, 0.3, 0.8])
@pytest.mark.parametrize("group", [2, 8])
def test_turns_of_grpo_are_power_weights(p: float, group: int) -> None:
    """FADE, sec. 9.2: turn t of mean-centred weights has the mass p qᵗ, less by 1/G."""
    q = 1 - p
    found = _of_turns(
        expected_masses(build_estimator("dr_grpo"), p, group), reach(build(turns=4), p, group)
    )
    for turn, mass in enumerate(found, start=1):
        assert tuple(mass) == pytest.approx([p * q**turn * (1 - 1 / group)] * 2)
    # rloo has no finite group in the way.
    (_, second) = _of_turns(
        expected_masses(build_estimator("rloo"), p, group), reach(build(), p, group)
    )
    assert tuple(second) == pytest.approx((p * q**2, p * q**2))


def _of_turns(once: Masses, reach: Sequence[float]) -> list[Masses]:
    """FADE, Eq. 16: a turn that is reached has the masses of one group."""
    return [Masses(rho * once.success, rho * once.failure) for rho in reach]


def reach(policy: Retry, p: float, group: int) -> list[float]:
    """Return the chance of each turn that a prompt reaches it (FADE, Eq. 16)."""
    q = 1 - p
    again = {"first": q, "all": q**group, "any": 1 - p**group}[policy.retry_if.value]
    return [again**turn for turn in range(policy.turns)]


class Coins:
    """Prompts that are solved with chance p, and remembers every reward."""

    step = 1

    def __init__(self, p: float, group: int, seed: int) -> None:
        self._p, self._group = p, group
        self._rng = np.random.default_rng(seed)
        self.rewards = torch.empty(0, group, dtype=torch.float64)

    def draw(self, prompts: int) -> Tensor:
        drawn = torch.from_numpy(self._rng.random((prompts, self._group)) < self._p).double()
        self.rewards = torch.cat((self.rewards, drawn))
        return drawn

    @property
    def outcomes(self) -> Tensor:
        return self.rewards

    def draw_again(self, groups: Tensor) -> Tensor:
        return self.draw(len(groups))

    def draw_references(self, groups: Tensor) -> Tensor:
        raise AssertionError("a retry draws no references")


def drawn(options: dict[str, Any], p: float, group: int) -> tuple[Collected, Tensor]:
    source = Coins(p, group, seed=3)
    return build(**options).collect(source, 40_000), source.rewards


@pytest.mark.parametrize("retry_if", ["first", "all", "any"])
@pytest.mark.parametrize("name", ["dr_grpo", "grpo", "w_reinforce"])
def test_masses_of_turns_by_drawing(name: str, retry_if: str) -> None:
    p, group, options = 0.3, 4, {"turns": 3, "retry_if": retry_if}
    collected, rewards = drawn(options, p, group)
    assert collected.turns is not None
    estimator = build_estimator(name)
    chances = reach(build(**options), p, group)
    expected = _of_turns(expected_masses(estimator, p, group), chances)
    advantages = estimator(GroupBatch(rewards=rewards))
    for turn, (rho, mass) in enumerate(zip(chances, expected, strict=True), start=1):
        own = collected.turns == turn
        # 40,000 prompts: at most four standard errors of a share.
        assert int(own.sum()) / 40_000 == pytest.approx(rho, abs=0.01)
        found = masses(advantages[own], rewards[own] == 1)
        share = int(own.sum()) / 40_000
        assert share * found.success == pytest.approx(mass.success, abs=0.008)
        assert share * found.failure == pytest.approx(mass.failure, abs=0.008)


def test_a_turn_that_nobody_reaches_has_no_mass(script: Any) -> None:
    source = script([[1.0, 0.0]])
    collected = build(turns=2).collect(source, 3)
    batch = GroupBatch(rewards=torch.tensor([[1.0, 0.0]] * 3))
    advantages = build_estimator("dr_grpo").compute(batch)
    found = rollout_metrics(batch, advantages, turns=collected.turns, last_turn=2)
    assert found["retry/reached/turn_2"] == found["mass/success/turn_2"] == 0
    assert found["mass/success/turn_1"] == found["mass/success"] == 0.25
