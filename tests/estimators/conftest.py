"""What the tests of single estimators share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.estimators import GroupBatch, build_estimator

Advantages = Callable[..., Tensor]


@pytest.fixture(scope="session")
def advantages() -> Advantages:
    """`advantages(spec, rewards, **inputs)`: one call of a new estimator, in float64."""

    def compute(spec: str | Mapping[str, Any], rewards: Any, **inputs: Any) -> Tensor:
        rewards = torch.as_tensor(rewards, dtype=torch.float64)
        return build_estimator(spec)(GroupBatch(rewards=rewards, **inputs))

    return compute


@pytest.fixture(scope="session")
def success_and_failure(advantages: Advantages) -> Callable[..., tuple[float, float]]:
    """The advantages of a success and of a failure in a group of 8 with 2 successes.

    `p = 1/4`, `q = 3/4`, `pq = 3/16` and `σ = √3/4 = 0.4330127019`.
    """

    def compute(name: str, **options: Any) -> tuple[float, float]:
        values = advantages({"name": name, **options}, [[1.0, 1, 0, 0, 0, 0, 0, 0]])[0]
        assert (values[:2] == values[0]).all()
        assert (values[2:] == values[2]).all()
        return values[0].item(), values[2].item()

    return compute
