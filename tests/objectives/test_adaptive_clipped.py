"""DCPO's clipped surrogate: bounds by hand, where its gradient vanishes, and a naive loop."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from advsweep.errors import ConfigError
from advsweep.objectives import OBJECTIVES
from advsweep.objectives.clipped import AdaptiveClipped


def bounds(q: float, low: float = 0.16, high: float = 0.2, cap: float = 10.0) -> tuple[float, ...]:
    return (
        0.5 + 0.5 * math.sqrt(max(1 - 4 * low / q, 0)),
        min(0.5 + 0.5 * math.sqrt(1 + 4 * high / q), cap),
    )


@pytest.mark.parametrize(
    ("q", "low", "high"),
    [(1, 0.8, 1.1708203932), (0.5, 0.5, 1.3062257748), (0.1, 0.5, 2), (0.001, 0.5, 10)],
)
def test_worked_bounds(q: float, low: float, high: float, make_inputs: Any, gradient: Any) -> None:
    assert bounds(q) == pytest.approx((low, high), abs=1e-9)
    # Just inside a bound the gradient is that of the ratio, just outside there is none.
    ratios = [high * 0.999, high * 1.001, low * 1.001, low * 0.999]
    advantages = [1.0, 1.0, -1.0, -1.0]
    inputs = make_inputs([[ratio] for ratio in ratios], advantages)
    moved = inputs.log_probs.detach() - inputs.old_log_probs + math.log(q)
    inputs = replace(
        inputs,
        log_probs=moved.requires_grad_(),
        old_log_probs=torch.full_like(inputs.old_log_probs, math.log(q)),
    )
    moves = (gradient(AdaptiveClipped(), inputs)[:, 0] != 0).tolist()
    assert moves == [True, False, True, False]
    fraction = AdaptiveClipped().loss(inputs).metrics["loss/clip_fraction"]
    assert fraction.item() == 0.5


def test_dual_clip(make_inputs: Any, gradient: Any) -> None:
    inputs = make_inputs([[12.0], [8.0]], [-2.0, -2.0])
    # At most 10 · 2 per token, and no gradient beyond.
    assert AdaptiveClipped().loss(inputs).loss.item() == pytest.approx(20 + 16)
    assert (gradient(AdaptiveClipped(), inputs)[:, 0] != 0).tolist() == [False, True]
    unlimited = OBJECTIVES.build({"name": "adaptive_clipped", "dual_clip": "inf"})
    assert unlimited.loss(inputs).loss.item() == pytest.approx(24 + 16)


def test_improbable_tokens_have_finite_bounds(make_inputs: Any, gradient: Any) -> None:
    inputs = make_inputs([[1.0, 1.0]], [1.0])
    shifted = replace(
        inputs,
        log_probs=(inputs.log_probs.detach() - 2000).requires_grad_(),
        old_log_probs=inputs.old_log_probs - 2000,
    )
    assert AdaptiveClipped().loss(shifted).loss.item() == pytest.approx(-1)
    assert gradient(AdaptiveClipped(), shifted).isfinite().all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cap": 0.5}, "objective.cap: expected >= 1, got 0.5"),
        ({"dual_clip": 1}, "objective.dual_clip: expected > 1, got 1"),
        ({"ratio": "token"}, "objective.ratio: adaptive_clipped has no parameter 'ratio'"),
    ],
)
def test_bad_fields_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OBJECTIVES.build({"name": "adaptive_clipped", **values}, where="objective")
