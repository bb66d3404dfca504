"""Batches in which the inputs of an estimator differ from rollout to rollout."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from advsweep.estimators.batch import GroupBatch

if TYPE_CHECKING:
    from torch import Tensor

    from advsweep.estimators.batch import PerRollout

# Length of the token axis: rollouts have up to 11 tokens.
TOKENS = 11

# Tokens of a turn, but for the last one of a rollout.
_TURN = 4


def varied_batch(rewards: PerRollout, step: int, total_steps: int) -> GroupBatch:
    """Return a batch with these rewards and other inputs that the step seeds."""
    generator = torch.Generator().manual_seed(step)

    def varied(*more: int) -> Tensor:
        return 0.1 + torch.rand(*rewards.shape, *more, generator=generator)

    return GroupBatch(
        rewards=rewards,
        lengths=(10 * varied()).ceil(),
        ref_rewards=1 - rewards,
        token_entropy=varied(),
        token_entropy_exact=varied(),
        self_certainty=varied(),
        token_entropies=varied(TOKENS),
        token_grad_norms=varied(TOKENS),
        token_kl=varied(TOKENS),
        reward_parts=torch.stack((rewards, varied()), dim=-1),
        greedy_rewards=1 - rewards[:, 0],
        solve_rates=rewards.mean(dim=1).clamp(0, 1),
        step=step,
        total_steps=total_steps,
    )


def drawn_batch(prompts: int, group_size: int, step: int, total_steps: int) -> GroupBatch:
    """Return a batch that the step seeds, of 0/1 rewards; solve rates go evenly from 0 to 1."""
    generator = torch.Generator().manual_seed(step)
    rates = torch.linspace(0, 1, prompts)[:, None]
    drawn = torch.rand(prompts, group_size, generator=generator)
    return varied_batch((drawn < rates).float(), step, total_steps)


def complete_batch(rewards: PerRollout) -> GroupBatch:
    """Return a batch that has every input, in the first of ten steps."""
    batch = varied_batch(rewards, 1, 10)
    assert batch.lengths is not None
    # No token counts past the end of its rollout.
    within = torch.arange(TOKENS) < batch.lengths[..., None]

    def cut(values: Tensor | None) -> Tensor:
        assert values is not None
        return torch.where(within, values, 0.0)

    # Each turn is before a state of its own, which all rollouts of the group come to.
    turns = torch.arange(math.ceil(TOKENS / _TURN)).expand(*rewards.shape, -1).contiguous()

    return replace(
        batch,
        token_entropies=cut(batch.token_entropies),
        token_grad_norms=cut(batch.token_grad_norms),
        token_kl=cut(batch.token_kl),
        turn_of_token=(torch.arange(TOKENS) // _TURN).where(within, -1),
        turn_rewards=torch.zeros_like(turns, dtype=rewards.dtype),
        turn_states=turns,
        turn_values=torch.full_like(turns, 0.5, dtype=rewards.dtype),
        part_weights=(1.0, 0.5),
        answered=torch.ones_like(rewards, dtype=torch.bool),
        truncated=batch.lengths > TOKENS - 2,
        prompt_ids=tuple(f"problem-{number}" for number in range(len(rewards))),
    )
