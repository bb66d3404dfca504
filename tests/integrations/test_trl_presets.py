"""The conventions of TRL, against the advantages that its own trainer computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.estimators import GroupBatch, build_estimator

trl = pytest.importorskip("trl", minversion="1.16")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

GROUP_SIZES = [2, 3, 6, 8, 16, 33]


def scripted_rewards(group_size: int) -> list[list[float | None]]:
    """Rewards of a prompt's rollouts by position; None cannot be scored."""

    def row(*pattern: float | None) -> list[float | None]:
        return [pattern[i % len(pattern)] for i in range(group_size)]

    generator = torch.Generator().manual_seed(group_size)
    graded = torch.rand(24, group_size, generator=generator)
    binary = (graded < 0.4).float()
    gaps = torch.rand(graded.shape, generator=generator) < 0.3
    drawn = torch.cat((graded, binary, graded.masked_fill(gaps, math.nan))).tolist()
    return [
        row(1.0, 0.0),
        row(0.0),
        row(1.0),
        row(0.9),
        row(0.1),
        row(1 / 3),
        row(0.1, 0.9, 1 / 3),
        row(None),
        row(0.9, None),
        row(1.0, None, 0.0),
        [0.9, *row(None)[1:]],
        [1.0, *row(0.0)[1:]],
        *[[None if math.isnan(reward) else reward for reward in rewards] for rewards in drawn],
    ]


RewardFunction = Callable[..., list[float | None]]


def reward_function(name: str, table: list[list[float | None]]) -> RewardFunction:
    """Scores by the table, whatever was generated; TRL hands over prompt after prompt."""

    def score(row: list[int], **_: Any) -> list[float | None]:
        size = len(table[0])
        return [table[prompt][position % size] for position, prompt in enumerate(row)]

    score.__name__ = name
    return score


@pytest.fixture
def advantages_of_trl(make_trainer: Callable[..., Any]) -> Callable[..., Tensor]:
    """What GRPOTrainer trains on, [prompts, rollouts], and nothing of ours in it."""

    def train(
        tables: list[list[list[float | None]]],
        weights: list[float] | None = None,
        scale_rewards: str = "group",
    ) -> Tensor:
        computed = []

        class Recorder(trl.GRPOTrainer):  # type: ignore[misc, name-defined]
            def _generate_and_score_completions(self, inputs: Any) -> Any:
                outputs = super()._generate_and_score_completions(inputs)
                computed.append(outputs["advantages"].clone())
                return outputs

        prompts, size = len(tables[0]), len(tables[0][0])
        make_trainer(
            Recorder,
            [reward_function(f"reward{i}", table) for i, table in enumerate(tables)],
            {"row": list(range(prompts))},
            num_generations=size,
            max_steps=1,
            scale_rewards=scale_rewards,
            reward_weights=weights,
        ).train()
        (advantages,) = computed
        return advantages.view(prompts, size)

    return train


def as_batch(
    tables: list[list[list[float | None]]], weights: list[float] | None = None
) -> GroupBatch:
    """The weighted sum of what could be scored, in float32, as TRL documents its rewards."""
    scores = [[[math.nan if r is None else r for r in row] for row in t] for t in tables]
    each = torch.tensor(scores, dtype=torch.float32)
    factors = torch.tensor(weights or [1.0] * len(tables))
    mask = ~each.isnan().all(dim=0)
    return GroupBatch(rewards=(each * factors[:, None, None]).nansum(dim=0), mask=mask)


@pytest.mark.parametrize("size", GROUP_SIZES)
def test_preset_trl_is_trl_to_the_last_bit(
    advantages_of_trl: Callable[..., Tensor], size: int
) -> None:
    table = scripted_rewards(size)
    theirs = advantages_of_trl([table])
    ours = build_estimator("grpo", preset="trl")(as_batch([table]))
    assert ours.dtype is theirs.dtype is torch.float32
    assert torch.equal(ours, theirs)


def test_trl_makes_noise_of_equal_rewards(advantages_of_trl: Callable[..., Tensor]) -> None:
    # Were TRL to repair it, the preset would have to follow.
    table = [[0.9] * 6, [1.0] * 6]
    theirs = advantages_of_trl([table])
    assert (theirs[0] != 0).all()
    assert torch.equal(theirs[1], torch.zeros(6))
    assert torch.equal(build_estimator("grpo", preset="trl")(as_batch([table])), theirs)
    assert torch.equal(build_estimator("grpo")(as_batch([table])), torch.zeros(2, 6))


def test_weighted_reward_functions(advantages_of_trl: Callable[..., Tensor]) -> None:
    table = scripted_rewards(6)
    tables, weights = [table, table[::-1], table[5:] + table[:5]], [0.3, 1.7, -0.4]
    theirs = advantages_of_trl(tables, weights)
    ours = build_estimator("grpo", preset="trl")(as_batch(tables, weights))
    assert torch.equal(ours, theirs)


def test_unscaled_rewards_of_trl_are_dr_grpo(advantages_of_trl: Callable[..., Tensor]) -> None:
    batch = as_batch([scripted_rewards(6)])
    theirs = advantages_of_trl([scripted_rewards(6)], scale_rewards="none")
    ours = build_estimator("dr_grpo")(batch)
    # Equal rewards leave TRL a rounding error of their mean, and ours nothing.
    assert torch.equal(ours[3], torch.zeros(6))
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-7)
