"""Policies: sampling, entropies and gradients, from logits and step by step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from advsweep.backends.bandit.softmax import (
    IncrementalSoftmax,
    Policy,
    entropy_gradient,
    score_gradient,
)


@pytest.fixture
def logits() -> Tensor:
    """Two prompts with five behaviours."""
    return torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_entropy_and_certainty() -> None:
    # π = 3/4, 1/4: H = 2 ln 2 - (3/4) ln 3, KL(uniform ‖ π) = ½ ln(2/3) + ½ ln 2.
    policy = Policy.of(torch.tensor([[math.log(3), 0.0]]).double())
    assert policy.entropies.item() == pytest.approx(2 * math.log(2) - 0.75 * math.log(3))
    expected = 0.5 * math.log(2 / 3) + 0.5 * math.log(2)
    assert policy.certainties().item() == pytest.approx(expected)


def test_a_temperature_divides_the_logits(logits: Tensor) -> None:
    cold = Policy.of(logits, 0.5).probabilities
    assert torch.allclose(cold, torch.softmax(2 * logits, dim=-1))


def test_samples_follow_the_distribution(logits: Tensor) -> None:
    """Every number of an even grid is one sample: shares are probabilities to the grid's width."""
    policy = Policy.of(logits)
    grid = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    actions = policy.sample(grid.expand(2, -1))
    shares = torch.nn.functional.one_hot(actions, 5).double().mean(dim=1)
    assert torch.allclose(shares, policy.probabilities, atol=1.01e-4)


@pytest.mark.parametrize("behaviours", [2, 3, 16, 60, 64, 65, 80, 256])
def test_however_many_behaviours_there_are_all_have_their_share(behaviours: int) -> None:
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


def test_impossible_behaviours_are_never_sampled() -> None:
    policy = Policy(torch.tensor([[-torch.inf, 0.0, -torch.inf]]))
    edges = torch.tensor([[0.0, 0.5, 1 - 2**-24]])
    assert policy.sample(edges).tolist() == [[1, 1, 1]]


def test_the_score_gradient_is_that_of_autograd(logits: Tensor) -> None:
    actions = torch.tensor([[0, 0, 3], [1, 2, 4]])
    weights = torch.tensor([[0.5, -1.0, 2.0], [1.0, 1.0, -0.3]], dtype=torch.float64)
    z = logits.clone().requires_grad_()
    policy = Policy.of(z)
    (expected,) = torch.autograd.grad((policy.log_probs(actions) * weights).sum(), z)
    found = score_gradient(Policy(policy.log.detach()), actions, weights)
    assert torch.allclose(found, expected)


def test_the_entropy_gradient_is_that_of_autograd(logits: Tensor) -> None:
    z = logits.clone().requires_grad_()
    policy = Policy.of(z)
    (expected,) = torch.autograd.grad(policy.entropies.sum(), z)
    assert torch.allclose(entropy_gradient(Policy(policy.log.detach())), expected)


def test_a_run_has_the_same_numbers_alone_as_among_others() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 9, 33, generator=generator)
    uniform = torch.rand(6, 9, 8, generator=generator)
    weights = torch.randn(6, 9, 8, generator=generator)

    def numbers(runs: slice) -> list[Tensor]:
        policy = Policy.of(logits[runs], 0.9)
        actions = policy.sample(uniform[runs])
        return [
            policy.log,
            actions,
            policy.entropies,
            policy.certainties(),
            score_gradient(policy, actions, weights[runs]),
            entropy_gradient(policy),
        ]

    together = numbers(slice(None))
    for run in range(6):
        alone = numbers(slice(run, run + 1))
        assert all(torch.equal(a[run], b[0]) for a, b in zip(together, alone, strict=True))


TEMPERATURES = torch.tensor([1.0, 0.7, 2.0])[:, None, None]


class Changing:
    """Logits of three runs, with the policy that is kept of them."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.base = 3 * torch.randn(3, 5, 21, generator=self.generator)
        self.logits = self.base.clone()
        self.kept = IncrementalSoftmax(self.logits, self.base, TEMPERATURES)

    def move(self, size: float) -> None:
        """Moves the logits of two behaviours of each prompt, the second twice."""
        actions = torch.randint(0, 21, (3, 5, 2), generator=self.generator)
        actions = torch.cat((actions, actions[..., 1:]), dim=-1)
        moves = size * torch.randn(3, 5, 3, generator=self.generator)
        moves[..., 2] = moves[..., 1]
        moved = self.logits.gather(-1, actions) + moves
        self.logits.scatter_(-1, actions, moved)
        self.kept.follow(actions, moved)

    def move_all(self, size: float) -> None:
        self.logits += size * torch.randn(self.logits.shape, generator=self.generator)
        self.kept.renew()


@pytest.fixture
def changing() -> Changing:
    return Changing()


def sampled(policy: Policy) -> Tensor:
    runs = len(policy.log)
    return policy.sample(((torch.arange(400) + 0.5) / 400).expand(runs, 5, -1))


def check(changing: Changing) -> None:
    """Against a softmax in double precision, and to the bit against one that is kept anew."""
    logits, kept = changing.logits, changing.kept
    expected = Policy.of(logits.double(), TEMPERATURES.double())
    actions = sampled(kept)
    likely = expected.probabilities.gather(-1, actions) > 1e-6
    assert likely.all()
    found = kept.log_probs(actions).double()
    scale = 1 + logits.abs().max()
    assert torch.allclose(found, expected.log_probs(actions), atol=2e-6 * scale)
    assert torch.allclose(kept.probabilities.double(), expected.probabilities, atol=1e-6 * scale)
    assert torch.allclose(kept.log.double(), expected.log, atol=2e-6 * scale)
    assert torch.allclose(kept.entropies.double(), expected.entropies, atol=2e-6 * scale)
    assert (kept.entropies >= 0).all()
    assert torch.allclose(kept.certainties().double(), expected.certainties(), atol=2e-6 * scale)
    assert (sampled(kept) == sampled(expected)).double().mean() > 0.99
    anew = IncrementalSoftmax(logits, changing.base, TEMPERATURES)
    for one, other in ((kept, anew), (kept[1:3], anew[1:3])):
        assert torch.equal(one.entropies, other.entropies)
        assert torch.equal(sampled(one), sampled(other))
    assert torch.equal(kept.log_probs(actions), anew.log_probs(actions))


def test_at_first_and_when_few_logits_or_all_have_moved(changing: Changing) -> None:
    check(changing)
    for size in (0.1, 1.0, 5.0):
        changing.move(size)
        check(changing)
        changing.move_all(size)
        check(changing)


def test_logits_may_rise_beyond_what_sums_of_exponentials_hold(changing: Changing) -> None:
    """And come back: what is kept follows from the logits, not from how they came to be."""
    peak = 0.0
    for size in (50.0, 200.0, 200.0, 1e4):
        changing.move(size)
        peak = max(peak, changing.logits.max().item())
        check(changing)
    assert peak > 1e3
    changing.logits.copy_(changing.base)
    changing.kept.renew()
    check(changing)


def test_a_part_changes_what_the_whole_is(changing: Changing) -> None:
    part, logits = changing.kept[1:2], changing.logits[1:2]
    before = changing.kept.entropies.clone()
    actions = torch.zeros(1, 5, 1, dtype=torch.int64)
    moved = logits.gather(-1, actions) + 2.0
    logits.scatter_(-1, actions, moved)
    part.follow(actions, moved)
    changing.kept.forget()
    check(changing)
    changed = (changing.kept.entropies != before).any(dim=1)
    assert changed.tolist() == [False, True, False]
    assert (part.blank() == 0).all()
