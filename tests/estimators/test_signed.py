"""psr, nsr and w_reinforce."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.estimators import GroupBatch, build_estimator

BINARY = st.lists(
    st.lists(st.sampled_from([0.0, 1.0]), min_size=8, max_size=8), min_size=1, max_size=4
)


@given(rows=BINARY, lam=st.floats(0.01, 1))
def test_one_is_made_of_the_others(rows: list[list[float]], lam: float) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    psr, nsr = build_estimator("psr")(batch), build_estimator("nsr")(batch)
    assert torch.equal(psr, build_estimator("reinforce")(batch))
    assert torch.equal(psr - 1, nsr)
    assert torch.equal(build_estimator("w_reinforce", lam=lam)(batch), lam * psr + nsr)


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
