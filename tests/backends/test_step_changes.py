"""Metrics of how far a step moves weights and policy."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.backends import step_changes
from advsweep.backends.bandit.tables import divergences
from advsweep.backends.step_changes import (
    ChangeMeter,
    WeightSample,
    kl_estimate,
    loss_variance,
)


def test_norms_and_cosine_of_two_steps():
    """From 0: (3, 4) and then (0, -5): lengths 5 and 5, together (3, -1), cosine -20/25."""
    weights = {"a": torch.zeros(1), "b": torch.zeros(1, 1)}
    meter = ChangeMeter(weights)
    weights["a"] += 3
    weights["b"] += 4
    assert meter.measure() == {"optim/change_norm": 5.0, "optim/step_norm": 5.0}
    weights["b"] -= 5
    assert meter.measure() == pytest.approx(
        {
            "optim/change_norm": math.sqrt(10),
            "optim/step_norm": 5.0,
            "optim/update_cosine": -0.8,
        }
    )


def test_a_step_that_changes_nothing_has_no_direction():
    weights = {"a": torch.ones(2)}
    meter = ChangeMeter(weights)
    weights["a"] += 1
    meter.measure()
    assert "optim/update_cosine" not in meter.measure()
    weights["a"] += 1
    assert "optim/update_cosine" not in meter.measure()


def test_a_restored_meter_continues():
    weights = {"a": torch.zeros(3)}
    meter, other = ChangeMeter(weights), ChangeMeter(weights)
    weights["a"] += torch.tensor([1.0, 2.0, 3.0])
    meter.measure()
    other.restore(meter.state())
    weights["a"] += torch.tensor([1.0, 0.0, -1.0])
    assert meter.measure() == other.measure()


@given(st.lists(st.floats(-2, 2), min_size=2, max_size=6), st.integers(0, 5))
def test_k3_averages_to_the_divergence(logits, shift):
    """Each token weighted by its probability under the old policy gives KL(old ‖ new)."""
    before = torch.tensor(logits, dtype=torch.float64)
    change = torch.zeros_like(before)
    change[shift % len(logits)] = 0.3
    old, new = before.log_softmax(0), (before + change).log_softmax(0)
    expected = (old.exp() * (old - new)).sum()
    mask = torch.ones(1, 1, dtype=torch.bool)
    tokens = [
        kl_estimate(o.view(1, 1), n.view(1, 1), mask)[0] for o, n in zip(old, new, strict=True)
    ]
    assert all(kl >= 0 for kl in tokens)
    assert torch.allclose((old.exp() * torch.stack(tokens)).sum(), expected, atol=1e-12)
    assert torch.allclose(divergences(old.exp(), change), expected, atol=1e-12)


def test_tokens_outside_the_mask_do_not_count():
    old, new = torch.tensor([[0.0, math.nan]]), torch.tensor([[-math.log(2), 3.0]])
    kl, tokens = kl_estimate(old, new, torch.tensor([[True, False]])).tolist()
    assert tokens == 1
    assert kl == pytest.approx(0.5 - 1 + math.log(2))


def test_the_variance_of_losses():
    assert loss_variance([1.0, 3.0]) == {"loss/variance": 1.0}
    assert loss_variance([1.0]) == {}
    assert loss_variance([1.0, math.nan]) == {}


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(torch.float32, 0.99, 1.0), (torch.bfloat16, 0.0, 0.05)]
)
def test_an_update_below_the_rounding_of_weights_changes_few(dtype, low, high):
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(40, 50).to(dtype)) for _ in range(3)]
    without_gradient, half, whole = weights
    half.grad = torch.randn(40, 50).to(dtype)
    half.grad[:20] = 0
    whole.grad = torch.randn(40, 50).to(dtype)
    sample = WeightSample(weights)
    torch.optim.AdamW(weights, lr=1e-6, weight_decay=0.0).step()
    assert low <= sample.metrics()["optim/weights_changed"] <= high
    assert WeightSample([without_gradient]).metrics() == {}


def test_many_weights_are_sampled(monkeypatch):
    monkeypatch.setattr(step_changes, "_SAMPLED_WEIGHTS", 10)
    weight = torch.nn.Parameter(torch.ones(95))
    weight.grad = torch.ones(95)
    sample = WeightSample([weight])
    with torch.no_grad():
        # Every tenth weight is looked at: four of the ten.
        weight[:35] = 2.0
    assert sample.metrics() == {"optim/weights_changed": 0.4}
