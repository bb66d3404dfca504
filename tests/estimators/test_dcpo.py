"""dcpo."""

from __future__ import annotations

import pytest
import torch

from advsweep.estimators import GroupBatch, build_estimator


def batch_of(*rows: list[float], prompts: tuple[str, ...] = ("p",)) -> GroupBatch:
    return GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64), prompt_ids=prompts)


def test_worked_values_of_four_visits() -> None:
    # Those of the official function.
    estimator = build_estimator("dcpo")
    visits = [
        ([1, 0, 0, 0], 1.5, -0.5, 0.25, 0.25),
        ([1, 1, 0, 0], 0.9967472229, -0.7712534145, 0.375, 0.3072916667),
        ([1, 1, 1, 1], 0.2571722499, None, 0.5833333333, 0.2916666667),
        ([0, 0, 0, 0], None, -0.2057637229, 0.4375, 0.2825520833),
    ]
    for number, (row, success, failure, mean, spread) in enumerate(visits, 1):
        advantages = estimator.compute(batch_of([float(r) for r in row]))
        assert advantages.info == {"visits": number}
        for reward, value in zip(row, advantages.values[0].tolist(), strict=True):
            assert value == pytest.approx(success if reward else failure, abs=1e-9)
        known = estimator.state_dict()["visits"]["p"]
        assert known == pytest.approx([number, mean, spread], abs=1e-9)


def test_prompts_have_a_memory_each() -> None:
    together = build_estimator("dcpo")
    alone = {name: build_estimator("dcpo") for name in "ab"}
    for rows in ([[1.0, 0, 0, 0], [1.0, 1, 1, 0]], [[0.0, 0, 0, 0], [1.0, 1, 0, 0]]):
        values = together(batch_of(*rows, prompts=("a", "b")))
        for row, name in enumerate("ab"):
            expected = alone[name](batch_of(rows[row], prompts=(name,)))
            assert torch.equal(values[row : row + 1], expected)
    assert set(together.state_dict()["visits"]) == {"a", "b"}


def test_groups_of_one_prompt_in_a_batch_are_visits_in_their_order() -> None:
    rows = [[1.0, 0, 0, 0], [1.0, 1, 0, 0]]
    together = build_estimator("dcpo")
    values = together(batch_of(*rows, prompts=("p", "p")))
    one_by_one = build_estimator("dcpo")
    expected = torch.cat([one_by_one(batch_of(row)) for row in rows])
    assert torch.allclose(values, expected)
    assert together.state_dict() == one_by_one.state_dict()


def test_equal_rewards_over_all_visits_get_exactly_nothing() -> None:
    estimator = build_estimator("dcpo")
    for _ in range(7):
        # A mean of means of 0.1 rounds.
        values = estimator(GroupBatch(rewards=torch.full((1, 3), 0.1), prompt_ids=("p",)))
        assert torch.equal(values, torch.zeros(1, 3))


def test_a_group_without_a_scorable_rollout_is_no_visit() -> None:
    estimator = build_estimator("dcpo")
    mask = torch.tensor([[True, True], [False, False]])
    batch = GroupBatch(
        rewards=torch.tensor([[1.0, 0.0], [1.0, 0.0]]), mask=mask, prompt_ids=("a", "b")
    )
    values = estimator(batch)
    assert (values[1] == 0).all()
    assert set(estimator.state_dict()["visits"]) == {"a"}
