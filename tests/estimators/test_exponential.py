"""softmax and log_mean_exp."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.estimators import GroupBatch, build_estimator

GRADED = st.lists(
    st.lists(st.sampled_from([-1.0, 0.0, 0.1, 0.5, 0.9, 1.0, 3.0]), min_size=6, max_size=6),
    min_size=1,
    max_size=4,
)
BETAS = st.sampled_from([1e-3, 0.1, 1.0, 2.5, 10.0, 100.0, 5e3])


# softmax


@given(rows=GRADED, beta=BETAS)
def test_softmax_is_one_less_the_uniform_share(rows: list[list[float]], beta: float) -> None:
    rewards = torch.tensor(rows, dtype=torch.float64)
    values = build_estimator("softmax", beta=beta)(GroupBatch(rewards=rewards))
    assert torch.allclose(values, torch.softmax(beta * rewards, dim=1) - 1 / 6, atol=1e-12)
    assert values.sum(dim=1).abs().max() < 1e-12


# log_mean_exp


def lme(rewards: list[float], beta: float) -> float:
    largest = max(rewards)
    mean = fmean(math.exp(beta * (r - largest)) for r in rewards)
    return largest + math.log(mean) / beta


@given(rows=GRADED, beta=BETAS)
def test_log_mean_exp_with_and_without_each_rollout(rows: list[list[float]], beta: float) -> None:
    rewards = torch.tensor(rows, dtype=torch.float64)
    values = build_estimator("log_mean_exp", beta=beta)(GroupBatch(rewards=rewards))
    for row, value in zip(rows, values.tolist(), strict=True):
        expected = [lme(row, beta) - lme(row[:i] + row[i + 1 :], beta) for i in range(6)]
        assert value == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_best_that_outweighs_all_others_loses_no_digits(dtype: torch.dtype) -> None:
    # From where the others are half the total to where their weights underflow.
    row = [1.0, 0.0, 0.25, 0.0]
    for beta in torch.logspace(-1, 4, 60).tolist():
        rewards = torch.tensor([row], dtype=dtype)
        value = build_estimator("log_mean_exp", beta=beta)(GroupBatch(rewards=rewards))[0, 0]
        expected = lme(row, beta) - lme(row[1:], beta)
        assert value.item() == pytest.approx(
            expected, rel=3e-6 if dtype is torch.float32 else 1e-12
        )


def test_a_lone_scorable_rollout_gets_nothing() -> None:
    rewards = torch.tensor([[1.0, 9.0, 9.0], [1.0, 0.0, 9.0]])
    mask = torch.tensor([[True, False, False], [True, True, False]])
    for variant in ("loo", "loo_same_count"):
        estimator = build_estimator("log_mean_exp", variant=variant)
        values = estimator(GroupBatch(rewards=rewards, mask=mask))
        assert values[0].tolist() == [0, 0, 0]
        alone = estimator(GroupBatch(rewards=rewards[1:, :2]))
        assert torch.allclose(values[1:, :2], alone)
