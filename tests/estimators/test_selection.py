"""filter_drop."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.estimators import GroupBatch, build_estimator

ROWS = st.lists(
    st.lists(st.sampled_from([0.0, 0.1, 1 / 3, 1.0]), min_size=3, max_size=3),
    min_size=1,
    max_size=6,
)


@given(ROWS)
def test_homogeneous_groups_are_dropped_and_the_rest_is_grpo(rows: list[list[float]]) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    advantages = build_estimator("filter_drop").compute(batch)
    assert torch.equal(advantages.values, build_estimator("grpo")(batch))
    mixed = torch.tensor([len(set(row)) > 1 for row in rows])
    assert torch.equal(advantages.keep, mixed[:, None].expand(-1, 3))


def test_the_solve_rates_decide_where_rewards_are_shaped() -> None:
    # Lengths set two wrong answers apart; a right and a wrong one have the same reward.
    batch = GroupBatch(
        rewards=torch.tensor([[-1.0, -0.6], [0.5, 0.5], [1.0, 0.0]]),
        solve_rates=torch.tensor([0.0, 0.5, 0.5]),
    )
    by_verdict = build_estimator("filter_drop").compute(batch)
    assert by_verdict.keep[:, 0].tolist() == [False, True, True]
    by_reward = build_estimator("filter_drop", on="reward").compute(batch)
    assert by_reward.keep[:, 0].tolist() == [True, False, True]
    # σ of a solve rate of 1/2 is 1/2.
    strict = build_estimator("filter_drop", eps_acr=0.51)
    assert not strict.compute(batch).keep.any()


def test_threshold() -> None:
    # σ of (0.5, 0.52) is 0.01.
    batch = GroupBatch(rewards=torch.tensor([[0.5, 0.52], [0.0, 1.0]], dtype=torch.float64))
    keep = build_estimator("filter_drop", eps_acr=0.011).compute(batch).keep
    assert keep.tolist() == [[False, False], [True, True]]
    assert build_estimator("filter_drop", eps_acr=0.009).compute(batch).keep.all()


def test_masked_rollouts_and_those_the_base_drops_stay_out() -> None:
    rewards = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    mask = torch.tensor([[True, True, False]] * 2)
    keep = build_estimator("filter_drop").compute(GroupBatch(rewards=rewards, mask=mask)).keep
    assert keep.tolist() == [[True, True, False], [False] * 3]
    base = {"name": "psr", "drop_zero_rows": True}
    successes = build_estimator("filter_drop", base=base).compute(GroupBatch(rewards=rewards))
    assert torch.equal(successes.keep, rewards == 1)
