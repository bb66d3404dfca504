"""What holds of every estimator for episodes: nothing is read of the environment's tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from advsweep.diagnostics import rollout_metrics
from advsweep.estimators import Estimator, GroupBatch, build_estimator, estimator_names
from advsweep.estimators.batch import PER_TOKEN, PER_TURN
from tests.estimators.random_episodes import random_episodes


def all_inputs(seed: int) -> GroupBatch:
    """Episodes with every other input as well; rewards are 0 and 1, and turns have none."""
    episodes = random_episodes(seed)
    assert episodes.turn_of_token is not None
    assert episodes.turn_rewards is not None
    rewards = (episodes.rewards >= 1).double()
    generator = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> torch.Tensor:
        return 0.1 + torch.rand(shape, generator=generator, dtype=torch.float64)

    shape = rewards.shape
    inside = episodes.turn_of_token >= 0
    per_token = {name: some(*inside.shape).where(inside, 0.0) for name in TOKEN_NUMBERS}
    return dataclasses.replace(
        episodes,
        rewards=rewards,
        turn_rewards=torch.zeros_like(episodes.turn_rewards),
        ref_rewards=(some(*shape) < 0.5).double(),
        token_entropy=some(*shape),
        token_entropy_exact=some(*shape),
        self_certainty=some(*shape),
        solve_rates=some(shape[0]).clamp(max=1),
        answered=some(*shape) < 0.8,
        reward_parts=torch.stack((rewards, some(*shape)), dim=-1),
        greedy_rewards=rewards[:, 0],
        step=1,
        total_steps=10,
        **per_token,
    )


TOKEN_NUMBERS = sorted(PER_TOKEN - {"turn_of_token"})


# With which an estimator reads tokens.
OPTIONS: dict[str, dict[str, Any]] = {
    "reinforce_pp": {"beta": 0.1, "gamma": 0.9},
    "reinforce_pp_baseline": {"beta": 0.1, "preset": "openrlhf"},
}


def built(name: str) -> Estimator:
    return build_estimator(name, **OPTIONS.get(name, {}))


@pytest.mark.parametrize("name", estimator_names())
def test_tokens_of_the_environment_are_in_no_advantage(name: str) -> None:
    batch = all_inputs(0)
    assert batch.turn_of_token is not None
    outside = batch.turn_of_token < 0
    changed: dict[str, Any] = {}
    for field in TOKEN_NUMBERS:
        changed[field] = getattr(batch, field).masked_fill(outside, 7.0)
    # What stands past the last turn of an episode is not read either.
    turns = batch.turn_of_token.amax(dim=-1, keepdim=True)
    for field in PER_TURN:
        values = getattr(batch, field)
        past = torch.arange(values.shape[-1]) > turns
        changed[field] = values.masked_fill(past, 7)
    estimator = built(name)
    expected = estimator.compute(batch)
    other = dataclasses.replace(batch, **changed)
    again = built(name)
    found = again.compute(other)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.keep, expected.keep)
    assert found.info == expected.info
    assert again.state_dict() == estimator.state_dict()
    if expected.per_token:
        assert not expected.values[outside].any()
    measured = rollout_metrics(batch, expected)
    assert rollout_metrics(other, found) == pytest.approx(measured, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("name", estimator_names())
def test_where_the_environment_speaks_does_not_matter(name: str) -> None:
    """The same episodes without the environment's tokens."""
    if name == "optimal_token_baseline":
        pytest.skip("its baseline is that of a place on the token axis")
    batch = all_inputs(1)
    assert batch.turn_of_token is not None
    inside = batch.turn_of_token >= 0
    order = inside.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    moved = {name: getattr(batch, name).gather(-1, order) for name in PER_TOKEN}
    expected = built(name).compute(batch)
    found = built(name).compute(dataclasses.replace(batch, **moved))
    values = expected.values.gather(-1, order) if expected.per_token else expected.values
    torch.testing.assert_close(found.values, values, rtol=1e-12, atol=1e-12)
    assert torch.equal(found.keep, expected.keep)
