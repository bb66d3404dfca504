"""Metrics of rollouts that other trainers dumped."""

from __future__ import annotations

import math

import pytest
import torch

from advsweep.diagnostics import rollout_metrics
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.logs.rollout_metrics import (
    estimator_of,
    metrics_of_dump,
)
from advsweep.logs.rollout_records import GroupTurns, RolloutGroup, RolloutStep


def step_of(number: int, *groups: list[float]) -> RolloutStep:
    return RolloutStep(number, [RolloutGroup(f"p{i}", list(g)) for i, g in enumerate(groups)])


def test_masses_of_a_known_estimator() -> None:
    found = metrics_of_dump(
        [step_of(1, [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0])],
        {"estimator": {"name": "dr_grpo"}},
    )
    assert found.sizes == {"prompts_per_step": 4, "group_size": 4}
    assert found.rollouts == {1: 16}
    (step,) = found.steps
    expected = {
        "reward/mean": 7 / 16,
        "collapse/acr": 1 / 2,
        "collapse/all_wrong": 1 / 4,
        "collapse/acr_after": 1 / 2,
        "solved/0": 1 / 4,
        "solved/2": 1 / 4,
        # ±1/2 in the first group, 3/4 and -1/4 in the last.
        "mass/success": (2 * 0.5 + 0.75) / 16,
        "mass/failure": (2 * 0.5 + 3 * 0.25) / 16,
        "prompts/fully_unsolved": 1.0,
        "reward/unscorable": 0.0,
        "cost/rollouts": 1.0,
        "cost/utilisation": 1.0,
    }
    assert {name: step.values[name] for name in expected} == pytest.approx(expected)
    assert found.notes == ["advantages were computed from the rewards by estimator 'dr_grpo'"]


def test_turns_of_episodes_are_counted_where_the_dump_tells_all() -> None:
    several = RolloutGroup("p", [1.0, 0.0], lengths=[30, 10], turns=GroupTurns([3, 1]))
    equal = RolloutGroup("q", [1.0, 1.0], lengths=[20, 20], turns=GroupTurns([1, 1]))
    config = {"estimator": "grpo"}
    (step,) = metrics_of_dump([RolloutStep(1, [several, equal])], config).steps
    assert step.values["turns/mean"] == pytest.approx(6 / 4)
    # Of two groups the second has equal rewards; only one rollout has a second turn.
    assert step.values["turns/collapsed/turn_1"] == pytest.approx(1 / 2)
    assert "turns/collapsed/turn_2" not in step.values
    assert step.values["cost/tokens"] == 80
    unknown = [RolloutStep(1, [several, equal._replace(turns=None)])]
    (step,) = metrics_of_dump(unknown, config).steps
    assert "turns/mean" not in step.values


def test_groups_of_different_sizes() -> None:
    """A missing rollout counts nowhere, an unscorable one as unscorable."""
    rollouts = [step_of(1, [1, 0, 1, 0], [1, 0], [0, math.nan, 0])]
    config = {"estimator": "dr_grpo", "prompts_per_step": 3, "group_size": 4}
    found = metrics_of_dump(rollouts, config)
    assert found.sizes == {}
    values = found.steps[0].values
    expected = {
        "reward/mean": 3 / 8,
        "collapse/acr": 1 / 3,
        "mass/success": 3 * 0.5 / 8,
        "mass/failure": 3 * 0.5 / 8,
        "reward/unscorable": 1 / 9,
        "cost/rollouts": 9 / 12,
        "cost/utilisation": 8 / 9,
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected)


def test_an_estimator_with_memory_needs_every_step() -> None:
    node = {"name": "ha_dw"}
    easy, hard = [[1.0, 1, 1, 0], [1, 1, 0, 0]], [[1.0, 0, 0, 0], [0, 0, 0, 0]]
    expected, own = [], build_estimator("ha_dw")
    for groups in (easy, hard):
        batch = GroupBatch(rewards=torch.tensor(groups))
        expected.append(rollout_metrics(batch, own.compute(batch))["mass/success"])
    fresh = build_estimator("ha_dw").compute(GroupBatch(rewards=torch.tensor(hard)))
    assert fresh.values.max() != own.compute(GroupBatch(rewards=torch.tensor(hard))).values.max()
    steps = [step_of(1, *easy), step_of(2, *hard), step_of(4, *hard)]
    found = metrics_of_dump(steps, {"estimator": node})
    assert [step.values.get("mass/success") for step in found.steps] == [*expected, None]
    assert found.steps[2].values["collapse/acr"] == 0.5
    assert found.notes[1] == (
        "no masses and other metrics of advantages in 1 step (estimator 'ha_dw': it has memory, "
        "and the rollouts of step 3 are missing)"
    )


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (None, "the estimator is unknown"),
        ({"name": "fade"}, "it needs token_entropy, which the dump lacks"),
        ({"name": "no\x1bsuch"}, "no estimator is called"),
        ({"name": "grpo", "eps": "x"}, "expected a number or null, got 'x'"),
        ({"name": "grpo", "eps": {"$": [1]}}, "expected a number or null"),
    ],
)
def test_without_an_estimator_the_rewards_still_count(node: object, why: str) -> None:
    found = metrics_of_dump([step_of(1, [1, 0], [0, 0])], {"estimator": node})
    values = found.steps[0].values
    assert values["collapse/acr"] == 0.5
    assert not any(name.startswith(("mass/", "advantage/", "cost/util")) for name in values)
    (note,) = found.notes
    assert why in note
    assert note.isprintable()


def test_an_estimator_is_recognised_by_its_advantages() -> None:
    own = build_estimator("grpo", preset="trl")
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1]])
    groups = [
        RolloutGroup("p", r.tolist(), advantages=a.tolist())
        for r, a in zip(rewards, own(GroupBatch(rewards=rewards)), strict=True)
    ]
    steps = [RolloutStep(1, groups)]
    assert estimator_of({"name": "grpo", "preset": "trl"}, steps)
    assert not estimator_of({"name": "dr_grpo"}, steps)
    # Groups of equal rewards show nothing.
    assert not estimator_of({"name": "dr_grpo"}, [RolloutStep(1, groups[1:])])
