"""Four short episodes, and the advantages that an estimator gives to their turns."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from advsweep.cli.output import echo, print_columns, show_number
from advsweep.errors import BatchError
from advsweep.estimators import Estimator, GroupBatch
from advsweep.estimators.batch import NEUTRAL_INPUTS, PER_TOKEN, PER_TURN, Groups, spread_input
from advsweep.estimators.turns import Turns

# The states before the turns of each episode, and whether it succeeds: a way by B to C, one that
# finds the link from B closed and comes to B again, one straight to C, and one that goes astray.
_EPISODES = (("A", "B", "C"), ("A", "B", "B"), ("A", "C"), ("A", "D"))
_SUCCEEDS = (1.0, 0.0, 1.0, 0.0)

# For estimators that need rewards of turns: each move to another state, but the one astray.
_MOVES = ((0.25, 0.25, 0.0), (0.25, 0.0, 0.0), (0.25, 0.0), (0.0, 0.0))

# For those that need values: the reward still to come, by state.
_VALUES = {"A": 0.5, "B": 0.5, "C": 0.75, "D": 0.25}

# Each turn has two tokens, and the environment answers with one.
_GENERATED = 2
_TOKENS = _GENERATED + 1


def example_episodes(estimator: Estimator) -> GroupBatch:
    """Return four episodes of a prompt, with what the estimator needs.

    Where it needs the rewards of turns, they are part of the episodes' rewards.
    """
    longest = max(map(len, _EPISODES))
    of_token = torch.full((1, len(_EPISODES), _TOKENS * longest), -1)
    given = torch.zeros(1, len(_EPISODES), longest, dtype=torch.float64)
    values = torch.zeros_like(given)
    states = torch.zeros_like(given, dtype=torch.int64)
    for episode, (visited, moves) in enumerate(zip(_EPISODES, _MOVES, strict=True)):
        for turn, (state, moved) in enumerate(zip(visited, moves, strict=True)):
            start = _TOKENS * turn
            of_token[0, episode, start : start + _GENERATED] = turn
            given[0, episode, turn] = moved
            values[0, episode, turn] = _VALUES[state]
            states[0, episode, turn] = ord(state)
    rewards = torch.tensor([_SUCCEEDS], dtype=torch.float64)
    if "turn_rewards" in estimator.needs:
        rewards = rewards + given.sum(dim=-1)
    neutral: dict[str, Any] = {
        name: spread_input(name, NEUTRAL_INPUTS[name], rewards, of_token.shape[-1])
        for name in estimator.needs - PER_TURN - {"turn_of_token", "lengths"}
    }
    inside = of_token >= 0
    for name in PER_TOKEN & neutral.keys():
        neutral[name] = neutral[name].where(inside, 0.0)
    batch = GroupBatch(
        rewards=rewards, lengths=inside.sum(dim=-1).double(), turn_of_token=of_token, **neutral
    )
    per_turn = {"turn_rewards": given, "turn_values": values, "turn_states": states}
    needed: dict[str, Any] = {name: per_turn[name] for name in per_turn.keys() & estimator.needs}
    return dataclasses.replace(batch, **needed)


def describe_episodes(estimator: Estimator) -> dict[str, Any] | None:
    """Return the turns of the example with their advantages, in JSON types.

    None for an estimator that does not read turns.

    Args:
        estimator: not changed.
    """
    if not estimator.reads_turns:
        return None
    batch = example_episodes(estimator)
    try:
        computed = copy.deepcopy(estimator).compute(batch)
    except BatchError as error:
        return {"refused": str(error), "turns": []}
    advantages = Turns(Groups(batch)).means(computed.values)[0].tolist()
    rows = []
    for episode, states in enumerate(_EPISODES):
        for turn, state in enumerate(states):
            row = {
                "episode": episode + 1,
                "reward": batch.rewards[0, episode].item(),
                "turn": turn + 1,
                "state": state,
                "turn_reward": _number(batch.turn_rewards, episode, turn),
                "value": _number(batch.turn_values, episode, turn),
                "advantage": advantages[episode][turn],
                "kept": bool(computed.keep[0, episode]),
            }
            rows.append(row)
    return {"refused": None, "turns": rows}


def turns_of_example(estimator: Estimator) -> list[dict[str, Any]]:
    """Return the turns of `describe_episodes`; none for an estimator that does not take them."""
    described = describe_episodes(estimator)
    return [] if described is None else described["turns"]


def _number(values: torch.Tensor | None, episode: int, turn: int) -> float | None:
    return None if values is None else values[0, episode, turn].item()


def print_episodes(record: Mapping[str, Any]) -> None:
    """Print what `describe_episodes` returns: a line for each episode."""
    echo("\nfour episodes of a prompt: before each turn its state, then its advantage")
    if record["refused"]:
        echo(f"refused: {record['refused']}")
        return
    header, rows = episode_table(record["turns"])
    print_columns(header, rows)


def episode_table(turns: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the header and a row for each episode, with a cell for each turn."""
    longest = max(row["turn"] for row in turns)
    header = ["episode", "reward", *(f"turn {number + 1}" for number in range(longest))]
    rows: dict[int, list[str]] = {}
    for row in turns:
        first = [str(row["episode"]), show_number(row["reward"])]
        rows.setdefault(row["episode"], first).append(_cell(row))
    filled = [[*cells, *[""] * (len(header) - len(cells))] for cells in rows.values()]
    return header, filled


def _cell(row: Mapping[str, Any]) -> str:
    """Return the state of a turn, what else the estimator was given for it, and its advantage."""
    given = [row["state"]]
    if row["turn_reward"] is not None:
        given.append(f"r {show_number(row['turn_reward'])}")
    if row["value"] is not None:
        given.append(f"V {show_number(row['value'])}")
    return f"{', '.join(given)}: {show_number(row['advantage'])}"
