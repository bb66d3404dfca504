"""Tokens of an environment between those of the policy: they are in no loss and no metric.

`completion_mask` has holes then. Every objective is tried with every option and correction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import LossInputs, Objective
from tests.objectives.test_parts import SPECS

# Numbers of tokens that a loss may read; the first two it needs.
PER_TOKEN = ("log_probs", "old_log_probs", "reference_log_probs", "sampler_log_probs", "entropies")

# Four rollouts; the columns of the environment's tokens differ, and one rollout has none.
GENERATED = torch.tensor(
    [
        [1, 1, 0, 0, 1, 0, 1, 1],
        [1, 0, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 1, 0],
    ],
    dtype=torch.bool,
)
TOKENS = int(GENERATED.sum())

# How far the sampler and the policy in training are from π₀: no correction rejects all rollouts.
DISTANCE = torch.tensor([[0.0003], [0.3], [0.01], [0.3]], dtype=torch.float64)


def episodes(fill: float, *, per_token: bool) -> LossInputs:
    """A minibatch whose numbers of the environment's tokens, and past the end, are `fill`."""
    generator = torch.Generator().manual_seed(5)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(GENERATED.shape, generator=generator, dtype=torch.float64)

    old = noise(0.3) - 1.0
    numbers = {
        "log_probs": old + noise(1.0) * DISTANCE,
        "old_log_probs": old,
        "reference_log_probs": old + noise(0.3),
        "sampler_log_probs": old + noise(1.0) * DISTANCE,
        "entropies": noise(1.0).exp(),
    }
    advantages = noise(1.0)
    filled = {name: values.where(GENERATED, fill) for name, values in numbers.items()}
    for name in ("log_probs", "entropies"):
        filled[name].requires_grad_()
    return LossInputs(
        **filled,
        completion_mask=GENERATED,
        advantages=advantages.where(GENERATED, fill) if per_token else advantages[:, 0],
        rollouts=len(GENERATED),
        tokens=TOKENS,
    )


def without_holes(inputs: LossInputs) -> LossInputs:
    """The same minibatch, with the policy's tokens moved together."""
    order = inputs.completion_mask.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    moved: dict[str, Any] = {}
    for name in (*PER_TOKEN, "completion_mask", "advantages"):
        values = getattr(inputs, name).detach()
        moved[name] = values.gather(1, order) if values.ndim == 2 else values
    for name in ("log_probs", "entropies"):
        moved[name].requires_grad_()
    return replace(inputs, **moved)


def outcome(objective: Objective, inputs: LossInputs) -> dict[str, Tensor]:
    """The loss, its metrics, and its gradients at the policy's tokens and elsewhere."""
    output = objective.loss(inputs)
    leaves = [inputs.log_probs, inputs.entropies]
    gradients = torch.autograd.grad(output.loss, leaves, allow_unused=True, materialize_grads=True)
    found = {"loss": output.loss.detach(), **output.metrics}
    for name, gradient in zip(("log π", "entropy"), gradients, strict=True):
        assert not gradient[~inputs.completion_mask].any(), name
        found[f"by {name}"] = gradient[inputs.completion_mask]
    return found


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: "-".join(map(str, spec.values())))
def test_tokens_of_the_environment_are_in_no_loss(spec: dict[str, Any]) -> None:
    objective = OBJECTIVES.build(spec)
    for per_token in (False, True):
        plain = episodes(0.0, per_token=per_token)
        expected = outcome(objective, plain)
        assert expected["by log π"].any()
        found = outcome(objective, episodes(torch.nan, per_token=per_token))
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        # They count nowhere either, and their place does not.
        moved = outcome(objective, without_holes(plain))
        torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-12, equal_nan=True)
