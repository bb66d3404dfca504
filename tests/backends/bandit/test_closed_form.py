"""Exact quantities of a table, and the expected effect of a step."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.backends.bandit import closed_form
from advsweep.backends.bandit.closed_form import (
    expected_changes,
    expected_step,
    solve_rate_gradient,
    success_weights,
)
from advsweep.backends.bandit.softmax import Policy, score_gradient
from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator

BEFORE = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.4, 0.4]]).double().log()
AFTER = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.1, 0.4]]).double().log()
CORRECT = torch.tensor([[True, True, False], [False, True, False]])


def quantities(
    before: Tensor, after: Tensor, correct: Tensor, ks: tuple[int, ...]
) -> dict[str, float]:
    [found] = closed_form.quantities(Policy(before[None]), Policy(after[None]), correct[None], ks)
    return found


def test_quantities_by_hand() -> None:
    found = quantities(BEFORE, AFTER, CORRECT, (1, 2))
    # Solve rates are 0.8 and 0.1 after the step.
    assert found["exact/pass@1"] == pytest.approx(0.45)
    assert found["exact/pass@2"] == pytest.approx((0.96 + 0.19) / 2)

    def entropy(*policy: float) -> float:
        return -sum(p * math.log(p) for p in policy)

    after = (entropy(0.5, 0.3, 0.2) + entropy(0.5, 0.1, 0.4)) / 2
    before = (entropy(0.5, 0.25, 0.25) + entropy(0.2, 0.4, 0.4)) / 2
    assert found["exact/entropy"] == pytest.approx(after)
    assert found["exact/entropy_change"] == pytest.approx(after - before)
    # Correct ones have the shares 5/8 and 3/8 of the first prompt; the second has but one.
    assert found["exact/correct_modes"] == pytest.approx((math.exp(entropy(5 / 8, 3 / 8)) + 1) / 2)
    assert [found[f"exact/probability_{i}"] for i in range(3)] == pytest.approx([0.5, 0.2, 0.3])


def test_the_predicted_entropy_change_is_the_first_order() -> None:
    direction = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.0, -1.0]]).double()
    errors = []
    for size in (1e-2, 1e-3):
        after = torch.log_softmax(BEFORE.double() + size * direction, dim=1)
        found = quantities(BEFORE.double(), after, CORRECT, ())
        policy, step = BEFORE.double().exp(), size * direction
        means = (policy * step).sum(dim=1), (policy * BEFORE).sum(dim=1)
        covariance = (policy * step * BEFORE).sum(dim=1) - means[0] * means[1]
        assert found["exact/entropy_predicted"] == pytest.approx(-covariance.mean().item())
        errors.append(abs(found["exact/entropy_change"] - found["exact/entropy_predicted"]))
        assert errors[-1] < 0.2 * abs(found["exact/entropy_change"])
    # What is left is of second order.
    assert errors[1] < errors[0] / 50


def test_many_behaviours_have_no_metric_each() -> None:
    policy = torch.full((1, 9), 1 / 9).log()
    found = quantities(policy, policy, torch.ones(1, 9, dtype=torch.bool), (4,))
    assert set(found) == {
        "exact/pass@4",
        "exact/pass@1_change",
        "exact/entropy",
        "exact/correct_modes",
        "exact/entropy_change",
        "exact/entropy_predicted",
    }
    assert found["exact/correct_modes"] == pytest.approx(9)


TEMPERATURE = 0.7

ESTIMATORS: list[Any] = [
    "grpo",
    "rloo",
    "maxrl",
    "psr",
    "nsr",
    "hard_focused",
    {"name": "power_alpha", "alpha": 3},
    {"name": "asym_grpo", "delta": 0.5},
    {"name": "passk_mix", "k": 2},
    # Its advantages hang on the order within a group.
    {"name": "passk_loo", "k": 2},
]


@pytest.fixture
def correct() -> Tensor:
    """Two prompts with four behaviours, two and one of them correct."""
    return torch.tensor([[True, True, False, False], [False, True, False, False]])


@pytest.fixture
def policy() -> Tensor:
    """log π of three runs."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 2, 4, dtype=torch.float64, generator=generator)
    return Policy.of(logits, TEMPERATURE).log


def steps(policy: Tensor, groups: Tensor, advantages: Tensor) -> Tensor:
    """(1/G) Σ A ∂log π/∂z of each group of one prompt."""
    gradient = score_gradient(Policy(policy.expand(len(groups), -1)), groups, advantages)
    return gradient / TEMPERATURE / groups.shape[1]


def labelled(spec: Any) -> str:
    return spec if isinstance(spec, str) else spec["name"]


def test_weights_by_hand() -> None:
    # Dr. GRPO, G = 4: r - p, of a success beside k others 1 - (k+1)/4, of a failure -k/4.
    mean_centred = success_weights(build_estimator("dr_grpo"), 4)
    assert mean_centred.success.tolist() == [0.75, 0.5, 0.25, 0.0]
    assert mean_centred.failure.tolist() == [0.0, -0.25, -0.5, -0.75]
    # PSR: 1 and 0 whatever the others are, and so for a group of one.
    alone = success_weights(build_estimator("psr"), 1)
    assert (alone.success.tolist(), alone.failure.tolist()) == ([1.0], [0.0])


def test_orders_are_enumerated_up_to_groups_of_16() -> None:
    with pytest.raises(BatchError, match="all orders within a group are enumerated; got 18"):
        success_weights(build_estimator({"name": "passk_loo", "k": 2}), 18)


@pytest.mark.parametrize("spec", ESTIMATORS, ids=labelled)
def test_the_expected_step_is_that_of_full_enumeration(
    spec: Any, policy: Tensor, correct: Tensor
) -> None:
    estimator = build_estimator(spec)
    groups = torch.tensor(list(itertools.product(range(4), repeat=4)))
    found = expected_step(policy, correct, success_weights(estimator, 4), TEMPERATURE)
    assert found.shape == (3, 2, 4)
    for run, prompt in itertools.product(range(3), range(2)):
        advantages = estimator(GroupBatch(rewards=correct[prompt].double()[groups]))
        row = policy[run, prompt]
        chances = row[groups].sum(dim=1).exp()
        every = steps(row, groups, advantages)
        assert torch.allclose(found[run, prompt], chances @ every, atol=1e-12)
    assert found.abs().max() > 1e-3


def test_sampled_steps_have_this_mean(policy: Tensor, correct: Tensor) -> None:
    row, estimator = policy[0, 0], build_estimator("grpo")
    uniform = torch.rand(20_000, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    groups = Policy(row.expand(20_000, -1)).sample(uniform)
    sampled = steps(row, groups, estimator(GroupBatch(rewards=correct[0].double()[groups])))
    errors = sampled.std(dim=0) / math.sqrt(20_000)
    expected = expected_step(row, correct[0], success_weights(estimator, 6), TEMPERATURE)
    assert ((sampled.mean(dim=0) - expected).abs() < 4 * errors).all()
    assert (expected.abs() > 8 * errors).all()


def test_mean_centred_steps_follow_the_solve_rate(policy: Tensor, correct: Tensor) -> None:
    """Dr. GRPO's gap is 1 - 1/G at every solve rate, so that its step is (1 - 1/G) ∂p/∂z."""
    found = expected_step(
        policy, correct, success_weights(build_estimator("dr_grpo"), 5), TEMPERATURE
    )
    assert torch.allclose(found, 0.8 * solve_rate_gradient(policy, correct, TEMPERATURE))


def test_prompts_that_always_or_never_succeed_do_not_move(correct: Tensor) -> None:
    logits = torch.tensor([[0.0, 0.0, -2000.0, -2000.0], [0.0, -2000.0, 0.0, 0.0]]).double()
    policy = Policy.of(logits).log
    found = expected_step(policy, correct, success_weights(build_estimator("psr"), 4))
    assert found.tolist() == [[0.0] * 4] * 2


def test_a_run_has_the_same_step_alone_as_among_others(policy: Tensor, correct: Tensor) -> None:
    weights = success_weights(build_estimator("grpo"), 3)
    together = expected_step(policy, correct.expand(3, -1, -1), weights, TEMPERATURE)
    for run in range(3):
        alone = expected_step(policy[run], correct, weights, TEMPERATURE)
        assert torch.equal(together[run], alone)


def test_the_solve_rate_gradient_is_that_of_autograd(correct: Tensor) -> None:
    z = torch.randn(2, 4, generator=torch.Generator().manual_seed(2)).double().requires_grad_()
    policy = Policy.of(z, TEMPERATURE).log
    (expected,) = torch.autograd.grad((policy.exp() * correct).sum(), z)
    found = solve_rate_gradient(policy.detach(), correct, TEMPERATURE)
    assert torch.allclose(found, expected)


def test_expected_changes_are_first_order(policy: Tensor, correct: Tensor) -> None:
    """What is left is of second order: steps ten times as small have errors as much smaller."""
    weights = success_weights(build_estimator("grpo"), 4)
    direction = expected_step(policy, correct, weights, TEMPERATURE)

    def errors(size: float) -> Tensor:
        moves = size * direction
        after = Policy.of(TEMPERATURE * policy + moves, TEMPERATURE)
        found = expected_changes(policy, correct, moves, TEMPERATURE)
        solved = ((after.probabilities - policy.exp()) * correct).sum(dim=-1).mean(dim=-1)
        spread = (after.entropies - Policy(policy).entropies).mean(dim=-1)
        measured = torch.stack((solved, spread))
        expected = torch.stack((found["exact/pass@1_expected"], found["exact/entropy_expected"]))
        assert measured.shape == (2, 3)
        assert (expected[0] > 0).all()
        return ((measured - expected) / expected).abs()

    coarse, fine = errors(0.1), errors(0.01)
    assert (coarse < 0.2).all()
    assert (fine < coarse / 5).all()
