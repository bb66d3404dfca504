"""positive_dominant, negative_dominant, hard_focused and easy_focused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator

GRADED = st.lists(
    st.lists(st.sampled_from([-1.0, 0.0, 0.1, 0.5, 1.0, 7.5]), min_size=6, max_size=6),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize(
    ("name", "options", "success", "failure"),
    [
        # Of grpo's √3 and -1/√3, ten times and a tenth of the first.
        ("positive_dominant", {}, 17.3205080757, -0.5773502692),
        ("negative_dominant", {}, 0.1732050808, -0.5773502692),
        ("positive_dominant", {"beta": 2, "base": "dr_grpo"}, 1.5, -0.25),
        ("negative_dominant", {"beta": 2, "base": "dr_grpo"}, 0.375, -0.25),
        # 0.5/√(1/4) = 1 and 0.5/√(3/4) = 1/√3 times grpo's
        ("hard_focused", {}, 1.7320508076, -0.5773502692),
        ("easy_focused", {}, 1, -1 / 3),
        ("hard_focused", {"gamma": 2, "base": "dr_grpo"}, 3, -1),
    ],
)
def test_worked_values(
    success_and_failure: Callable[..., tuple[float, float]],
    name: str,
    options: dict[str, Any],
    success: float,
    failure: float,
) -> None:
    assert success_and_failure(name, **options) == pytest.approx((success, failure), abs=1e-9)


# By sign


@given(rows=GRADED, beta=st.floats(1.01, 20))
def test_only_positive_advantages_are_scaled(rows: list[list[float]], beta: float) -> None:
    batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
    grpo = build_estimator("grpo")(batch)
    for name, factor in (("positive_dominant", beta), ("negative_dominant", 1 / beta)):
        values = build_estimator(name, beta=beta)(batch)
        assert torch.allclose(values, torch.where(grpo > 0, factor * grpo, grpo), atol=1e-12)
        assert torch.equal(values.clamp(max=0), grpo.clamp(max=0))


def test_dominant_are_asym_grpo_up_to_scale() -> None:
    batch = GroupBatch(rewards=torch.tensor([[1.0, 0, 0, 1, 0.5]], dtype=torch.float64))
    asym = build_estimator("asym_grpo", delta=0.25, scale="std")(batch)
    assert torch.allclose(build_estimator("negative_dominant", beta=4)(batch) * 4, asym)


# By difficulty


@pytest.mark.parametrize(("name", "omega"), [("hard_focused", 1.0), ("easy_focused", 0.0)])
def test_focused_are_the_ends_of_a_grae(name: str, omega: float) -> None:
    # Shifted rewards give the batch the mean reward ω; the solve rates are given instead.
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.float64)
    shifted = rewards - rewards.mean() + omega
    rates = rewards.mean(dim=1)
    a_grae = build_estimator("a_grae", parts="sample")
    values = a_grae(GroupBatch(rewards=shifted, solve_rates=rates))
    assert torch.allclose(build_estimator(name)(GroupBatch(rewards=rewards)), values)


@pytest.mark.parametrize("name", ["hard_focused", "easy_focused"])
def test_rates_of_zero_and_one_are_not_rescaled(name: str) -> None:
    rewards = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, -1.0], [1.5, 0.5]])
    for base in ("reinforce", "grpo"):
        values = build_estimator(name, base=base)(GroupBatch(rewards=rewards))
        assert torch.equal(values, build_estimator(base)(GroupBatch(rewards=rewards)))


@pytest.mark.parametrize("name", ["hard_focused", "easy_focused"])
def test_means_that_are_no_rates_are_refused(name: str) -> None:
    with pytest.raises(BatchError, match=r"needs it in \[0, 1\], got 1\.5"):
        build_estimator(name)(GroupBatch(rewards=torch.tensor([[1.0, 2.0]])))


def test_hard_and_easy_are_each_others_mirror_image() -> None:
    rewards = torch.tensor([[1.0, 0, 0, 0, 1], [1, 1, 1, 0, 1]], dtype=torch.float64)
    hard = build_estimator("hard_focused")(GroupBatch(rewards=rewards))
    easy = build_estimator("easy_focused")(GroupBatch(rewards=1 - rewards))
    assert torch.allclose(hard, -easy)
    assert hard[0, 0].item() == pytest.approx(0.5 * math.sqrt(1.5) / math.sqrt(0.4))
