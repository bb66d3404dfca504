"""power_alpha, asym_grpo and maxrl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator

Pair = Callable[..., tuple[float, float]]
RATES = st.lists(
    st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), min_size=8, max_size=8),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize(
    ("name", "options", "success", "failure"),
    [
        # d q^(α-1) with d = 3/4 and -1/4, q = 3/4
        ("power_alpha", {}, 0.5625, -0.1875),
        ("power_alpha", {"alpha": 3}, 0.421875, -0.140625),
        # C = 3³ / (4 · 2²) = 1.6875
        ("power_alpha", {"normalize": True}, 0.94921875, -0.31640625),
        ("power_alpha", {"alpha": 1}, 0.75, -0.25),
        ("power_alpha", {"alpha": 1, "normalize": True}, 0.75, -0.25),  # C = 2² / 4 = 1
        ("asym_grpo", {}, 0.75, -0.5),  # -0.25 / 0.5
        ("asym_grpo", {"delta": 2.0}, 0.75, -0.125),
        # grpo's values, the failure's over 0.5
        ("asym_grpo", {"scale": "std"}, 1.7320508076, -1.1547005384),
        ("maxrl", {}, 3.0, -1.0),  # d / (1/4)
    ],
)
def test_worked_values(
    success_and_failure: Pair, name: str, options: dict[str, Any], success: float, failure: float
) -> None:
    assert success_and_failure(name, **options) == pytest.approx((success, failure), abs=1e-9)


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ({"name": "power_alpha", "alpha": 1}, "dr_grpo"),
        ({"name": "asym_grpo", "delta": 1}, "dr_grpo"),
        ({"name": "asym_grpo", "delta": 1, "scale": "std"}, "grpo"),
    ],
)
@given(rows=RATES)
def test_reductions(spec: dict[str, Any], same: str, rows: list[list[float]]) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    assert torch.allclose(build_estimator(spec)(batch), build_estimator(same)(batch), atol=1e-12)


@given(rows=RATES, alpha=st.floats(1, 6))
def test_power_alpha_sums_to_zero_and_keeps_signs(rows: list[list[float]], alpha: float) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    values = build_estimator("power_alpha", alpha=alpha)(batch)
    centred = build_estimator("dr_grpo")(batch)
    assert values.sum(dim=1).abs().max() < 1e-12
    assert (values * centred >= 0).all()
    assert (values.abs() <= centred.abs() + 1e-15).all()


@pytest.mark.parametrize("alpha", [1.0, 2.0, 3.0, 4.5])
def test_normalised_mass_peaks_at_a_quarter(alpha: float) -> None:
    # max over p of C p qᵅ, at p = 1/(1+α); here on a group of 1100 for α whole or half.
    size = 1100
    successes = round(size / (1 + alpha))
    rewards = (torch.arange(size) < successes).double()[None]
    values = build_estimator("power_alpha", alpha=alpha, normalize=True)(
        GroupBatch(rewards=rewards)
    )
    assert (values * rewards).mean().item() == pytest.approx(0.25, abs=1e-6)


@given(rows=RATES, delta=st.floats(0.05, 5))
def test_asym_grpo_only_touches_the_negative_side(rows: list[list[float]], delta: float) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    values = build_estimator("asym_grpo", delta=delta)(batch)
    centred = build_estimator("dr_grpo")(batch)
    assert torch.equal(values.clamp(min=0), centred.clamp(min=0))
    assert torch.allclose(values.clamp(max=0) * delta, centred.clamp(max=0))


def test_asym_grpo_takes_rewards_outside_the_unit_interval(
    advantages: Callable[..., Tensor],
) -> None:
    # p = -1: d = 4, -2, -2.
    assert advantages("asym_grpo", [[3.0, -3, -3]]).tolist() == [[4, -4, -4]]


@given(rows=RATES)
def test_maxrl_is_dr_grpo_over_the_mean(rows: list[list[float]]) -> None:
    rewards = torch.tensor(rows, dtype=torch.float64)
    values = build_estimator("maxrl")(GroupBatch(rewards=rewards))
    centred = build_estimator("dr_grpo")(GroupBatch(rewards=rewards))
    assert torch.allclose(values * rewards.mean(dim=1, keepdim=True), centred, atol=1e-12)


@pytest.mark.parametrize("name", ["power_alpha", "maxrl"])
@pytest.mark.parametrize("row", [[2.0, 1.5, 1.0, 1.0], [-1.0, 0.0, 0.0, 0.5]])
def test_means_that_are_no_rates_are_refused(name: str, row: list[float]) -> None:
    estimator = build_estimator(name)
    with pytest.raises(BatchError, match=r"needs it in \[0, 1\], got .*rescale"):
        estimator(GroupBatch(rewards=torch.tensor([[0.0, 1.0, 0.0, 1.0], row])))


def test_maxrl_refuses_different_rewards_with_mean_zero() -> None:
    estimator = build_estimator("maxrl")
    with pytest.raises(BatchError, match="divides by a prompt's mean reward"):
        estimator(GroupBatch(rewards=torch.tensor([[1.0, -1.0]])))
