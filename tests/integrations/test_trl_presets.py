"""The conventions of TRL, against the advantages that its own trainer computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.estimators import GroupBatch, build_estimator

trl = pytest.importorskip("trl", minversion="1.12")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

GROUP_SIZES = [2, 3, 8, 33]


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
    """What a trainer of TRL trains on, [prompts, rollouts], and nothing of ours in it."""

    def train(
        tables: list[list[list[float | None]]],
        weights: list[float] | None = None,
        trainer: type = trl.GRPOTrainer,
        **settings: Any,
    ) -> Tensor:
        computed = []

        class Recorder(trainer):  # type: ignore[misc, valid-type]
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
            reward_weights=weights,
            **settings,
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


def as_parts(tables: list[list[list[float | None]]], weights: list[float]) -> GroupBatch:
    batch = as_batch(tables, weights)
    scores = [[[math.nan if r is None else r for r in row] for row in t] for t in tables]
    parts = torch.tensor(scores, dtype=torch.float32).movedim(0, -1)
    return replace(batch, reward_parts=parts, part_weights=tuple(weights))


@pytest.mark.parametrize("size", [2, 6])
def test_the_deviation_of_the_batch_is_trls(
    advantages_of_trl: Callable[..., Tensor], size: int
) -> None:
    table = scripted_rewards(size)
    theirs = advantages_of_trl([table], scale_rewards="batch")
    ours = build_estimator("grpo", preset="trl", scope="batch")(as_batch([table]))
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [2, 6])
def test_parts_of_the_reward_are_normalised_as_in_trl(
    advantages_of_trl: Callable[..., Tensor], size: int
) -> None:
    # TRL divides the rounding noise of equal rewards by 1e-4, and rounds as its memory is laid out.
    table = [row for row in scripted_rewards(size) if len({*row} - {None, 0.0, 1.0}) != 1]
    tables, weights = [table, table[::-1], table[5:] + table[:5]], [0.3, 1.7, -0.4]
    theirs = advantages_of_trl(tables, weights, multi_objective_aggregation="normalize_then_sum")
    ours = build_estimator("gdpo", preset="trl")(as_parts(tables, weights))
    assert torch.allclose(ours, theirs, rtol=0, atol=2e-6)
    theirs = advantages_of_trl(tables, weights)
    ours = build_estimator("gdpo", preset="trl", order="sum_then_normalise")(
        as_parts(tables, weights)
    )
    assert torch.allclose(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("normalised", [False, True])
def test_rloo_is_trls(advantages_of_trl: Callable[..., Tensor], normalised: bool) -> None:
    # The only scorable rollout of a group counts in our statistics, and not in TRL's.
    table = [row for row in scripted_rewards(6) if sum(r is not None for r in row) != 1]
    theirs = advantages_of_trl(
        [table], trainer=trl.RLOOTrainer, normalize_advantages=normalised, beta=0.0
    )
    ours = build_estimator("whitened" if normalised else "rloo")(as_batch([table]))
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)


def test_the_kl_in_the_reward_of_rloo_is_trls(advantages_of_trl: Callable[..., Tensor]) -> None:
    table, seen = scripted_rewards(6)[:6], []

    class WithReference(trl.RLOOTrainer):  # type: ignore[misc, name-defined]
        """Trains against another reference than its own first weights."""

        def train(self) -> None:
            with torch.no_grad():
                for weight in self.ref_model.parameters():
                    weight *= 1.5
            super().train()

        def _get_per_token_logps_and_entropies(self, model: Any, *rest: Any, **named: Any) -> Any:
            found = super()._get_per_token_logps_and_entropies(model, *rest, **named)
            seen.append((found[0].detach(), rest[1]))
            return found

    theirs = advantages_of_trl([table], trainer=WithReference, beta=0.2)
    (log_probs, mask), (of_reference, _), *_ = seen
    whole = mask[:, -log_probs.shape[1] :]
    batch = replace(
        as_batch([table]),
        lengths=whole.sum(dim=1).view(theirs.shape),
        token_kl=((log_probs - of_reference) * whole).view(*theirs.shape, -1),
    )
    assert batch.token_kl is not None
    assert batch.token_kl.any()
    ours = build_estimator("kl_in_reward", beta=0.2)(batch)
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)
