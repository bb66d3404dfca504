"""Wrappers: grpo_n, filter_drop, and what every wrapper does with its base."""

from __future__ import annotations

import pytest
import torch

from advsweep.errors import BatchError, ConfigError, UnknownNameError
from advsweep.estimators import GroupBatch, build_estimator


def test_default_base_is_grpo_and_is_part_of_the_configuration() -> None:
    estimator = build_estimator("grpo_n")
    assert estimator.plain() == {"name": "grpo_n", "base": build_estimator("grpo").plain()}
    other = build_estimator("grpo_n", base={"name": "grpo", "std": "sample"})
    assert estimator.identity() != other.identity()
    assert build_estimator("grpo_n", base="mean_grpo") == build_estimator("grpo_n", base="dr_grpo")


def test_errors_in_the_base_name_the_key_below_it() -> None:
    with pytest.raises(UnknownNameError, match=r"estimator\.base: no estimator is called 'grop'"):
        build_estimator("grpo_n", base="grop")
    with pytest.raises(UnknownNameError, match=r"estimator\.base\.epz: .*did you mean 'eps'"):
        build_estimator("grpo_n", base={"name": "grpo", "epz": 1})
    with pytest.raises(ConfigError, match=r"estimator\.base: expected a name or a mapping"):
        build_estimator("grpo_n", base={"eps": 1})


def test_what_the_base_asks_for_is_asked_for() -> None:
    assert build_estimator("grpo_n", base="rloo").minimum_group == 2
    blocks = build_estimator("grpo_n", base={"name": "passk_loo", "k": 3})
    assert blocks.group_multiple == 3
    assert build_estimator("grpo_n", base="passk_analytic").binary_only
    with pytest.raises(BatchError, match="0 and 1 only"):
        build_estimator("grpo_n", base="passk_analytic")(GroupBatch(rewards=torch.rand(2, 8)))
    for base, rewards in (("power_alpha", [[2.0, 1.0]]), ("maxrl", [[1.0, -1.0]])):
        with pytest.raises(BatchError, match=f"estimator '{base}'"):
            build_estimator("grpo_n", base=base)(GroupBatch(rewards=torch.tensor(rewards)))
    fade = build_estimator("grpo_n", base="fade")
    assert fade.needs == {"token_entropy"}
    assert fade.stateful
    with pytest.raises(BatchError, match="'grpo_n' needs token_entropy"):
        fade(GroupBatch(rewards=torch.zeros(2, 8)))
    assert build_estimator("grpo_n").needs == frozenset()
    assert not build_estimator("grpo_n").stateful


def fade_batch(rows: list[list[float]], entropy: float) -> GroupBatch:
    rewards = torch.tensor(rows, dtype=torch.float64)
    return GroupBatch(rewards=rewards, token_entropy=torch.full_like(rewards, entropy))


def test_memory_and_logs_are_the_bases() -> None:
    wrapped, fade = build_estimator("grpo_n", base="fade"), build_estimator("fade")
    for step in range(3):
        batch = fade_batch([[1.0, 0.0, 0.0, float(step > 1)]], 0.5 / (step + 1))
        ours, theirs = wrapped.compute(batch), fade.compute(batch)
        assert torch.equal(ours.values, theirs.values.clamp(max=0))
        assert ours.info == theirs.info
        assert wrapped.state_dict() == {"base": fade.state_dict()}
    resumed = build_estimator("grpo_n", base="fade")
    resumed.load_state_dict(wrapped.state_dict())
    assert resumed.state_dict() == wrapped.state_dict()
    wrapped.reset()
    fade.reset()
    assert wrapped.state_dict() == {"base": fade.state_dict()}


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
