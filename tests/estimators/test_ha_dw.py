"""ha_dw."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.diagnostics import expected_masses
from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator


def batch_of(*successes: int, size: int = 8, **inputs: Any) -> GroupBatch:
    """A batch of binary groups with these numbers of successes."""
    rewards = (torch.arange(size) < torch.tensor(successes)[:, None]).double()
    return GroupBatch(rewards=rewards, **inputs)


def test_worked_values() -> None:
    # p = 1/4, C = 0.4: 0.75 e^0.15 and -0.25 e^-0.15.
    values = build_estimator("ha_dw", c0=0.4)(batch_of(2))[0]
    assert values[[0, 7]].tolist() == pytest.approx([0.8713756820, -0.2151769941], abs=1e-9)
    # λ = 2 on grpo's √3 and -1/√3.
    values = build_estimator("ha_dw", c0=0.4, lam=2, scale="std")(batch_of(2))[0]
    expected = [2 * math.sqrt(3) * math.exp(0.15), -2 / math.sqrt(3) * math.exp(-0.15)]
    assert values[[0, 7]].tolist() == pytest.approx(expected)


def test_the_baseline_starts_at_the_first_mean_reward_and_follows_the_rest() -> None:
    estimator = build_estimator("ha_dw")
    assert estimator.state_dict() == {"c": None}
    # Means 3/8, 1/2 and 1: C = 0.375 is used twice, the first move going nowhere;
    # then 0.375 + 0.1 · 0.125 = 0.3875.
    assert estimator.compute(batch_of(2, 4)).info == {"c": 0.375}
    assert estimator.compute(batch_of(3, 5)).info == {"c": 0.375}
    assert estimator.compute(batch_of(8, 8)).info == pytest.approx({"c": 0.3875})
    assert estimator.state_dict() == pytest.approx({"c": 0.3875 + 0.1 * 0.6125})
    estimator.reset()
    assert estimator.state_dict() == {"c": None}


def test_options_of_the_baseline() -> None:
    # From 0.5 half the way to 1/4 at once.
    estimator = build_estimator("ha_dw", c0=0.5, rate=0.5, moves="before")
    assert estimator.compute(batch_of(2)).info == {"c": 0.375}
    fixed = build_estimator("ha_dw", c0=0.5, rate=0)
    for successes in (0, 3, 8):
        assert fixed.compute(batch_of(successes)).info == {"c": 0.5}


def test_the_mean_reward_is_over_scorable_rollouts() -> None:
    rewards = torch.tensor([[1.0, 0.0], [1.0, float("nan")]])
    mask = torch.tensor([[True, True], [True, False]])
    info = build_estimator("ha_dw").compute(GroupBatch(rewards=rewards, mask=mask)).info
    assert info == pytest.approx({"c": 2 / 3})


@given(st.lists(st.integers(0, 8), min_size=1, max_size=5), st.floats(0, 1), st.floats(0.1, 3))
def test_masses(successes: list[int], c: float, lam: float) -> None:
    batch = batch_of(*successes)
    values = build_estimator("ha_dw", c0=c, lam=lam)(batch)
    p = batch.rewards.mean(dim=1)
    spread = lam * p * (1 - p)
    gap = p - c
    assert torch.allclose((values * batch.rewards).mean(dim=1), spread * (-gap).exp())
    assert torch.allclose(-(values * (1 - batch.rewards)).mean(dim=1), spread * gap.exp())


def test_expected_masses_are_of_a_baseline_at_the_solve_rate() -> None:
    # C is the first mean reward, p; λ E[p̂ q̂ e^∓(p̂ - p)] over the binomial.
    p, size = 0.3, 8
    success = failure = 0.0
    for k in range(size + 1):
        chance = math.comb(size, k) * p**k * (1 - p) ** (size - k)
        share = k / size
        success += chance * share * (1 - share) * math.exp(p - share)
        failure += chance * share * (1 - share) * math.exp(share - p)
    found = expected_masses(build_estimator("ha_dw"), p, size)
    assert tuple(found) == pytest.approx((success, failure))


@given(st.integers(0, 8), st.floats(0.1, 3))
def test_at_the_baseline_it_is_dr_grpo(successes: int, lam: float) -> None:
    # In the first step of one prompt C is its solve rate.
    batch = batch_of(successes)
    values = build_estimator("ha_dw", lam=lam)(batch)
    assert torch.allclose(values, lam * build_estimator("dr_grpo")(batch))


def test_easier_prompts_than_of_late_count_less_for_success_and_more_for_failure() -> None:
    values = build_estimator("ha_dw", c0=0.5)(batch_of(2, 6))
    centred = build_estimator("dr_grpo")(batch_of(2, 6))
    ratio = values / centred
    assert ratio[0, 0] > 1 > ratio[0, 7]
    assert ratio[1, 0] < 1 < ratio[1, 7]


def test_means_whose_exponential_would_overflow_are_refused_and_forgotten() -> None:
    estimator = build_estimator("ha_dw")
    estimator(batch_of(4))
    with pytest.raises(BatchError, match=r"needs it within 50, got mean rewards p of .*rescale"):
        estimator(GroupBatch(rewards=torch.tensor([[200.0, 0.0]])))
    assert estimator.state_dict() == {"c": 0.5}


@pytest.mark.parametrize("moves", ["after", "before"])
def test_two_hundred_steps_against_a_plain_loop(moves: str) -> None:
    rng = random.Random(11)
    estimator = build_estimator("ha_dw", moves=moves, rate=0.2)
    c = None
    for step in range(200):
        rate = 0.1 + 0.8 * step / 200
        rows = [[float(rng.random() < rate) for _ in range(6)] for _ in range(10)]
        mean_reward = sum(map(sum, rows)) / 60
        c = mean_reward if c is None else c
        if moves == "before":
            c = 0.8 * c + 0.2 * mean_reward
        expected = []
        for row in rows:
            p = sum(row) / 6
            expected.append([(r - p) * math.exp(c - p if r > p else p - c) for r in row])
        batch = GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
        result = estimator.compute(batch)
        assert result.info == pytest.approx({"c": c})
        assert torch.allclose(result.values, torch.tensor(expected, dtype=torch.float64))
        if moves == "after":
            c = 0.8 * c + 0.2 * mean_reward
    assert c is not None
    assert c > 0.6, "the baseline moved"
