"""Cross-entropy: values by hand, the closed form of its gradient, and its kin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from advsweep.errors import ConfigError
from advsweep.objectives import OBJECTIVES
from advsweep.objectives.weighted import CrossEntropy


# Rows: A = 1 with l = -.2, -.4; A = -2 with l = -.5. Token losses -l A: .2, .4, -1.
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (0.2 + 0.4 - 1.0) / 3),
        ({"aggregation": "seq_mean_token_mean"}, (0.3 - 1.0) / 2),
        ({"aggregation": "constant", "max_tokens": 4}, (0.2 + 0.4 - 1.0) / 8),
    ],
)
def test_goldens(values: dict[str, Any], expected: float, make_inputs: Any) -> None:
    log_probs = torch.tensor([[-0.2, -0.4], [-0.5, -9.0]], dtype=torch.float64)
    inputs = make_inputs([[1.0, 1.0], [1.0]], [1.0, -2.0], log_probs=log_probs)
    output = CrossEntropy.build(values).loss(inputs)
    assert output.loss.item() == pytest.approx(expected, abs=1e-12)
    assert output.metrics["loss/policy"].item() == output.loss.item()


def test_the_old_weights_are_not_read(make_inputs: Any) -> None:
    inputs = make_inputs([[1.1, 0.7], [0.9]], [3.0, -6.0])
    other = replace(inputs, old_log_probs=torch.full_like(inputs.old_log_probs, torch.nan))
    assert CrossEntropy().loss(other).loss.item() == CrossEntropy().loss(inputs).loss.item()


@pytest.mark.parametrize("key", ["clip_low", "clip_high", "ratio"])
def test_what_it_does_without_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"cross_entropy has no parameter '{key}'"):
        OBJECTIVES.build({"name": "cross_entropy", key: 0.2})
