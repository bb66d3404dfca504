"""intuitor and rent."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from advsweep.errors import BatchError
from advsweep.estimators import ESTIMATORS, GroupBatch, build_estimator, estimator_names

SIGNALS = {"intuitor": ("self_certainty", 1), "rent": ("token_entropy_exact", -1)}


@pytest.fixture(params=SIGNALS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def batch_of(name: str, signal: Tensor, **inputs: Tensor) -> GroupBatch:
    rewards = inputs.pop("rewards", torch.zeros_like(signal))
    return GroupBatch(rewards=rewards, **{SIGNALS[name][0]: signal}, **inputs)


def test_worked_values() -> None:
    # Of mean 2 and σ = √(2/3): 1/σ = 1.2247448714.
    signal = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    confident = build_estimator("intuitor")(batch_of("intuitor", signal))
    assert confident[0].tolist() == pytest.approx([-1.2247448714, 0, 1.2247448714])
    certain = build_estimator("rent")(batch_of("rent", signal))
    assert certain[0].tolist() == pytest.approx([1.2247448714, 0, -1.2247448714])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_signal_that_is_not_finite_is_refused(name: str, bad: float) -> None:
    with pytest.raises(BatchError, match=f"{SIGNALS[name][0]}: expected finite numbers"):
        build_estimator(name)(batch_of(name, torch.tensor([[0.0, bad]])))


@pytest.mark.parametrize(("name", "eps"), [("intuitor", 1e-4), ("rent", 1e-6)])
def test_conventions_of_the_released_code(name: str, eps: float) -> None:
    signal = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
    answered = torch.ones(1, 3, dtype=torch.bool)
    values = build_estimator(name, preset="released")(batch_of(name, signal, answered=answered))
    # Sample σ = √(7/3).
    expected = SIGNALS[name][1] * (signal - 7 / 3) / (math.sqrt(7 / 3) + eps)
    assert torch.allclose(values, expected, rtol=1e-12)


def test_rent_rewards_a_rollout_without_an_answer_as_if_its_entropy_were_7() -> None:
    signal = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
    answered = torch.tensor([[True, False, True]])
    released = build_estimator("rent", preset="released")
    assert released.needs == {"token_entropy_exact", "answered"}
    values = released(batch_of("rent", signal, answered=answered))
    # Rewards -1, -7, -4: mean -4, sample σ 3.
    assert values[0].tolist() == pytest.approx([1, -1, 0], abs=1e-6)
    own = build_estimator("rent", no_answer=-3)(batch_of("rent", signal, answered=answered))
    plain = build_estimator("rent")(batch_of("rent", torch.tensor([[1.0, 3.0, 4.0]]).double()))
    assert torch.allclose(own, plain)
    assert "no_answer" not in build_estimator("rent").identity()
    assert build_estimator("rent").needs == {"token_entropy_exact"}


def test_they_are_labelled() -> None:
    free = {n for n in estimator_names() if ESTIMATORS.get(n).verifier_free}
    assert free == set(SIGNALS)
    for name in SIGNALS:
        assert ESTIMATORS.get(name).family == "intrinsic rewards"
        assert build_estimator("grpo_n", base=name).verifier_free
