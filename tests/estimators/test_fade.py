"""fade."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator


def batch_of(*successes: int, entropy: float = 0.0, size: int = 8, **inputs: Any) -> GroupBatch:
    """A batch of binary groups with these numbers of successes and this token entropy."""
    rewards = (torch.arange(size) < torch.tensor(successes)[:, None]).double()
    return GroupBatch(rewards=rewards, token_entropy=torch.full_like(rewards, entropy), **inputs)


def test_worked_values() -> None:
    estimator = build_estimator("fade", h0=1.0)
    # Mean reward 7/16. p̂ = 0.02/2 + 0.98 · 0.4375, Ĥ = 0.02 + 0.98 · 0.2, H* = 1/2;
    # α = 3 (1-p̂)/(2 p̂), δ = 1 + Ĥ - H*.
    first = estimator.compute(batch_of(2, 5, entropy=0.2))
    assert first.info == pytest.approx(
        {"p_hat": 0.43875, "h_hat": 0.216, "alpha": 1.9188034188, "delta": 0.716}, abs=1e-9
    )
    # 0.75^(α-1) · 0.75 and · -0.25/δ; 0.375^(α-1) · 0.375 and · -0.625/δ.
    assert first.values[0, [0, 7]].tolist() == pytest.approx(
        [0.5757939868, -0.2680605152], abs=1e-9
    )
    assert first.values[1, [0, 7]].tolist() == pytest.approx(
        [0.1522824096, -0.3544748827], abs=1e-9
    )
    # p̂ = 0.02 · 0.43875 + 0.98 · 0.5, Ĥ = 0.02 · 0.216 + 0.98 · 0.1.
    second = estimator.compute(batch_of(2, 6, entropy=0.1))
    assert second.info == pytest.approx(
        {"p_hat": 0.498775, "h_hat": 0.10232, "alpha": 1.5073680517, "delta": 0.60232}, abs=1e-9
    )


def test_initial_entropy_is_the_first_one_seen() -> None:
    estimator = build_estimator("fade")
    assert estimator.state_dict() == {"p_hat": 0.5, "h_hat": None, "h0": None}
    info = estimator.compute(batch_of(4, entropy=0.8)).info
    assert (info["h_hat"], info["delta"]) == pytest.approx((0.8, 1.0))
    # H* = 0.4; Ĥ = 0.02 · 0.8 + 0.98 · 0.1 = 0.114.
    info = estimator.compute(batch_of(4, entropy=0.1)).info
    assert info["delta"] == pytest.approx(0.714)
    assert estimator.state_dict()["h0"] == pytest.approx(0.8)


def test_entropy_is_a_mean_over_scorable_rollouts() -> None:
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    entropy = torch.tensor([[0.2, 0.4], [0.9, float("nan")]])
    mask = torch.tensor([[True, True], [True, False]])
    batch = GroupBatch(rewards=rewards, token_entropy=entropy, mask=mask)
    info = build_estimator("fade", beta=0).compute(batch).info
    assert (info["p_hat"], info["h_hat"]) == pytest.approx((1 / 3, 0.5))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_entropy_that_is_not_finite_is_refused_and_forgotten(bad: float) -> None:
    estimator = build_estimator("fade")
    estimator(batch_of(4, entropy=0.5))
    before = estimator.state_dict()
    with pytest.raises(BatchError, match="token_entropy: expected finite"):
        estimator(batch_of(4, entropy=bad))
    assert estimator.state_dict() == before


# Modes


def test_alpha_only_needs_no_entropy() -> None:
    estimator = build_estimator("fade", mode="alpha_only")
    batch = dataclasses.replace(batch_of(2, 5), token_entropy=None)
    assert estimator.needs == frozenset()
    assert "h_hat" not in estimator.compute(batch).info


def test_entropy_only_refuses_a_target_that_is_not_below_the_start() -> None:
    estimator = build_estimator("fade", mode="entropy_only", h_star=1.0)
    with pytest.raises(BatchError, match="initial entropy h0 above its target h_star"):
        estimator(batch_of(2, entropy=0.5))
    assert estimator.state_dict() == {"p_hat": 0.5, "h_hat": None, "h0": None}


def test_batch_scope_centres_on_the_batch() -> None:
    # Mean 1/2: p̂ = 1/2 and α = 1.5; weight √0.5 for all, δ = 1.
    values = build_estimator("fade", scope="batch")(batch_of(8, 0, entropy=1.0))
    assert values[0].tolist() == pytest.approx([0.5 * math.sqrt(0.5)] * 8)
    assert values[1].tolist() == pytest.approx([-0.5 * math.sqrt(0.5)] * 8)


@pytest.mark.parametrize("shape", [(1, 3), (1, 9), (7, 9)])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, 0.9, 1.0])
def test_batch_scope_on_equal_rewards_is_exactly_zero(
    reward: float, shape: tuple[int, int]
) -> None:
    rewards = torch.full(shape, reward, dtype=torch.float64)
    batch = GroupBatch(rewards=rewards, token_entropy=torch.zeros_like(rewards))
    values = build_estimator("fade", scope="batch")(batch)
    assert torch.equal(values, torch.zeros_like(rewards))


@pytest.mark.parametrize(
    ("options", "entropy", "alpha", "delta"),
    [
        # From 1/2 and 1 nat: p̂ = 0.43875, and Ĥ = 0.216 or 0.804; H* = 1/2.
        ({"mode": "alpha_only"}, 0.2, 1.9188034188, 1.0),
        ({"mode": "delta_only"}, 0.2, 1.0, 0.716),
        # 1 + 2 (Ĥ - H*)/(H₀ - H*)
        ({"mode": "entropy_only"}, 0.8, 2.216, 1.0),
        ({"mode": "entropy_only"}, 0.2, 1.0, 0.716),
        # p̂ = 0.98 · 0.5 + 0.02 · 0.4375 = 0.49875, Ĥ = 0.98 + 0.02 · 0.2 = 0.984.
        ({"ema": "slow"}, 0.2, 1.5075187970, 1.0),
        ({"mode": "log_schedule"}, 0.2, 1.9582587155, 0.9005996398),
    ],
)
def test_worked_schedules(
    options: dict[str, Any], entropy: float, alpha: float, delta: float
) -> None:
    batch = batch_of(2, 5, entropy=entropy, step=100, total_steps=200)
    info = build_estimator("fade", h0=1.0, **options).compute(batch).info
    assert (info["alpha"], info["delta"]) == pytest.approx((alpha, delta), abs=1e-9)


def test_the_schedule_stays_between_its_bounds() -> None:
    # Without averages p̂ = 0 and Ĥ = 0.1, then 1 and 2; H* = 1.
    estimator = build_estimator("fade", beta=0, h0=2.0)
    hard = estimator.compute(batch_of(0, entropy=0.1)).info
    assert (hard["alpha"], hard["delta"]) == (3.0, 0.3)
    easy = estimator.compute(batch_of(8, entropy=2.0)).info
    assert (easy["alpha"], easy["delta"]) == (1.0, 1.0)
