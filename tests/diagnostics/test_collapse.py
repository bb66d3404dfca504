"""The advantage collapse rate."""

from __future__ import annotations

import pytest
import torch

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
