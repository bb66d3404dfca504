"""The clipped surrogate: values by hand, where its gradient vanishes, and naive loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from advsweep.errors import ConfigError
from advsweep.objectives import OBJECTIVES
from advsweep.objectives.clipped import Clipped


# Rows: A = 1 with ratios 1.5, 1.1; A = -2 with ratio 0.5. Token losses with clip .2/.2:
#   -min(1.5, 1.2) = -1.2, -min(1.1, 1.1) = -1.1, -min(-1, -1.6) = 1.6
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (-1.15 + 1.6) / 2),
        ({"aggregation": "token_mean"}, (-1.2 - 1.1 + 1.6) / 3),
        ({"aggregation": "constant", "max_tokens": 10}, (-1.2 - 1.1 + 1.6) / 20),
        ({"clip_high": 0.28}, ((-1.28 - 1.1) / 2 + 1.6) / 2),
        # The low clip alone: -min(-1, -.6 * 2) = 1.2, and the first row as by default.
        ({"clip_low": 0.4}, (-1.15 + 1.2) / 2),
        ({"clip_low": 0.6, "clip_high": "inf"}, ((-1.5 - 1.1) / 2 + 1.0) / 2),
        # Sequence ratios: sqrt(1.5 * 1.1) = 1.28452 -> 1.2, and .5 -> .8.
        ({"ratio": "sequence"}, (-1.2 + 1.6) / 2),
        ({"ratio": "sequence", "clip_high": 0.3}, (-math.sqrt(1.65) + 1.6) / 2),
        # By length: two tokens of -1.2 and one of 1.6.
        ({"ratio": "sequence", "aggregation": "token_mean"}, (-1.2 - 1.2 + 1.6) / 3),
    ],
)
def test_goldens(values: dict[str, Any], expected: float, make_inputs: Any) -> None:
    inputs = make_inputs([[1.5, 1.1], [0.5]], [1.0, -2.0])
    output = Clipped.build(values).loss(inputs)
    assert output.loss.item() == pytest.approx(expected, abs=1e-12)
    assert output.metrics["loss/policy"].item() == output.loss.item()
    assert not output.metrics["loss/policy"].requires_grad


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.21, 1.0, False),
        (1.19, 1.0, True),
        (0.5, 1.0, True),
        (0.79, -1.0, False),
        (0.81, -1.0, True),
        (1.5, -1.0, True),
        (1.0, 0.0, False),
    ],
)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_gradient_vanishes_exactly_where_clipped(
    ratio: float, advantage: float, moves: bool, level: str, make_inputs: Any, gradient: Any
) -> None:
    """AVSPO's Lemma B.5: zero when A > 0 and ratio > 1 + ε, or A < 0 and ratio < 1 - ε."""
    inputs = make_inputs([[ratio, ratio]], [advantage])
    objective = Clipped.build({"ratio": level})
    grad = gradient(objective, inputs)
    expected = -ratio * advantage / 2 if moves else 0.0
    torch.testing.assert_close(grad, torch.full_like(grad, expected))
    clipped = not moves and advantage != 0
    fraction = objective.loss(inputs).metrics["loss/clip_fraction"]
    assert fraction.item() == float(clipped)


def test_dual_clip(make_inputs: Any, gradient: Any) -> None:
    inputs = make_inputs([[4.0], [2.0], [4.0]], [-2.0, -2.0, 1.0])
    objective = Clipped(dual_clip=3.0, clip_high=9.0)
    # At most 3 * 2 per token, and no gradient beyond; right answers are not touched.
    assert objective.loss(inputs).loss.item() == pytest.approx((6 + 4 - 4) / 3)
    assert (gradient(objective, inputs)[:, 0] != 0).tolist() == [False, True, True]
    assert objective.loss(inputs).metrics["loss/clip_fraction"].item() == pytest.approx(1 / 3)
    unlimited = Clipped(clip_high=9.0)
    assert unlimited.loss(inputs).loss.item() == pytest.approx((8 + 4 - 4) / 3)


def test_on_policy_loss_is_minus_the_mean_advantage(make_inputs: Any) -> None:
    inputs = make_inputs([[1.0, 1.0, 1.0], [1.0], [1.0, 1.0]], [3.0, -2.0, 0.5])
    assert Clipped().loss(inputs).loss.item() == pytest.approx(-0.5)
    assert Clipped(ratio="sequence").loss(inputs).loss.item() == pytest.approx(-0.5)


def test_sequence_gradient_is_shared_by_the_tokens(make_inputs: Any, gradient: Any) -> None:
    """GSPO: ∇ = -(1/N) w A (1/|o|) Σ_t ∇l, with w = √(1.1 · 0.9), whatever each token's own."""
    inputs = make_inputs([[1.1, 0.9], [1.0]], [2.0, -1.0])
    grad = gradient(Clipped(ratio="sequence"), inputs)
    w = math.sqrt(0.99)
    expected = torch.tensor([[-w / 2, -w / 2], [0.5, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clip_low": 1.5}, "objective.clip_low: expected >= 0 and <= 1, got 1.5"),
        ({"ratio": "sequences"}, "objective.ratio: .*did you mean 'sequence'"),
        ({"kl": 0.1}, "objective.kl: clipped has no parameter 'kl'; "),
    ],
)
def test_bad_fields_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OBJECTIVES.build({"name": "clipped", **values}, where="objective")
