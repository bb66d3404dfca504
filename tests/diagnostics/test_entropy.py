"""The terms of the predicted entropy change."""

from __future__ import annotations

import pytest
import torch

from advsweep.diagnostics.group_statistics import StackedRollouts
from advsweep.diagnostics.masses import entropy_terms_per_run


def entropy_terms(advantages, token_entropy, mask=None) -> tuple[float, float]:
    runs = StackedRollouts.of(advantages, mask)
    numbers = runs.numbers(advantages), runs.numbers(token_entropy)
    drift, covariance = entropy_terms_per_run(runs, *numbers).values()
    return drift.item(), covariance.item()


def test_terms_by_hand() -> None:
    advantages = torch.tensor([[1.0, 0.0], [2.0, -1.0]])
    surprisal = torch.tensor([[0.2, 0.4], [0.6, 0.8]])
    drift, covariance = entropy_terms(advantages, surprisal)
    # E[A] = 0.5, H = 0.5; E[A log π] = -(0.2 + 1.2 - 0.8) / 4 = -0.15.
    assert drift == pytest.approx(0.25)
    assert covariance == pytest.approx(-0.15 + 0.25)


def test_masked_rollouts_do_not_count() -> None:
    nan = float("nan")
    advantages = torch.tensor([[1.0, -0.5, 0.0]])
    mask = torch.tensor([[True, True, False]])
    found = entropy_terms(advantages, torch.tensor([[0.3, 0.5, nan]]), mask)
    assert found == pytest.approx(entropy_terms(advantages[:, :2], torch.tensor([[0.3, 0.5]])))


def test_covariance_predicts_the_change_of_a_softmax() -> None:
    """A step along E[A ∇log π] on one softmax: natural gradient, ΔH = -η Cov(A, log π)."""
    logits = torch.tensor([0.5, -0.3, 0.1, 1.2], dtype=torch.float64)
    values = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    p = torch.softmax(logits, 0)
    rate = 1e-5
    # The natural gradient of a tabular softmax adds η A to the logits.
    after = torch.softmax(logits + rate * (values - (p * values).sum()), 0)

    def entropy(q: torch.Tensor) -> float:
        return -(q * q.log()).sum().item()

    # Rollouts in exact proportion to p: rows of weight p, as a population of many.
    count = 200_000
    actions = torch.repeat_interleave(torch.arange(4), (p * count).round().long())
    advantages = (values - (p * values).sum())[actions][None]
    drift, covariance = entropy_terms(advantages, -p.log()[actions][None])
    assert entropy(after) - entropy(p) == pytest.approx(-rate * covariance, rel=1e-3)
    assert abs(drift) < 1e-4
