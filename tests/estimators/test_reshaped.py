"""The reweighted mean-centred estimators, t2t aside."""

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

BINARY = st.lists(
    st.lists(st.sampled_from([0.0, 1.0]), min_size=8, max_size=8), min_size=1, max_size=4
)


@pytest.mark.parametrize(
    ("name", "options", "success", "failure"),
    [
        # d q^(α-1) with d = 3/4 and -1/4, q = 3/4
        ("skew_r", {}, 0.3247595264, -0.1082531755),  # d √(3/16)
        ("power_norm", {}, 1.7320508076, -0.5773502692),  # d / √(3/16)
        ("power_norm", {"gamma": 0.25}, 1.1397535285, -0.3799178428),  # d / (3/16)^(1/4)
        ("power_norm", {"gamma": 1}, 4.0, -4 / 3),  # 1/p, -1/q
        ("easy_power", {}, 0.1875, -0.0625),  # d p
        ("easy_power", {"normalize": True}, 0.31640625, -0.10546875),  # times 1.6875
        # 0.75 · 0.75, -0.25 as it is; then -0.25 · √0.25
        ("asym_power_alpha", {}, 0.5625, -0.25),
        ("asym_power_alpha", {"alpha_s": 2, "alpha_f": 1.5}, 0.5625, -0.125),
        ("binary_contrastive", {}, 1.0, -1 / 3),
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
        ({"name": "easy_power", "alpha": 1}, "dr_grpo"),
        ({"name": "easy_power", "alpha": 1, "normalize": True}, "dr_grpo"),
        ({"name": "asym_power_alpha", "alpha_s": 1, "alpha_f": 1}, "dr_grpo"),
        ({"name": "power_norm", "gamma": 0}, "dr_grpo"),
        ({"name": "power_norm", "gamma": -0.5}, "skew_r"),
        ({"name": "asym_grpo", "delta": 1}, "dr_grpo"),
        ({"name": "asym_grpo", "delta": 1, "scale": "std"}, "grpo"),
    ],
)
@given(rows=RATES)
def test_reductions(spec: dict[str, Any], same: str, rows: list[list[float]]) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    assert torch.allclose(build_estimator(spec)(batch), build_estimator(same)(batch), atol=1e-12)


@given(rows=BINARY)
def test_on_binary_groups_the_square_root_of_power_norm_is_grpo(rows: list[list[float]]) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    values = build_estimator("power_norm")(batch)
    assert torch.allclose(values, build_estimator("grpo")(batch), atol=1e-12)


@given(rows=BINARY, alpha=st.floats(1, 6), normalize=st.booleans())
def test_easy_power_is_power_alpha_with_the_rewards_turned_round(
    rows: list[list[float]], alpha: float, normalize: bool
) -> None:
    rewards = torch.tensor(rows, dtype=torch.float64)
    easy = build_estimator("easy_power", alpha=alpha, normalize=normalize)
    hard = build_estimator("power_alpha", alpha=alpha, normalize=normalize)
    mirrored = -hard(GroupBatch(rewards=1 - rewards))
    assert torch.allclose(easy(GroupBatch(rewards=rewards)), mirrored, atol=1e-12)


@given(rows=BINARY)
def test_binary_contrastive_is_dr_grpo_over_the_failure_rate(rows: list[list[float]]) -> None:
    rewards = torch.tensor(rows, dtype=torch.float64)
    values = build_estimator("binary_contrastive")(GroupBatch(rewards=rewards))
    centred = build_estimator("dr_grpo")(GroupBatch(rewards=rewards))
    failure_rate = 1 - rewards.mean(dim=1, keepdim=True)
    unsolved = failure_rate[:, 0] > 0
    assert torch.allclose((values * failure_rate)[unsolved], centred[unsolved], atol=1e-12)
    assert (values[~unsolved] == 1).all()


@pytest.mark.parametrize(
    "spec",
    [
        "skew_r",
        {"name": "power_norm", "gamma": 0.3},
        {"name": "power_norm", "gamma": -2},
        {"name": "easy_power", "alpha": 2.5},
    ],
)
@given(rows=RATES)
def test_weights_of_a_prompt_keep_its_sum_at_zero_and_its_signs(
    spec: Any, rows: list[list[float]]
) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    values = build_estimator(spec)(batch)
    assert values.sum(dim=1).abs().max() < 1e-12
    assert (values * build_estimator("dr_grpo")(batch) >= 0).all()


@pytest.mark.parametrize("name", ["power_alpha", "easy_power"])
@pytest.mark.parametrize("alpha", [1.0, 2.0, 3.0, 4.5])
def test_normalised_mass_peaks_at_a_quarter(name: str, alpha: float) -> None:
    # max over p of C p qᵅ, at p = 1/(1+α) (of C pᵅ q at q = 1/(1+α)); here on a group of
    # 1100 for α whole or half.
    size = 1100
    rarer = round(size / (1 + alpha))
    successes = rarer if name == "power_alpha" else size - rarer
    rewards = (torch.arange(size) < successes).double()[None]
    values = build_estimator(name, alpha=alpha, normalize=True)(GroupBatch(rewards=rewards))
    assert (values * rewards).mean().item() == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize("name", ["power_alpha", "easy_power"])
def test_normalising_a_large_exponent_does_not_overflow(name: str) -> None:
    # C is about e (α+1)/4, so a group of p = 1/4 (or 3/4) gets C 3/4 · 0.75^999 or so: 0.
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.float64)
    values = build_estimator(name, alpha=1000, normalize=True)(GroupBatch(rewards=rewards))
    assert torch.allclose(values, torch.zeros_like(values))


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


@pytest.mark.parametrize(
    "name", ["skew_r", "power_norm", "power_alpha", "easy_power", "asym_power_alpha", "maxrl"]
)
@pytest.mark.parametrize("row", [[2.0, 1.5, 1.0, 1.0], [-1.0, 0.0, 0.0, 0.5]])
def test_means_that_are_no_rates_are_refused(name: str, row: list[float]) -> None:
    estimator = build_estimator(name)
    with pytest.raises(BatchError, match=r"needs it in \[0, 1\], got .*rescale"):
        estimator(GroupBatch(rewards=torch.tensor([[0.0, 1.0, 0.0, 1.0], row])))


def test_maxrl_refuses_different_rewards_with_mean_zero() -> None:
    estimator = build_estimator("maxrl")
    with pytest.raises(BatchError, match="divides by a prompt's mean reward"):
        estimator(GroupBatch(rewards=torch.tensor([[1.0, -1.0]])))


@pytest.mark.parametrize("row", [[1.0, -1.0], [1.5, 0.5]])
def test_power_norm_refuses_different_rewards_at_a_rate_of_zero_or_one(row: list[float]) -> None:
    batch = GroupBatch(rewards=torch.tensor([row]))
    with pytest.raises(BatchError, match=r"divides by a power of p\(1-p\)"):
        build_estimator("power_norm")(batch)
    values = build_estimator("power_norm", gamma=-0.5)(batch)
    assert torch.equal(values, torch.zeros(1, 2)), "a weight of 0 instead of an infinite one"


@pytest.mark.parametrize("reward", [0.5, -1.0, 2.0])
def test_binary_contrastive_refuses_graded_rewards(reward: float) -> None:
    with pytest.raises(BatchError, match=f"rewards of 0 and 1 only, got {reward:g}"):
        build_estimator("binary_contrastive")(GroupBatch(rewards=torch.tensor([[1.0, reward]])))
