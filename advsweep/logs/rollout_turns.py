"""The turns of dumped rollouts: how many each has, and what was given for each of them.

A dump tells the turns of an agent in one of these ways:

- JSON lines have the fields `turns`, the number of turns, `turn_rewards` and `turn_states`, a list
  with an entry per turn; a line of a group has a list of these. `turns` may be left out beside
  another one.
- A completion is a list of messages: a turn is a run of messages of the assistant.
- verl writes one text, from which special tokens are left out: what begins with the line `user`
  and `<tool_response>` is of a tool, as in chat templates of Qwen. Of a session with several
  outputs the turns of all count.
- prime-rl has a node for each message that the model sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from advsweep.bounds import is_bounded
from advsweep.logs.rollout_records import GroupTurns
from advsweep.state_numbers import number_state

FIELDS = ("turns", "turn_rewards", "turn_states")

# An axis of turns is as long as the longest episode.
_MOST_TURNS = 1024

# Where the line of a tool begins and ends in verl's texts.
_TOOL = "user\n<tool_response>"
_END_OF_TOOL = "</tool_response>"


class BrokenTurnsError(ValueError):
    """The turns of a row are not those of its rollouts."""


def count_messages(messages: Any) -> int | None:
    """Return the turns of the assistant in a list of messages; None for anything else."""
    if not isinstance(messages, list) or not messages:
        return None
    if not all(isinstance(message, Mapping) and "role" in message for message in messages):
        return None
    runs = [role for role, _ in groupby(message["role"] for message in messages)]
    return max(runs.count("assistant"), 1)


def count_in_text(text: str) -> int:
    """Return the turns in a text of verl's, which is one turn where no tool answers."""
    tools = text.count(_TOOL)
    rest = text.rpartition(_END_OF_TOOL)[2] if tools else text
    is_unanswered = bool(tools) and rest.strip() in ("", "assistant")
    return tools + (0 if is_unanswered else 1)


def read_turns(row: Mapping[str, Any], size: int, *, is_group: bool) -> GroupTurns | None:
    """Return the turns of a row's rollouts; None if it says nothing of them.

    Args:
        size: the number of rollouts.
        is_group: whether the row has lists with an entry per rollout.

    Raises:
        BrokenTurnsError: a field has another number of rollouts or turns than another one, or
            another type.
    """
    columns = _columns_of(row, size, is_group=is_group)
    if not columns:
        return None
    rewards = None
    if "turn_rewards" in columns:
        rewards = [_rewards_of(values) for values in columns["turn_rewards"]]
    states = None
    if "turn_states" in columns:
        states = [_states_of(values) for values in columns["turn_states"]]
    counts = columns.get("turns")
    if counts is None:
        counts = [len(values) for values in rewards or states or ()]
    _check_counts(counts, rewards, states)
    return GroupTurns(counts, rewards, states)


def _columns_of(row: Mapping[str, Any], size: int, *, is_group: bool) -> dict[str, list[Any]]:
    """Return the fields of turns that a row has, each with an entry per rollout."""
    columns = {name: row[name] for name in FIELDS if row.get(name) is not None}
    if not is_group:
        columns = {name: [value] for name, value in columns.items()}
    for column in columns.values():
        if not isinstance(column, list) or len(column) != size:
            raise BrokenTurnsError
    return columns


def _rewards_of(values: Any) -> list[float]:
    numbers = values if isinstance(values, list) else []
    if not all(isinstance(number, int | float) and is_bounded(number) for number in numbers):
        raise BrokenTurnsError
    return [float(number) for number in numbers]


def _states_of(values: Any) -> list[int]:
    return [number_state(value) for value in values] if isinstance(values, list) else []


def _check_counts(
    counts: Sequence[Any],
    rewards: Sequence[Sequence[float]] | None,
    states: Sequence[Sequence[int]] | None,
) -> None:
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_TURNS:
            raise BrokenTurnsError
    for values in (rewards, states):
        if values is not None and [len(each) for each in values] != list(counts):
            raise BrokenTurnsError


def join_turns(parts: Sequence[GroupTurns | None]) -> GroupTurns | None:
    """Return the turns of a group whose rollouts come in parts; None unless all parts have some."""
    counts: list[int] = []
    rewards: list[list[float]] | None = []
    states: list[list[int]] | None = []
    for part in parts:
        if part is None:
            return None
        counts += part.counts
        rewards = None if rewards is None or part.rewards is None else rewards + part.rewards
        states = None if states is None or part.states is None else states + part.states
    return GroupTurns(counts, rewards, states)
