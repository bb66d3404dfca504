"""psr, nsr and w_reinforce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator

BINARY = st.lists(
    st.lists(st.sampled_from([0.0, 1.0]), min_size=8, max_size=8), min_size=1, max_size=4
)


@pytest.mark.parametrize(
    ("name", "options", "success", "failure"),
    [
        ("psr", {}, 1, 0),
        ("nsr", {}, 0, -1),
        ("w_reinforce", {}, 0.1, -1),
        ("w_reinforce", {"lam": 0.75}, 0.75, -1),
    ],
)
def test_worked_values(
    success_and_failure: Callable[..., tuple[float, float]],
    name: str,
    options: dict[str, Any],
    success: float,
    failure: float,
) -> None:
    assert success_and_failure(name, **options) == (success, failure)


@given(rows=BINARY, lam=st.floats(0.01, 1))
def test_one_is_made_of_the_others(rows: list[list[float]], lam: float) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    psr, nsr = build_estimator("psr")(batch), build_estimator("nsr")(batch)
    assert torch.equal(psr, build_estimator("reinforce")(batch))
    assert torch.equal(psr - 1, nsr)
    assert torch.equal(build_estimator("w_reinforce", lam=lam)(batch), lam * psr + nsr)


@given(rows=BINARY)
def test_with_equal_weights_it_is_reinforce_on_rewards_of_plus_and_minus_one(
    rows: list[list[float]],
) -> None:
    rewards = torch.tensor(rows, dtype=torch.float64)
    values = build_estimator("w_reinforce", lam=1)(GroupBatch(rewards=rewards))
    reinforce = build_estimator("reinforce")(GroupBatch(rewards=2 * rewards - 1))
    assert torch.equal(values, reinforce)


@pytest.mark.parametrize(("name", "kept"), [("psr", 1.0), ("nsr", 0.0)])
def test_rollouts_of_weight_zero_can_be_dropped(name: str, kept: float) -> None:
    rewards = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    mask = torch.tensor([[True, True, False, False]] * 3)
    assert build_estimator(name).compute(GroupBatch(rewards=rewards)).keep.all()
    estimator = build_estimator(name, drop_zero_rows=True)
    advantages = estimator.compute(GroupBatch(rewards=rewards))
    assert torch.equal(advantages.keep, rewards == kept)
    assert torch.equal(advantages.keep, advantages.values != 0)
    masked = estimator.compute(GroupBatch(rewards=rewards, mask=mask))
    assert torch.equal(masked.keep, (rewards == kept) & mask)


@pytest.mark.parametrize("name", ["psr", "nsr", "w_reinforce"])
@pytest.mark.parametrize("reward", [0.5, -1.0, 2.0])
def test_graded_rewards_are_refused(name: str, reward: float) -> None:
    with pytest.raises(BatchError, match=f"rewards of 0 and 1 only, got {reward:g}"):
        build_estimator(name)(GroupBatch(rewards=torch.tensor([[1.0, reward]])))
