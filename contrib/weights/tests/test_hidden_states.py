"""Hidden states of correct and failed rollouts, by hand and by brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from advsweep_weights import hidden_states
from advsweep_weights.hidden_states import (
    Direction,
    SampledTokens,
    analyse_hidden_states,
    mean_cosine,
)
from torch import Tensor

from advsweep.errors import ConfigError


def drawn(tokens: int = 40, width: int = 5, vocabulary: int = 11, seed: int = 0) -> SampledTokens:
    """Random states of 8 rollouts: 3 correct, 4 failed, 1 unscorable."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(width, generator=generator, dtype=torch.float64)
    hidden = torch.randn(tokens, width, generator=generator, dtype=torch.float64) + 2 * shared
    return SampledTokens(
        hidden=hidden,
        tokens=torch.randint(vocabulary, (tokens,), generator=generator),
        owner=torch.arange(tokens) % 8,
        verdicts=torch.tensor([1.0, 0, 0, 1, math.nan, 0, 1, 0]),
        advantages=torch.tensor([0.5, -0.5, -1, 2, 0, -1, 1, -2]),
        head=torch.randn(vocabulary, width, generator=generator, dtype=torch.float64),
        temperature=0.7,
    )


def errors(sampled: SampledTokens) -> Tensor:
    p = (sampled.hidden @ sampled.head.T / sampled.temperature).softmax(dim=1)
    return torch.nn.functional.one_hot(sampled.tokens, len(sampled.head)) - p


def test_mean_cosine_by_hand():
    # cos of (1, 0) and (0, 2) is 0, of (1, 0) and (3, 3) and of (0, 2) and (3, 3) √½.
    vectors = torch.tensor([[1.0, 0], [0, 2], [3, 3]])
    assert mean_cosine(vectors) == pytest.approx((0 + math.sqrt(0.5) * 2) / 3)
    assert mean_cosine(torch.tensor([[1.0, 0], [-2, 0]])) == pytest.approx(-1)
    # What is 0 has no direction; one alone has no pair.
    assert mean_cosine(torch.cat((vectors, torch.zeros(2, 2)))) == pytest.approx(math.sqrt(2) / 3)
    assert math.isnan(mean_cosine(vectors[:1]))
    assert math.isnan(mean_cosine(vectors[:0]))


def test_a_residual_by_hand():
    # Two tokens of two words with equal logits: v = ±(½, -½). u₁ is e₀, so h⊥ = (0, 1) and
    # (0, 3). R of the correct token is v h⊥ᵀ with norm √½, of the failed one 3 √½.
    sampled = SampledTokens(
        hidden=torch.tensor([[9.0, 1.0], [9.0, 3.0]]),
        tokens=torch.tensor([0, 1]),
        owner=torch.tensor([0, 1]),
        verdicts=torch.tensor([1.0, 0.0]),
        advantages=None,
        head=torch.zeros(2, 2),
        temperature=1.0,
    )
    found = analyse_hidden_states(sampled, Direction.WEIGHTS, changed=torch.tensor([1.0, 0.0]))
    assert found.correct.residual == pytest.approx(math.sqrt(0.5))
    assert found.residual_ratio == pytest.approx(3)
    assert found.clt_baseline == 1
    # Σ‖h‖² = 82 + 90, of which 81 + 81 lie along e₀.
    assert found.along == pytest.approx(162 / 172)
    assert math.isnan(found.correct.rho)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("chunk", [1 << 24, 80])
def test_as_brute_force_has_it(direction, chunk, monkeypatch):
    monkeypatch.setattr(hidden_states, "_CHUNK", chunk)
    sampled = drawn()
    changed = torch.linalg.qr(torch.randn(5, 1, dtype=torch.float64)).Q[:, 0]
    weight = sampled.advantages[sampled.owner].double()
    matrices = {
        Direction.HIDDEN: sampled.hidden,
        Direction.GRADIENT: sum(
            a * torch.outer(v, h)
            for a, v, h in zip(weight, errors(sampled), sampled.hidden, strict=True)
        ),
        Direction.WEIGHTS: changed[None],
    }
    first = torch.linalg.svd(matrices[direction]).Vh[0]
    rest = sampled.hidden - (sampled.hidden @ first)[:, None] * first
    found = analyse_hidden_states(sampled, direction, changed=changed)
    for outcome, group in ((1, found.correct), (0, found.failed)):
        member = sampled.verdicts[sampled.owner] == outcome
        pairs = [torch.cosine_similarity(a, b, dim=0) for a, b in combinations(rest[member], 2)]
        assert group.rho == pytest.approx(torch.stack(pairs).mean().item())
        r = errors(sampled)[member].T @ rest[member] / member.sum()
        assert group.residual == pytest.approx(r.norm().item())
        assert group.tokens == member.sum()
    assert (found.correct.rollouts, found.failed.rollouts, found.unscorable) == (3, 4, 1)
    assert found.residual_ratio == pytest.approx(found.failed.residual / found.correct.residual)
    assert found.clt_baseline == pytest.approx(math.sqrt(15 / 20))


@pytest.mark.parametrize("outcome", [0.0, 1.0, math.nan])
def test_a_group_without_rollouts_has_no_numbers(outcome):
    found = analyse_hidden_states(replace(drawn(), verdicts=torch.full((8,), outcome)))
    assert math.isnan(found.residual_ratio)
    assert math.isnan(found.clt_baseline)
    assert math.isnan(found.correct.rho) == (outcome != 1)


def test_no_direction_and_no_tokens_are_refused():
    sampled = replace(drawn(), advantages=torch.zeros(8))
    for direction in (Direction.GRADIENT, Direction.WEIGHTS):
        with pytest.raises(ConfigError, match="expected a matrix with a direction, got zeros"):
            analyse_hidden_states(sampled, direction, changed=torch.zeros(5))
    with pytest.raises(ConfigError, match="got none"):
        analyse_hidden_states(drawn(tokens=0))
