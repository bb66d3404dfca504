"""The advantage collapse rate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.diagnostics import collapse
from advsweep.errors import BatchError


def shares(*args: object, **options: object) -> tuple[float, float, float]:
    return tuple(collapse(*args, **options))


def test_counts_homogeneous_groups_by_kind() -> None:
    rewards = torch.tensor([[0.0, 0, 0], [1, 1, 1], [1, 0, 1], [0.9, 0.9, 0.9], [-1, -1, -1]])
    assert shares(rewards) == pytest.approx((0.8, 0.4, 0.4))


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_collapse_at_any_tolerance(reward: float, dtype: torch.dtype) -> None:
    rewards = torch.full((4, 7), reward, dtype=dtype)
    assert shares(rewards, tolerance=0.0) == (1.0, 0.0, 1.0)


def test_masked_rollouts_and_empty_groups_do_not_count() -> None:
    nan = float("nan")
    rewards = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [nan, nan, nan], [0.0, nan, nan]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0]], dtype=torch.bool)
    # Of three groups with rollouts the first is all correct, the last all wrong.
    assert shares(rewards, mask) == pytest.approx((2 / 3, 1 / 3, 1 / 3))


def test_no_group_is_refused() -> None:
    with pytest.raises(BatchError, match="at least one"):
        collapse(torch.zeros(0, 8))


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4), min_size=1),
)
def test_the_parts_add_up(rows: list[list[float]]) -> None:
    acr, all_wrong, all_correct = shares(torch.tensor(rows))
    assert all_wrong + all_correct == pytest.approx(acr)
    assert acr == pytest.approx(sum(len(set(row)) == 1 for row in rows) / len(rows))
