"""Recorded rollouts as batches for estimators: steps of equal shape lie side by side.

Groups may differ in size. A smaller group is one with missing rollouts: it is filled up to the
largest group of its step, and the mask leaves the rest out of every statistic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from advsweep.diagnostics.stacked_runs import StackedRollouts
from advsweep.errors import BatchError
from advsweep.estimators.batch import COUNTERS, PER_PROMPT, PER_TOKEN, GroupBatch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

# A step may declare more than memory holds: one large group among many small ones.
_MOST_CELLS = 10**8
_LARGEST_GROUP = 1024


class RecordedGroup(Protocol):
    """The rollouts of one prompt; `advsweep.logs.rollouts.RolloutGroup` is one."""

    @property
    def prompt(self) -> str: ...
    @property
    def rewards(self) -> Sequence[float]: ...
    @property
    def lengths(self) -> Sequence[int] | None: ...
    @property
    def inputs(self) -> Mapping[str, Sequence[float]] | None: ...
    @property
    def advantages(self) -> Sequence[float] | None: ...


class RecordedStep(Protocol):
    """The groups of one step."""

    @property
    def step(self) -> int: ...
    @property
    def groups(self) -> Sequence[RecordedGroup]: ...


@dataclass(frozen=True, kw_only=True)
class Block:
    """Steps of about equal shape.

    Attributes:
        places: index of each step among all steps.
        numbers: the steps.
        groups: number of groups of each step; the rest of a row is masked.
        runs: shape and mask, with a step in place of a run.
        rewards: rewards, 0 where masked.
        inputs: other numbers per rollout by name, 0 where masked.
        prompts: names of each step's prompts; empty where masked.
        logged: the advantages that the trainer logged, 0 where masked; None without them.
    """

    places: Int[np.ndarray, " steps"]
    numbers: Int[np.ndarray, " steps"]
    groups: Int[np.ndarray, " steps"]
    runs: StackedRollouts
    rewards: Float[np.ndarray, "steps groups rollouts"]
    inputs: Mapping[str, Float[np.ndarray, "steps groups rollouts"]]
    prompts: Sequence[tuple[str, ...]]
    logged: Float[np.ndarray, "steps groups rollouts"] | None

    def batch(self, rates: Float[np.ndarray, "steps groups"] | None) -> GroupBatch:
        """Return all steps as one batch, for estimators that see a group at a time."""
        rollouts = self.rewards.shape[2]
        return self._batch(
            self.runs.mask,
            self.rewards,
            self.inputs,
            rollouts,
            prompt_ids=tuple(name for names in self.prompts for name in names) or None,
            solve_rates=None if rates is None else torch.from_numpy(rates.reshape(-1)),
        )

    def batch_of(
        self, place: int, rates: Float[np.ndarray, "steps groups"] | None, total_steps: int
    ) -> GroupBatch:
        """Return one step as a batch, with its number."""
        count = int(self.groups[place])
        mask = None if self.runs.mask is None else self.runs.mask[place, :count]
        return self._batch(
            None if mask is None or mask.all() else mask,
            self.rewards[place, :count],
            {name: values[place, :count] for name, values in self.inputs.items()},
            self.rewards.shape[2],
            prompt_ids=self.prompts[place][:count] if self.prompts else None,
            solve_rates=None if rates is None else torch.from_numpy(rates[place, :count].copy()),
            step=int(self.numbers[place]),
            total_steps=total_steps,
        )

    def _batch(
        self,
        mask: Bool[np.ndarray, "*steps groups rollouts"] | None,
        rewards: Float[np.ndarray, "*steps groups rollouts"],
        inputs: Mapping[str, Float[np.ndarray, "*steps groups rollouts"]],
        rollouts: int,
        **others: Any,
    ) -> GroupBatch:
        def tensor(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(values).reshape(-1, rollouts))

        given: dict[str, Any] = {name: tensor(values) for name, values in inputs.items()}
        if "answered" in given:
            given["answered"] = given["answered"] == 1
        scored = None if mask is None else tensor(mask)
        return GroupBatch(rewards=tensor(rewards), mask=scored, **given, **others)


class Recording:
    """All steps of a dump.

    Attributes:
        large_groups: number of groups that are left out because of their size.
        steps: the steps, ascending.
        blocks: the steps in blocks; a step is in one of them.
        inputs: names of what a batch has besides rewards.
        distinct: the different rewards; None if there are more than two.
    """

    def __init__(self, steps: Iterable[RecordedStep], assumed: Mapping[str, float]) -> None:
        """Arrange steps.

        Args:
            assumed: inputs that the steps lack, with one number for all rollouts.

        Raises:
            BatchError: there is no rollout, a step is too large, or an input cannot be assumed.
        """
        shapes: dict[tuple[int, int], list[int]] = {}
        kept: list[RecordedStep] = []
        self.large_groups = 0
        for step in sorted(steps, key=lambda step: step.step):
            # The variance of weights enumerates the numbers of successes.
            small = [g for g in step.groups if 0 < len(g.rewards) <= _LARGEST_GROUP]
            self.large_groups += sum(len(g.rewards) > _LARGEST_GROUP for g in step.groups)
            if not small:
                continue
            # A group of one would be refused by estimators that compare; as part of a larger one
            # it has no gradient.
            longest = max(2, *(len(group.rewards) for group in small))
            if len(small) * longest > _MOST_CELLS:
                raise BatchError(
                    f"step {step.step}: expected at most {_MOST_CELLS:,} rollouts, with groups "
                    f"filled up to the largest, got {len(small):,} groups of up to {longest:,}"
                )
            shapes.setdefault((longest, (len(small) - 1).bit_length()), []).append(len(kept))
            kept.append(_Kept(step.step, small))
        if not kept:
            raise BatchError("expected rollouts of at least one step, got none")
        self.steps = np.array([step.step for step in kept])
        groups = [group for step in kept for group in step.groups]
        self._logged = all(len(group.advantages or ()) == len(group.rewards) for group in groups)
        self.inputs = _shared_inputs(groups)
        for name in sorted(assumed.keys() & (COUNTERS | PER_PROMPT | PER_TOKEN)):
            raise BatchError(f"{name}: expected an input with one number per rollout to assume")
        self._assumed = {n: v for n, v in assumed.items() if n not in self.inputs}
        self.inputs |= self._assumed.keys()
        if any(group.prompt for group in groups):
            self.inputs |= {"prompt_ids"}
        names = {p: str(i) for i, p in enumerate(dict.fromkeys(g.prompt for g in groups))}
        self.blocks = [
            self._block(places, [kept[place] for place in places], longest, names)
            for (longest, _), places in shapes.items()
        ]
        values = {float(v) for block in self.blocks for v in np.unique(_counted(block))[:3]}
        self.distinct = sorted(values) if len(values) <= 2 else None

    def in_order(self) -> Iterator[tuple[int, int]]:
        """Yield the block and the place in it of each step, ascending."""
        where = np.empty((len(self.steps), 2), dtype=np.int64)
        for number, block in enumerate(self.blocks):
            where[block.places] = [(number, place) for place in range(len(block.places))]
        yield from ((number, place) for number, place in where.tolist())

    def _block(
        self, places: list[int], steps: list[RecordedStep], rollouts: int, names: Mapping[str, str]
    ) -> Block:
        counts = np.array([len(step.groups) for step in steps])
        shape = (len(steps), int(counts.max()), rollouts)
        present = np.arange(shape[1]) < counts[:, None]
        groups = [group for step in steps for group in step.groups]
        sizes = np.zeros(shape[:2], dtype=np.int64)
        sizes[present] = [len(group.rewards) for group in groups]
        filled = np.arange(rollouts) < sizes[..., None]

        def table(values: Iterable[Sequence[float]]) -> Float[np.ndarray, "steps groups rollouts"]:
            numbers = np.full(shape, math.nan)
            numbers[filled] = [value for row in values for value in row]
            return numbers

        rewards = table(group.rewards for group in groups)
        mask = np.isfinite(rewards)
        inputs = {}
        for name in sorted(self.inputs - {"prompt_ids"}):
            if name in self._assumed:
                inputs[name] = np.where(mask, self._assumed[name], 0.0)
                continue
            found = (_input(group, name) for group in groups)
            numbers = table(values for values in found if values is not None)
            inputs[name] = np.where(mask, numbers, 0.0)
        prompts: list[tuple[str, ...]] = []
        if "prompt_ids" in self.inputs:
            for step in steps:
                own = tuple(names[group.prompt] for group in step.groups)
                prompts.append(own + ("",) * (shape[1] - len(own)))
        logged = None
        if self._logged:
            logged = np.where(mask, table(group.advantages or () for group in groups), 0.0)
        return Block(
            logged=logged,
            places=np.array(places),
            numbers=np.array([step.step for step in steps]),
            groups=counts,
            runs=StackedRollouts(shape, None if mask.all() else mask),
            rewards=np.where(mask, rewards, 0.0),
            inputs=inputs,
            prompts=prompts,
        )


@dataclass(frozen=True)
class _Kept:
    step: int
    groups: list[RecordedGroup]


def _counted(block: Block) -> Float[np.ndarray, " rollouts"]:
    mask = block.runs.mask
    return block.rewards.reshape(-1) if mask is None else block.rewards[mask]


def _input(group: RecordedGroup, name: str) -> Sequence[float] | None:
    return group.lengths if name == "lengths" else (group.inputs or {}).get(name)


def _shared_inputs(groups: Sequence[RecordedGroup]) -> frozenset[str]:
    """Return the inputs that every group has for each of its rollouts."""
    first = groups[0]
    names = {"lengths", *(first.inputs or ())}
    return frozenset(
        name
        for name in names
        if all(
            (values := _input(group, name)) is not None and len(values) == len(group.rewards)
            for group in groups
        )
    )
