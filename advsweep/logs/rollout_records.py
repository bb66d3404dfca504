"""Rollouts of a step, as readers of dumps give them, and what they say of the reading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

# Other numbers per rollout that JSON lines may have, by the names that estimators give them.
INPUTS = ("ref_rewards", "token_entropy", "token_entropy_exact", "self_certainty", "answered")


class GroupTurns(NamedTuple):
    """The turns of the rollouts of a group.

    Attributes:
        counts: how many each rollout has.
        rewards: of each turn, if the dump has them for every rollout.
        states: a number of what stands before each turn, likewise.
    """

    counts: list[int]
    rewards: list[list[float]] | None = None
    states: list[list[int]] | None = None


class RolloutGroup(NamedTuple):
    """The rollouts of one prompt.

    Attributes:
        prompt: its text; empty if the dump has none. A conversation is JSON.
        rewards: of each rollout; NaN for one that could not be scored.
        lengths: generated tokens of each rollout, if the dump has them.
        inputs: other numbers per rollout, by names of `INPUTS`.
        advantages: of each rollout, as the trainer logged them.
        task: the name of the set of problems, if the dump has several.
        completions: the text of each rollout, if they are read.
        turns: the turns of each rollout, if the dump tells them.
    """

    prompt: str
    rewards: list[float]
    lengths: list[int] | None = None
    inputs: Mapping[str, list[float]] | None = None
    advantages: list[float] | None = None
    task: str = ""
    completions: list[str] | None = None
    turns: GroupTurns | None = None


class RolloutStep(NamedTuple):
    """The groups of one step."""

    step: int
    groups: list[RolloutGroup]


@dataclass
class RolloutNotes:
    """What reading found.

    Attributes:
        left_out: why lines, rollouts and groups were not used, with how often.
        remarks: sentences on how the dump was read.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)

    def remark(self, text: str) -> None:
        """Add a sentence once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def message(self) -> str:
        """Return one sentence on what was left out; empty if nothing was."""
        counts = ", ".join(f"{what} ({number:,})" for what, number in sorted(self.left_out.items()))
        return f"left out: {counts}" if counts else ""
