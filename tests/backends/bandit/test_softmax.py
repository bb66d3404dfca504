"""Sampling, entropies and gradients of a softmax, against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from advsweep.backends.bandit import softmax


@pytest.fixture
def logits() -> Tensor:
    """Two prompts with five behaviours."""
    return torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_entropy_and_certainty() -> None:
    # π = 3/4, 1/4: H = 2 ln 2 - (3/4) ln 3, KL(uniform ‖ π) = ½ ln(2/3) + ½ ln 2.
    policy = softmax.log_policy(torch.tensor([[math.log(3), 0.0]]).double(), 1.0)
    assert softmax.entropies(policy).item() == pytest.approx(2 * math.log(2) - 0.75 * math.log(3))
    expected = 0.5 * math.log(2 / 3) + 0.5 * math.log(2)
    assert softmax.certainties(policy).item() == pytest.approx(expected)


def test_a_temperature_divides_the_logits(logits: Tensor) -> None:
    cold = softmax.log_policy(logits, 0.5).exp()
    assert torch.allclose(cold, torch.softmax(2 * logits, dim=-1))


def test_samples_follow_the_distribution(logits: Tensor) -> None:
    """Every number of an even grid is one sample: shares are probabilities to the grid's width."""
    policy = softmax.log_policy(logits, 1.0)
    grid = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    actions = softmax.sample(policy, grid.expand(2, -1))
    shares = torch.nn.functional.one_hot(actions, 5).double().mean(dim=1)
    assert torch.allclose(shares, policy.exp(), atol=1.01e-4)


def test_impossible_behaviours_are_never_sampled() -> None:
    policy = torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    edges = torch.tensor([[0.0, 0.5, 1 - 2**-24]])
    assert softmax.sample(policy, edges).tolist() == [[1, 1, 1]]


def test_the_score_gradient_is_that_of_autograd(logits: Tensor) -> None:
    actions = torch.tensor([[0, 0, 3], [1, 2, 4]])
    weights = torch.tensor([[0.5, -1.0, 2.0], [1.0, 1.0, -0.3]], dtype=torch.float64)
    z = logits.clone().requires_grad_()
    policy = softmax.log_policy(z, 0.7)
    (expected,) = torch.autograd.grad((policy.gather(1, actions) * weights).sum(), z)
    found = softmax.score_gradient(policy.detach(), actions, weights, 0.7)
    assert torch.allclose(found, expected)


def test_the_entropy_gradient_is_that_of_autograd(logits: Tensor) -> None:
    z = logits.clone().requires_grad_()
    policy = softmax.log_policy(z, 0.7)
    (expected,) = torch.autograd.grad(softmax.entropies(policy).sum(), z)
    assert torch.allclose(softmax.entropy_gradient(policy.detach(), 0.7), expected)


def test_a_run_has_the_same_numbers_alone_as_among_others() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 9, 33, generator=generator)
    uniform = torch.rand(6, 9, 8, generator=generator)
    weights = torch.randn(6, 9, 8, generator=generator)

    def numbers(runs: slice | int) -> list[Tensor]:
        policy = softmax.log_policy(logits[runs], 0.9)
        actions = softmax.sample(policy, uniform[runs])
        return [
            policy,
            actions,
            softmax.entropies(policy),
            softmax.certainties(policy),
            softmax.score_gradient(policy, actions, weights[runs], 0.9),
            softmax.entropy_gradient(policy, 0.9),
        ]

    together = numbers(slice(None))
    for run in range(6):
        assert all(torch.equal(a[run], b) for a, b in zip(together, numbers(run), strict=True))
