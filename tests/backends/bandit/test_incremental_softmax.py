"""A policy that is kept from step to step is the softmax of its logits at any time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from advsweep.backends.bandit.softmax import IncrementalSoftmax, Policy

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
