"""Every objective with an advantage per token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import LossInputs


@pytest.fixture(
    params=[
        *({"name": name} for name in OBJECTIVES.names()),
        {"name": "clipped", "ratio": "sequence"},
        {"name": "sapo", "ratio": "sequence"},
        {"name": "clipped", "off_policy_mask_threshold": 0.05},
    ],
    ids=lambda spec: "-".join(str(value) for value in spec.values()),
    scope="session",
)
def every(request: pytest.FixtureRequest) -> dict[str, Any]:
    values: dict[str, Any] = request.param
    return values


def per_token(inputs: LossInputs, seed: int) -> LossInputs:
    """The same minibatch with an advantage of its own for every token."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(inputs.log_probs.shape, generator=generator, dtype=torch.float64)
    return replace(inputs, advantages=noise)


@settings(max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_equal_advantages_of_the_tokens_are_one_of_the_rollout(
    every: dict[str, Any], random_inputs: Any, gradient: Any, seed: int
) -> None:
    objective = OBJECTIVES.build(every, kl_coef=0.1, entropy_coef=0.01)
    one = random_inputs(seed)
    each = replace(one, advantages=one.advantages[:, None].expand_as(one.log_probs))
    first, second = objective.loss(one), objective.loss(each)
    # The mean of a rollout's equal advantages, which gmpo takes, may be rounded.
    same = torch.equal if every["name"] != "gmpo" else torch.allclose
    assert same(first.loss, second.loss)
    assert first.metrics.keys() == second.metrics.keys()
    for name, value in first.metrics.items():
        assert same(value, second.metrics[name]), name
    expected, found = gradient(objective, one), gradient(objective, each)
    if every.get("ratio") == "sequence":
        # The mean over tokens adds the same shares in another order.
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)
    else:
        assert same(found, expected)


# Of gmpo and kl_cov the other tokens of a rollout decide as well.
@pytest.mark.parametrize("name", sorted({*OBJECTIVES.names()} - {"gmpo", "kl_cov"}))
def test_a_token_has_the_gradient_of_its_own_advantage(
    name: str, random_inputs: Any, gradient: Any
) -> None:
    inputs, objective = per_token(random_inputs(3), 4), OBJECTIVES.build(name)
    found = gradient(objective, inputs)
    for token in range(6):
        alone = replace(inputs, advantages=inputs.advantages[:, token])
        torch.testing.assert_close(found[:, token], gradient(objective, alone)[:, token])


def test_golden_of_the_sequence_ratio(make_inputs: Any, gradient: Any) -> None:
    """GSPO-token: the sequence's ratio, the token's gradient."""
    # s = √(1.1 · 1.2²/1.1) = 1.2: at the upper bound of .2, below that of .3.
    inputs = make_inputs([[1.1, 1.44 / 1.1]], [0.0])
    inputs = replace(inputs, advantages=torch.tensor([[2.0, -1.0]], dtype=torch.float64))
    objective = OBJECTIVES.build("clipped", ratio="sequence", clip_high=0.3)
    assert objective.loss(inputs).loss.item() == pytest.approx(-(2.4 - 1.2) / 2)
    # Each token: -s A / 2. A ratio of the whole sequence would move both by -.3.
    torch.testing.assert_close(
        gradient(objective, inputs), torch.tensor([[-1.2, 0.6]], dtype=torch.float64)
    )
    # Past its bound, s stops the token with A > 0 alone.
    objective = OBJECTIVES.build("clipped", ratio="sequence", clip_high=0.1)
    output = objective.loss(inputs)
    assert output.loss.item() == pytest.approx(-(2.2 - 1.2) / 2)
    assert output.metrics["loss/clip_fraction"].item() == pytest.approx(0.5)
    torch.testing.assert_close(
        gradient(objective, inputs), torch.tensor([[0.0, 0.6]], dtype=torch.float64)
    )


@settings(max_examples=4)
@given(seed=st.integers(0, 2**32))
def test_numbers_past_the_end_are_not_read(
    every: dict[str, Any], random_inputs: Any, gradient: Any, seed: int
) -> None:
    objective = OBJECTIVES.build(every)
    inputs = per_token(random_inputs(seed), seed + 1)
    hidden = inputs.advantages.masked_fill(~inputs.completion_mask, torch.nan)
    padded = replace(inputs, advantages=hidden)
    torch.testing.assert_close(objective.loss(padded).loss, objective.loss(inputs).loss)
    torch.testing.assert_close(gradient(objective, padded), gradient(objective, inputs))
