"""grpo_n, and what every wrapper does with its base."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st

from advsweep.errors import BatchError, ConfigError, UnknownNameError
from advsweep.estimators import GroupBatch, build_estimator

ROWS = st.lists(
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=6, max_size=6), min_size=1, max_size=4
)


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
