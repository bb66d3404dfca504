"""a_grae."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator


def batch_of(*successes: int, size: int = 8, **inputs: Any) -> GroupBatch:
    """A batch of binary groups with these numbers of successes."""
    rewards = (torch.arange(size) < torch.tensor(successes)[:, None]).double()
    return GroupBatch(rewards=rewards, **inputs)


def pair(values: Tensor) -> tuple[float, float]:
    """The advantages of the first group's first success and of its last failure."""
    return values[0, 0].item(), values[0, -1].item()


# Groups of 2, 4, 4, 3, 3 of 8: ω = 16/40 = 0.4, and p = 1/4 in the first.
OMEGA_04 = (2, 4, 4, 3, 3)


def test_worked_values_of_the_released_formula() -> None:
    # Sample σ + 1e-6 in the base; 0.125/(0.5 + 1e-6) + 0.375/(1 - 0.5 + 1e-6) = 1 - 2e-6;
    # ω = 0.25 from a batch of one group.
    values = build_estimator("a_grae", alpha=1, released=True)(batch_of(2))
    assert pair(values) == pytest.approx((0.4050446086, -0.5400594781), abs=1e-9)


def test_worked_values_of_the_released_code_in_one_batch() -> None:
    # Groups of 2, 6, 0 and 8 right, run through the authors' code with the weight 2.0: ω = 1/2.
    values = build_estimator("a_grae", alpha=1, released=True)(batch_of(2, 6, 0, 8))
    assert pair(values) == pytest.approx((0.8100892171, -0.5400594781), abs=1e-9)
    assert pair(values[1:]) == pytest.approx((0.5818305367, -3.4909832204), abs=1e-9)
    assert values[2:].abs().max() == 0


@pytest.mark.parametrize(
    ("parts", "success", "failure"),
    [
        # √3 (0.4 + 0.3464101615) and the failure's third of it
        ("sample", 1.2928203230, -0.4309401077),
        # √3 · 0.4 / 0.5 and -1/√3 as it was, with α = 0.5
        ("group", 1.3856406461, -0.5773502692),
        ("full", 1.0342562584, -0.4309401077),
    ],
)
def test_parts(parts: str, success: float, failure: float) -> None:
    values = build_estimator("a_grae", alpha=0.5, parts=parts)(batch_of(*OMEGA_04))
    assert pair(values) == pytest.approx((success, failure), abs=1e-9)


def test_without_any_success_nothing_is_reinforced() -> None:
    # Rewards of ±0.5 have the mean ω = 0, at a solve rate of 1/2.
    solved = torch.tensor([0.5, 0.5], dtype=torch.float64)
    rewards = torch.tensor([[0.5, -0.5], [-0.5, 0.5]], dtype=torch.float64)
    batch = GroupBatch(rewards=rewards, solve_rates=solved)
    values = build_estimator("a_grae")(batch)
    assert values.clamp(min=0).abs().sum() == 0
    # ω = 0: -1 · 1 / (2 √0.5)
    assert values[0, 1].item() == pytest.approx(-1 / math.sqrt(2))


@pytest.mark.parametrize("released", [False, True])
def test_skipped_where_the_solve_rate_is_zero_or_one(released: bool) -> None:
    batch = batch_of(8, 0, 4)
    estimator = build_estimator("a_grae", base="reinforce", parts="sample", released=released)
    assert torch.equal(estimator(batch)[:2], batch.rewards[:2])


def test_given_solve_rates_replace_row_means_but_not_omega() -> None:
    rewards = torch.tensor([[1.0, 0.4, 0.4, 0.2]], dtype=torch.float64)  # ω = 0.5
    rates = torch.tensor([0.25])
    batch = GroupBatch(rewards=rewards, solve_rates=rates)
    estimator = build_estimator("a_grae", base="dr_grpo")
    advantages = estimator.compute(batch)
    weight = 0.25 / 0.5 + 0.25 / math.sqrt(0.75)
    # d = 0.5, -0.1, -0.1, -0.3; successes times ω/α = 0.5.
    expected = [0.25 * weight, -0.1 * weight, -0.1 * weight, -0.3 * weight]
    assert advantages.values[0].tolist() == pytest.approx(expected)
    assert advantages.info == pytest.approx({"omega": 0.5})


def test_omega_weighs_rollouts_and_the_released_one_groups() -> None:
    rewards = torch.tensor([[1.0, 1.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    batch = GroupBatch(rewards=rewards, mask=mask)
    # 4 successes of 6 rollouts; the mean of 3/4 and 1/2.
    assert build_estimator("a_grae").compute(batch).info["omega"] == pytest.approx(4 / 6)
    released = build_estimator("a_grae", released=True).compute(batch)
    assert released.info["omega"] == pytest.approx(0.625)


def test_released_base_conventions_give_way_to_explicit_ones() -> None:
    default = build_estimator("a_grae", released=True).plain()["base"]
    assert (default["std"], default["eps"]) == ("sample", 1e-6)
    base = {"name": "grpo", "std": "population"}
    explicit = build_estimator("a_grae", released=True, base=base).plain()["base"]
    assert (explicit["std"], explicit["eps"]) == ("population", 1e-6)
    assert build_estimator("a_grae", released=True, base="rloo").plain()["base"] == {"name": "rloo"}
    # Presets of others are no conventions of the code's.
    whitened = build_estimator("a_grae", released=True, base="whitened").plain()["base"]
    assert whitened["preset"] == "trl"


def test_rates_outside_the_unit_interval_are_refused() -> None:
    estimator = build_estimator("a_grae")
    with pytest.raises(BatchError, match=r"mean reward as its solve rate in \[0, 1\]"):
        estimator(GroupBatch(rewards=torch.tensor([[2.0, 1.0], [0.0, 1.0]])))
    with pytest.raises(BatchError, match=r"needs solve_rates in \[0, 1\], got 0.5 to 1.5"):
        estimator(batch_of(2, 4, solve_rates=torch.tensor([0.5, 1.5])))
    weighted = GroupBatch(rewards=torch.tensor([[3.0, 1.0]]), solve_rates=torch.tensor([0.5]))
    with pytest.raises(BatchError, match=r"mean reward in \[0, 1\] over the batch, got 2"):
        estimator(weighted)
