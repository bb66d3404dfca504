"""What the tests of objectives share: minibatches by hand and at random, and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.objectives.base import LossInputs, Objective


@pytest.fixture(scope="session")
def make_inputs() -> Callable[..., LossInputs]:
    """Rows of ratios π/π₀, ragged, as log-probabilities padded on the right; log π₀ = -1.5."""

    def make(ratios: list[list[float]], advantages: list[float], **changes: Any) -> LossInputs:
        width = max(map(len, ratios))
        mask = torch.tensor([[t < len(row) for t in range(width)] for row in ratios])
        padded = [[math.log(w) for w in row] + [0.0] * (width - len(row)) for row in ratios]
        old = torch.full((len(ratios), width), -1.5, dtype=torch.float64)
        log_probs = (old + torch.tensor(padded, dtype=torch.float64)).requires_grad_()
        inputs = LossInputs(
            log_probs=log_probs,
            old_log_probs=old,
            completion_mask=mask,
            advantages=torch.tensor(advantages, dtype=torch.float64),
            rollouts=len(ratios),
            tokens=int(mask.sum()),
        )
        return replace(inputs, **changes)

    return make


@pytest.fixture(scope="session")
def random_inputs() -> Callable[..., LossInputs]:
    """Ragged rollouts near their old probabilities, with all that a loss may read."""

    def make(seed: int, rows: int = 5, width: int = 6) -> LossInputs:
        generator = torch.Generator().manual_seed(seed)

        def noise(scale: float) -> Tensor:
            return scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)

        lengths = torch.randint(1, width + 1, (rows,), generator=generator)
        mask = torch.arange(width) < lengths[:, None]
        old = -1.0 + noise(0.3)
        return LossInputs(
            log_probs=(old + noise(0.3)).requires_grad_(),
            old_log_probs=old,
            completion_mask=mask,
            advantages=noise(1.0)[:, 0],
            rollouts=rows,
            tokens=int(mask.sum()),
            reference_log_probs=old + noise(0.3),
            entropies=noise(1.0).exp().requires_grad_(),
            sampler_log_probs=old + noise(0.3),
        )

    return make


@pytest.fixture(scope="session")
def gradient() -> Callable[[Objective, LossInputs], Tensor]:
    """The gradient of an objective with respect to the log-probabilities."""

    def gradient(objective: Objective, inputs: LossInputs) -> Tensor:
        (found,) = torch.autograd.grad(objective.loss(inputs).loss, inputs.log_probs)
        return found

    return gradient
