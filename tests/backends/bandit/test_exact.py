"""Exact quantities of a table, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from advsweep.backends.bandit import closed_form
from advsweep.backends.bandit.softmax import Policy

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
