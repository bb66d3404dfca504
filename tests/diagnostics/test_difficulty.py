"""Collapse, predicted changes of entropy, and how a step's weight is spread."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.diagnostics.difficulty import (
    effective_prompts,
    sign_ratio,
    solve_rate_histogram,
    weight_noise,
    weight_variance_of_parts,
)
from advsweep.diagnostics.group_statistics import (
    StackedRollouts,
    collapse_shares,
    collapsed_groups,
)
from advsweep.diagnostics.masses import entropy_terms_per_run


def weight_variance_of(*arguments: np.ndarray) -> float:
    return float(weight_noise(*arguments).variance)


weights = st.lists(st.floats(0.01, 100), min_size=1, max_size=30).map(np.array)


@given(weights=weights, scale=st.floats(0.1, 10))
def test_effective_prompts_are_at_most_those_there_are_and_free_of_scale(
    weights: np.ndarray, scale: float
) -> None:
    effective = effective_prompts(weights)
    assert 1 - 1e-9 <= effective <= len(weights) + 1e-9
    assert effective_prompts(scale * weights) == pytest.approx(effective)
    assert effective_prompts(np.append(weights, 0.0)) == pytest.approx(effective)


def test_groups_without_weight_leave_nothing_to_count() -> None:
    assert math.isnan(effective_prompts(np.zeros(3)))
    two = np.array([2, 2])
    assert math.isnan(weight_variance_of(np.zeros(2), np.array([1, 1]), two))
    assert math.isnan(weight_variance_of(np.ones(2), np.array([0, 2]), two))


def test_variance_of_a_weight_by_hand() -> None:
    # G = 2: w(0) = w(2) = 0 and w(1) = 1. At p̂ = 1/2, k is 1 half of the time: variance 1/4.
    found = weight_variance_of(np.array([0.0, 1.0, 0.0]), np.array([0, 1, 2]), np.array([2, 2, 2]))
    assert found == pytest.approx(0.25)


def test_numbers_of_successes_that_do_not_occur_are_read_between() -> None:
    # w(1) = 1 and w(3) = 3 of 4, so w(2) = 2; beyond, w stays at the nearest.
    successes, rollouts = np.array([1, 3]), np.array([4, 4])
    table = np.array([1.0, 1, 2, 3, 3])
    chance = {
        rate: np.array([math.comb(4, k) * rate**k * (1 - rate) ** (4 - k) for k in range(5)])
        for rate in (0.25, 0.75)
    }
    variances = [c @ table**2 - (c @ table) ** 2 for c in chance.values()]
    found = weight_variance_of(np.array([1.0, 3.0]), successes, rollouts)
    assert found == pytest.approx(np.mean(variances) / 4)


def test_equal_weights_have_no_variance_and_none_is_negative() -> None:
    # E[w²] - E[w]² of equal weights is of the size of a rounding error, with either sign.
    successes = np.arange(9)
    rollouts = np.full(9, 8)
    for weight in (0.1, 1 / 3, 0.7):
        weights = np.full(9, weight)
        assert weight_variance_of(weights, successes, rollouts) == 0
        (part,) = weight_variance_of_parts(weights, successes, rollouts, np.zeros(9, dtype=int), 1)
        assert part == 0
    almost_equal = np.nextafter(1 / 3, np.arange(9) % 2)
    assert weight_variance_of(almost_equal, successes, rollouts) >= 0


def test_sign_ratio() -> None:
    # 0.2 · 0.25 / (0.1 · 0.75)
    assert sign_ratio(*np.array([0.2, 0.1, 0.25])) == pytest.approx(2 / 3)
    assert math.isnan(sign_ratio(*np.array([0.2, 0.0, 0.25])))
    assert math.isnan(sign_ratio(*np.array([0.2, 0.1, 1.0])))


def test_histogram_without_unscorable_groups() -> None:
    # The second group has no scorable rollout, the third 2 of 4 of which one succeeded.
    found = solve_rate_histogram(np.array([4, 0, 1]), np.array([4, 0, 2]), 4)
    assert found.tolist() == [0, 0, 0.5, 0, 0.5]
    nothing = solve_rate_histogram(np.array([0]), np.array([0]), 4)
    assert nothing.tolist() == [0] * 5


def shares(rewards, mask=None, **options: float) -> tuple[float, float, float]:
    runs = StackedRollouts(rewards, mask)
    spread = runs.spread(runs.numbers(rewards))
    found = collapse_shares(runs, spread, collapsed_groups(spread, **options))
    return tuple(share.item() for share in found.values())


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


def entropy_terms(advantages, token_entropy, mask=None) -> tuple[float, float]:
    runs = StackedRollouts(advantages, mask)
    numbers = runs.numbers(advantages), runs.numbers(token_entropy)
    drift, covariance = entropy_terms_per_run(runs, *numbers).values()
    return drift.item(), covariance.item()


def test_terms_by_hand() -> None:
    advantages = torch.tensor([[1.0, 0.0], [2.0, -1.0]])
    surprisal = torch.tensor([[0.2, 0.4], [0.6, 0.8]])
    drift, covariance = entropy_terms(advantages, surprisal)
    # E[A] = 0.5, H = 0.5; E[A log π] = -(0.2 + 1.2 - 0.8) / 4 = -0.15.
    assert drift == pytest.approx(0.25)
    assert covariance == pytest.approx(-0.15 + 0.25)
