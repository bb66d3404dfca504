"""Batches of episodes for the tests of estimators that give each turn an advantage."""

from __future__ import annotations

import random
from typing import Any

import torch

from advsweep.estimators import GroupBatch

PROMPTS = 4
GROUP = 6
MOST_TURNS = 4
TOKENS = 4 * MOST_TURNS
STATES = 3


def random_episodes(seed: int, *, most_turns: int = MOST_TURNS) -> GroupBatch:
    """Return episodes of up to so many turns, between which the environment says a token or two.

    Rewards are a 0/1 outcome and, for each turn, a multiple of 1/4, so that sums of them are exact.
    """
    draw = random.Random(seed)
    of_token = torch.full((PROMPTS, GROUP, TOKENS), -1)
    turn_rewards = torch.zeros(PROMPTS, GROUP, MOST_TURNS, dtype=torch.float64)
    outcomes = torch.zeros(PROMPTS, GROUP, dtype=torch.float64)
    for prompt in range(PROMPTS):
        for rollout in range(GROUP):
            outcomes[prompt, rollout] = draw.random() < (prompt + 1) / (PROMPTS + 1)
            place = 0
            for turn in range(draw.randint(1, most_turns)):
                generated = draw.randint(1, 2)
                of_token[prompt, rollout, place : place + generated] = turn
                turn_rewards[prompt, rollout, turn] = draw.choice((0, 0.25, 0.5))
                place += generated + draw.randint(1, 2)
    generator = torch.Generator().manual_seed(seed)
    shape = turn_rewards.shape
    return GroupBatch(
        rewards=outcomes + turn_rewards.sum(dim=-1),
        lengths=(of_token >= 0).sum(dim=-1).double(),
        turn_of_token=of_token,
        turn_rewards=turn_rewards,
        turn_states=torch.randint(STATES, shape, generator=generator),
        turn_values=torch.rand(shape, generator=generator, dtype=torch.float64),
        prompt_ids=tuple(f"problem-{number}" for number in range(PROMPTS)),
    )


def turn_rows(batch: GroupBatch) -> list[dict[str, Any]]:
    """Return the turns of a batch one by one, as frameworks with a row for each turn have them."""
    rows = []
    assert batch.turn_of_token is not None
    for prompt, group in enumerate(batch.turn_of_token.tolist()):
        for rollout, tokens in enumerate(group):
            reward = batch.rewards[prompt, rollout].item()
            number = max(tokens) + 1
            given = _numbers(batch.turn_rewards, prompt, rollout, number)
            rewards = [*given[:-1], given[-1] + reward - sum(given)]
            for turn in range(number):
                row = {
                    "prompt": prompt,
                    "rollout": rollout,
                    "turn": turn,
                    "turns": number,
                    "whole": reward,
                    "given": given[turn],
                    "outcome": reward - sum(given),
                    "reward": rewards[turn],
                    "rewards": rewards,
                    "state": _numbers(batch.turn_states, prompt, rollout, number)[turn],
                    "values": _numbers(batch.turn_values, prompt, rollout, number),
                }
                rows.append(row)
    return rows


def _numbers(values: torch.Tensor | None, prompt: int, rollout: int, count: int) -> list[Any]:
    if values is None:
        return [0] * count
    numbers: list[Any] = values[prompt, rollout, :count].tolist()
    return numbers


def of_turns(batch: GroupBatch, values: torch.Tensor) -> list[float]:
    """Return the advantage of each turn, in the order of `turn_rows`; all its tokens have it."""
    assert batch.turn_of_token is not None
    advantages = []
    for row in turn_rows(batch):
        tokens = batch.turn_of_token[row["prompt"], row["rollout"]] == row["turn"]
        (advantage,) = set(values[row["prompt"], row["rollout"]][tokens].tolist())
        advantages.append(advantage)
    return advantages
