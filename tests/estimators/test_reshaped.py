"""The reweighted mean-centred estimators, t2t aside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
