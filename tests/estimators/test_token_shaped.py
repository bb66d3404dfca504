"""`entropy_shaped`: advantages per token."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from advsweep.diagnostics import rollout_metrics
from advsweep.errors import BatchError, ConfigError
from advsweep.estimators import ESTIMATORS, GroupBatch, build_estimator, estimator_names

REWARDS = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.float64)
LENGTHS = torch.tensor([[2.0, 3, 1, 2], [1, 1, 2, 3]])


def a_batch(entropies: torch.Tensor, **inputs: Any) -> GroupBatch:
    return GroupBatch(rewards=REWARDS, lengths=LENGTHS, token_entropies=entropies, **inputs)


def test_worked_values() -> None:
    # dr_grpo: 3/4 and -1/4. The bonus is .4 H, and at most 3/8 and 1/8.
    entropies = torch.zeros(2, 4, 3)
    entropies[0, 0] = torch.tensor([0.5, 2.0, 0.0])
    entropies[0, 1] = torch.tensor([0.1, 0.3, 0.5])
    entropies[1] = 1.0
    found = build_estimator("entropy_shaped", base="dr_grpo")(a_batch(entropies))
    expected = torch.zeros(2, 4, 3, dtype=torch.float64)
    expected[0, 0, :2] = torch.tensor([0.75 + 0.2, 0.75 + 0.375])
    expected[0, 1] = torch.tensor([-0.25 + 0.04, -0.25 + 0.12, -0.25 + 0.125])
    expected[0, 2, :1] = -0.25
    expected[0, 3, :2] = -0.25
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)
    assert (found[1] == 0).all()


def test_without_entropy_it_is_its_base() -> None:
    shaped = build_estimator("entropy_shaped", base="rloo").compute(a_batch(torch.zeros(2, 4, 3)))
    plain = build_estimator("rloo").compute(a_batch(torch.zeros(2, 4, 3)))
    within = torch.arange(3) < LENGTHS[..., None]
    assert torch.equal(shaped.values, plain.values[..., None].where(within, 0.0))
    assert torch.equal(shaped.keep, plain.keep)
    assert torch.equal(shaped.nonzero, plain.nonzero)
    torch.testing.assert_close(shaped.rollout_means(LENGTHS), plain.values)
    torch.testing.assert_close(shaped.sizes(LENGTHS), plain.values.abs())


@pytest.mark.parametrize("field", ["lengths", "token_entropies"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_before_the_memory_moves(
    field: str, bad: float
) -> None:
    batch = a_batch(torch.ones(2, 4, 3), token_entropy=torch.ones(2, 4))
    broken = getattr(batch, field).clone()
    broken[0, 0] = bad
    estimator = build_estimator("entropy_shaped", base="fade")
    before = estimator.state_dict()
    with pytest.raises(BatchError, match=r"expected finite numbers|at least (nan|inf) tokens"):
        estimator(dataclasses.replace(batch, **{field: broken}))
    assert estimator.state_dict() == before


@pytest.mark.parametrize(
    "name", [n for n in estimator_names() if "base" in ESTIMATORS.get(n).__dataclass_fields__]
)
def test_wrappers_refuse_it_as_a_base(name: str) -> None:
    turned = f"expected 'entropy_shaped' outermost, with '{name}' as its base"
    remedy = "expected a base with one" if build_estimator(name).per_token else turned
    with pytest.raises(ConfigError, match=f"one advantage per rollout.* {remedy}"):
        build_estimator(name, base="entropy_shaped")


def test_metrics_are_means_over_tokens() -> None:
    # dr_grpo with the full bonus: 9/8 and -1/8 at uncertain tokens, 3/4 and -1/4 elsewhere.
    entropies = torch.zeros(2, 4, 3)
    entropies[0, 0, 0] = entropies[0, 1, :2] = 9.0
    batch = a_batch(entropies)
    estimator = build_estimator("entropy_shaped", base="dr_grpo")
    found = rollout_metrics(batch, estimator.compute(batch))
    right, wrong = (9 / 8 + 3 / 4) / 2, (2 / 8 + 1 / 4) / 3 + 2 / 4
    assert found["mass/success"] == pytest.approx(right / 8)
    assert found["mass/failure"] == pytest.approx(wrong / 8)
    assert found["advantage/abs_mean"] == pytest.approx((right + wrong) / 8)
    assert found["advantage/zero_fraction"] == 0.5
    assert found["collapse/acr_after"] == 0.5
    # Of the groups trained on alone.
    part = estimator.compute(batch.select(torch.tensor([0])))
    chosen = rollout_metrics(batch, part, groups=torch.tensor([0]))
    assert chosen["mass/success"] == pytest.approx(right / 4)
    assert chosen["advantage/zero_fraction"] == 0


def test_a_mean_of_0_over_tokens_is_no_rollout_without_advantage() -> None:
    values = torch.tensor([[[1.0, -1.0], [0.0, 0.0]]])
    lengths = torch.full((1, 2), 2.0)
    batch = GroupBatch(rewards=torch.tensor([[1.0, 0.0]]), lengths=lengths)
    from advsweep.estimators import Advantages

    advantages = Advantages(values=values, keep=torch.ones(1, 2, dtype=torch.bool))
    assert advantages.nonzero.tolist() == [[True, False]]
    found = rollout_metrics(batch, advantages)
    assert found["advantage/zero_fraction"] == 0.5
    assert found["advantage/abs_mean"] == 0.5
    assert found["mass/success"] == 0
