"""What a dump of rollouts is read into: steps, groups, and notes on what was left out.

`rollout_files` reads the files of a dump as parts of groups; `joined_steps` makes steps of them.
A step that a file logs again after later steps, as after a resume, replaces what was read of it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from advsweep.printable import printable_line

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

INPUTS = ("ref_rewards", "token_entropy", "token_entropy_exact", "self_certainty", "answered")
"""Other numbers per rollout that JSON lines may have, by the names that estimators give them."""

NO_STEP = "lines without a step"
NOT_FINITE = "rewards that are no finite numbers, taken as unscorable"


class RolloutGroup(NamedTuple):
    """The rollouts of one prompt.

    Attributes:
        prompt: its text; empty if the dump has none. A conversation is JSON.
        rewards: of each rollout; NaN for one that could not be scored.
        lengths: generated tokens of each rollout, if the dump has them.
        answers: the generated texts, if they were asked for and the dump has them.
        inputs: other numbers per rollout, by names of `INPUTS`.
        advantages: of each rollout, as the trainer logged them.
    """

    prompt: str
    rewards: list[float]
    lengths: list[int] | None = None
    answers: list[str] | None = None
    inputs: Mapping[str, list[float]] | None = None
    advantages: list[float] | None = None


class RolloutStep(NamedTuple):
    """The groups of one step."""

    step: int
    groups: list[RolloutGroup]

    def table(
        self,
    ) -> tuple[Float[np.ndarray, "groups rollouts"], Bool[np.ndarray, "groups rollouts"] | None]:
        """Return the rewards as a table, and the rollouts that count; None if all do.

        Smaller groups are filled up with NaN, which does not count.
        """
        rewards = filled([group.rewards for group in self.groups])
        mask = ~np.isnan(rewards)
        return rewards, None if mask.all() else mask


def filled(rows: list[list[float]], least: int = 0) -> Float[np.ndarray, "rows longest"]:
    """Return rows as a table, filled up with NaN to the longest, or at least so far."""
    sizes = np.array([len(row) for row in rows], dtype=np.int64)
    table = np.full((len(rows), sizes.max(initial=least)), math.nan)
    places = np.arange(table.shape[1]) < sizes[:, None]
    table[places] = [value for row in rows for value in row]
    return table


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


class RolloutPart(NamedTuple):
    """Some rollouts of a group, as one or more lines of a file have them.

    Attributes:
        key: parts of a step with the same key belong to one group.
        group: see `RolloutGroup`.
    """

    step: int
    key: Hashable
    group: RolloutGroup


class Wanted(NamedTuple):
    """What to read: rewards, and generated texts.

    Attributes:
        rewards: names and weights of rewards; None for the form's own.
        weigh: returns the weights of TRL's reward functions by their names, where `rewards` is
            None; by default 1 each.
        size: rollouts of each group of TRL; None if unknown.
    """

    rewards: Mapping[str, float] | None
    answers: bool
    weigh: Callable[[list[str]], Mapping[str, float]] = lambda names: dict.fromkeys(names, 1.0)
    size: int | None = None


def sum_of(weights: Mapping[str, float]) -> str:
    """Return a weighted sum in words, such as `right + 0.2 short`."""
    parts = [name if weight == 1 else f"{weight:g} {name}" for name, weight in weights.items()]
    return printable_line(" + ".join(parts))


def weighted_sums(columns: list[list[Any]], weights: list[float]) -> list[float]:
    """Return the weighted sum of each rollout's rewards, without those that are NaN.

    NaN where all are, as in TRL.
    """
    if len(columns) == 1 and weights[0] == 1:
        return [finite(value) for value in columns[0]]
    sums = []
    for row in zip(*columns, strict=True):
        known = [w * v for w, v in zip(weights, map(finite, row), strict=True) if not math.isnan(v)]
        sums.append(finite(math.fsum(known)) if known else math.nan)
    return sums


def finite(value: Any) -> float:
    """Return a number as a float; NaN for anything else and for infinity."""
    if not isinstance(value, (int, float)):
        return math.nan
    try:
        number = float(value)
    except OverflowError:  # An integer with more than 308 digits.
        return math.nan
    return number if math.isfinite(number) else math.nan


def as_text(value: Any) -> str:
    """Return a prompt or a completion as text: a conversation as JSON, nothing as ''."""
    if isinstance(value, str) or value is None:
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)


def joined_steps(
    files: Iterable[Iterable[RolloutPart]], notes: RolloutNotes
) -> Iterator[RolloutStep]:
    """Yield the steps of the parts of each file of a dump, in ascending order."""
    steps: dict[int, _Block] = {}
    for parts in files:
        for step, block in _blocks_of_file(parts, notes).items():
            known = steps.setdefault(step, block)
            if known is not block:
                for key, group in block.groups.items():
                    known.add(key, group)
    yield from (RolloutStep(step, list(steps[step].groups.values())) for step in sorted(steps))


@dataclass
class _Block:
    """Groups of one step from lines in sequence."""

    groups: dict[Hashable, RolloutGroup] = field(default_factory=dict)
    prompts: set[str] = field(default_factory=set)

    def add(self, key: Hashable, group: RolloutGroup) -> None:
        self.groups[key] = _joined(self.groups[key], group) if key in self.groups else group
        self.prompts.add(group.prompt)

    def repeats(self, earlier: _Block) -> bool:
        """Whether this logs prompts of an earlier block again, and not rollouts missing there."""
        return not self.prompts.isdisjoint(earlier.prompts) and self.groups.keys().isdisjoint(
            earlier.groups
        )


def _blocks_of_file(parts: Iterable[RolloutPart], notes: RolloutNotes) -> dict[int, _Block]:
    """Return the groups of a file by step; a step that is logged again counts as its last."""
    found: dict[int, _Block] = {}
    for step, sequence in groupby(parts, key=lambda part: part.step):
        block = _Block()
        for part in sequence:
            block.add(part.key, part.group)
        earlier = found.setdefault(step, block)
        if earlier is block:
            continue
        if block.repeats(earlier):
            found[step] = block
            notes.left_out["groups of steps that are logged again later"] += len(earlier.groups)
        else:
            for key, group in block.groups.items():
                earlier.add(key, group)
    return found


def _joined(first: RolloutGroup, second: RolloutGroup) -> RolloutGroup:
    """Add the rollouts of a second part to the first; what only one of them has is dropped."""
    # In place, as a group may have a part per rollout.
    first.rewards.extend(second.rewards)
    lengths, answers, inputs = first.lengths, first.answers, first.inputs
    advantages = first.advantages
    if lengths is not None and second.lengths is not None:
        lengths.extend(second.lengths)
    if answers is not None and second.answers is not None:
        answers.extend(second.answers)
    if advantages is not None and second.advantages is not None:
        advantages.extend(second.advantages)
    shared = [name for name in inputs or () if name in (second.inputs or ())]
    for name in shared:
        assert inputs is not None
        assert second.inputs is not None
        inputs[name].extend(second.inputs[name])
    return first._replace(
        lengths=None if second.lengths is None else lengths,
        answers=None if second.answers is None else answers,
        inputs={name: inputs[name] for name in shared} if inputs and shared else None,
        advantages=None if second.advantages is None else advantages,
    )
