"""Policies: sampling, entropies and gradients, in both forms."""

import math

import pytest
import torch

from advsweep.backends.bandit.tables import (
    Policy,
    ShiftedPolicy,
    entropy_gradient,
    exact_metrics,
    score_gradient,
)


@pytest.fixture
def logits():
    """Two prompts with five behaviours."""
    return torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_entropy_and_certainty():
    # π = 3/4, 1/4: H = 2 ln 2 - (3/4) ln 3, KL(uniform ‖ π) = ½ ln(2/3) + ½ ln 2.
    policy = Policy.of(torch.tensor([[math.log(3), 0.0]]).double())
    assert policy.entropies.item() == pytest.approx(2 * math.log(2) - 0.75 * math.log(3))
    expected = 0.5 * math.log(2 / 3) + 0.5 * math.log(2)
    assert policy.certainties().item() == pytest.approx(expected)


def test_samples_follow_the_distribution(logits):
    """Every number of an even grid is one sample: shares are probabilities to the grid's width."""
    policy = Policy.of(logits)
    grid = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    actions = policy.sample(grid.expand(2, -1))
    shares = torch.nn.functional.one_hot(actions, 5).double().mean(dim=1)
    assert torch.allclose(shares, policy.probabilities, atol=1.01e-4)


@pytest.mark.parametrize("behaviours", [2, 3, 16, 60, 64, 65, 80, 256])
def test_however_many_behaviours_there_are_all_have_their_share(behaviours):
    """Some of them have none, at the ends of rows and of stretches within them too."""
    generator = torch.Generator().manual_seed(behaviours)
    logits = 2 * torch.randn(3, behaviours, generator=generator)
    logits[0, ::3] = -torch.inf
    logits[1, behaviours // 2 :] = -torch.inf
    policy = Policy.of(logits)
    count = 100_000
    grid = (torch.arange(count) + 0.5) / count
    edges = torch.tensor([0.0, 1 - 2.0**-24])
    actions = policy.sample(torch.cat((grid, edges)).expand(3, -1))
    assert (policy.log_probs(actions) > -torch.inf).all()
    shares = torch.stack([torch.bincount(a, minlength=behaviours) for a in actions[:, :count]])
    # Sums of float32 are off by some 1e-7 in each place.
    assert torch.allclose(shares / count, policy.probabilities, atol=2.5e-5)


def test_the_score_gradient_is_that_of_autograd(logits):
    actions = torch.tensor([[0, 0, 3], [1, 2, 4]])
    weights = torch.tensor([[0.5, -1.0, 2.0], [1.0, 1.0, -0.3]], dtype=torch.float64)
    z = logits.clone().requires_grad_()
    policy = Policy.of(z)
    (expected,) = torch.autograd.grad((policy.log_probs(actions) * weights).sum(), z)
    found = score_gradient(Policy(policy.log.detach()), actions, weights)
    assert torch.allclose(found, expected)


def test_the_entropy_gradient_is_that_of_autograd(logits):
    z = logits.clone().requires_grad_()
    policy = Policy.of(z)
    (expected,) = torch.autograd.grad(policy.entropies.sum(), z)
    assert torch.allclose(entropy_gradient(Policy(policy.log.detach())), expected)


TEMPERATURES = torch.tensor([1.0, 0.7, 2.0])[:, None, None]


@pytest.mark.parametrize("size", [0.0, 0.1, 5.0, 50.0, 1e4])
def test_shifted_exponentials_are_a_softmax(size):
    """However far logits rise above those of the base policy."""
    generator = torch.Generator().manual_seed(0)
    base = 3 * torch.randn(3, 5, 21, generator=generator)
    logits = base + size * torch.randn(3, 5, 21, generator=generator)
    policy = ShiftedPolicy(logits, (base / TEMPERATURES).amax(-1, keepdim=True), TEMPERATURES)
    expected = Policy.of(logits.double(), TEMPERATURES.double())
    grid = ((torch.arange(400) + 0.5) / 400).expand(3, 5, -1)
    actions = policy.sample(grid)
    assert (expected.probabilities.gather(-1, actions) > 1e-6).all()
    assert (actions == expected.sample(grid)).double().mean() > 0.99
    scale = 1 + logits.abs().max()
    for found, wanted in [
        (policy.log_probs(actions), expected.log_probs(actions)),
        (policy.probabilities, expected.probabilities),
        (policy.log, expected.log),
        (policy.entropies, expected.entropies),
        (policy.certainties(), expected.certainties()),
    ]:
        assert torch.allclose(found.double(), wanted, atol=2e-6 * scale)
    assert (policy.entropies >= 0).all()


BEFORE = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.4, 0.4]]).double().log()
AFTER = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.1, 0.4]]).double().log()
CORRECT = torch.tensor([[True, True, False], [False, True, False]])


def quantities(before, after, correct, ks):
    [found] = exact_metrics(Policy(before[None]), Policy(after[None]), correct[None], ks)
    return found


def test_quantities_by_hand():
    found = quantities(BEFORE, AFTER, CORRECT, (1, 2))
    # Solve rates are 0.8 and 0.1 after the step.
    assert found["exact/pass@1"] == pytest.approx(0.45)
    assert found["exact/pass@2"] == pytest.approx((0.96 + 0.19) / 2)

    def entropy(*policy):
        return -sum(p * math.log(p) for p in policy)

    after = (entropy(0.5, 0.3, 0.2) + entropy(0.5, 0.1, 0.4)) / 2
    before = (entropy(0.5, 0.25, 0.25) + entropy(0.2, 0.4, 0.4)) / 2
    assert found["exact/entropy"] == pytest.approx(after)
    assert found["exact/entropy_change"] == pytest.approx(after - before)
    # Correct ones have the shares 5/8 and 3/8 of the first prompt; the second has but one.
    assert found["exact/correct_modes"] == pytest.approx((math.exp(entropy(5 / 8, 3 / 8)) + 1) / 2)
    assert [found[f"exact/probability_{i}"] for i in range(3)] == pytest.approx([0.5, 0.2, 0.3])


def test_the_predicted_entropy_change_is_the_first_order():
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
