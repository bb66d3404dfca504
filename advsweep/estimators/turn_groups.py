"""Turns laid out as groups: those at one place of an episode, or those before one state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from advsweep.estimators.batch import GroupBatch, Groups

if TYPE_CHECKING:
    from jaxtyping import Bool, Int, Shaped
    from torch import Tensor

    from advsweep.estimators.batch import PerTurn
    from advsweep.estimators.turns import FlagPerTurn, Turns


@dataclass(frozen=True, kw_only=True)
class TurnGroups:
    """The turns of a batch as a table: each row is a group of turns, each column has one of it.

    With G rollouts to a prompt, column c has a turn of rollout c mod G. A rollout has more than
    one column if it comes to a state more than once.

    Attributes:
        prompts: the prompt of each row.
        labels: what the turns of a row have in common: their number, from 0, or their state.
        numbers: the turn, from 0, of each place of the table; 0 where there is none.
        present: whether there is a turn at a place.
        turns: the turns of the batch.
    """

    prompts: Int[Tensor, " rows"]
    labels: Int[Tensor, " rows"]
    numbers: Int[Tensor, "rows columns"]
    present: Bool[Tensor, "rows columns"]
    turns: Turns

    @classmethod
    def by_index(cls, turns: Turns) -> TurnGroups:
        """Group the turns of a prompt that have the same number.

        A prompt without a rollout that counts has a row without a turn.
        """
        present = turns.present.transpose(1, 2)
        occupied = present.any(dim=-1)
        occupied[:, 0] = True
        prompts, labels = occupied.nonzero().unbind(dim=-1)
        present = present[occupied]
        numbers = labels[:, None].expand(present.shape)
        return cls(prompts=prompts, labels=labels, numbers=numbers, present=present, turns=turns)

    @classmethod
    def by_state(cls, turns: Turns) -> TurnGroups:
        """Group the turns of a prompt that have the same state before them, at any number."""
        prompts, rollouts, numbers = turns.present.nonzero().unbind(dim=-1)
        states = turns.states[prompts, rollouts, numbers].long()
        # One number for prompt and state: sorting pairs takes much longer.
        names, places = torch.unique(states, return_inverse=True)
        pairs, rows = torch.unique(prompts * len(names) + places, return_inverse=True)
        group_size = turns.present.shape[1]
        visits = _ranks(rows * group_size + rollouts)
        columns = visits * group_size + rollouts
        width = (int(visits.max()) + 1) * group_size
        table = numbers.new_zeros(len(pairs), width)
        table[rows, columns] = numbers
        present = torch.zeros_like(table, dtype=torch.bool)
        present[rows, columns] = True
        return cls(
            prompts=pairs // len(names),
            labels=names[pairs % len(names)],
            numbers=table,
            present=present,
            turns=turns,
        )

    def gather(self, values: PerTurn) -> Shaped[Tensor, "rows columns"]:
        """Return a number per turn at its place of the table; 0 where there is no turn."""
        gathered = values[self.prompts[:, None], self.rollouts, self.numbers]
        return gathered.where(self.present, 0)

    def scatter(self, table: Shaped[Tensor, "rows columns"]) -> PerTurn:
        """Return the numbers of a table for the turns they are of; 0 past the last turn."""
        values = table.new_zeros(self.turns.present.shape)
        prompts = self.prompts[:, None].expand_as(table)[self.present]
        rollouts = self.rollouts.expand_as(table)[self.present]
        values[prompts, rollouts, self.numbers[self.present]] = table[self.present]
        return values

    @property
    def rollouts(self) -> Int[Tensor, " columns"]:
        """The rollout of each column."""
        columns = torch.arange(self.present.shape[1], device=self.present.device)
        return columns % self.turns.present.shape[1]

    def statistics(self, values: PerTurn) -> Groups:
        """Return the statistics of a number per turn within its group."""
        return Groups(GroupBatch(rewards=self.gather(values), mask=self.present))

    def accompanied(self) -> FlagPerTurn:
        """Flag the turns in whose group another rollout has a turn too."""
        rows, columns = self.present.shape
        group_size = self.turns.present.shape[1]
        by_rollout = self.present.view(rows, columns // group_size, group_size).any(dim=1)
        has_several = by_rollout.sum(dim=1, keepdim=True) > 1
        return self.scatter(has_several.expand_as(self.present))

    def company(self) -> float:
        """Return the share of the turns in whose group another rollout has a turn too."""
        return (self.accompanied().sum() / self.turns.present.sum()).item()


def _ranks(keys: Int[Tensor, " cells"]) -> Int[Tensor, " cells"]:
    """Return how many earlier cells have the same key."""
    order = keys.argsort(stable=True)
    places = torch.arange(len(keys), device=keys.device)
    in_order = keys[order]
    is_first = torch.ones_like(in_order, dtype=torch.bool)
    is_first[1:] = in_order[1:] != in_order[:-1]
    first = places.where(is_first, 0).cummax(dim=0).values
    ranks = torch.empty_like(places)
    ranks[order] = places - first
    return ranks
