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
