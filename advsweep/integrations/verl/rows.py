"""Rows of a batch of verl as groups of rollouts, and back."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class Origin(NamedTuple):
    """Where a row comes from.

    Attributes:
        prompt: the prompt, the same for all rows of a group.
        session: the rollout of that prompt; several rows if an agent gave several outputs.
        output: the place of the row among the outputs of its session.
        padding: verl added the row to fill up a batch.
    """

    prompt: Hashable
    session: Hashable
    output: int = 0
    padding: bool = False


class Rows:
    """The rows of a batch, grouped: a group for each prompt, a rollout for each session.

    Rows come in any order, groups in any size. A session counts as one rollout, however many
    rows it has: its reward is that of the last output, its tokens are those of all outputs in
    their order. Padding belongs to no group.

    Attributes:
        final: the row of the last output of each rollout.
        present: which places of the table [groups, rollouts] hold a rollout; None if all do.
    """

    def __init__(self, origins: Sequence[Origin], response_mask: Tensor) -> None:
        self._mask = response_mask.bool()
        device = response_mask.device
        groups: dict[Hashable, dict[Hashable, list[int]]] = {}
        for row, origin in enumerate(origins):
            if not origin.padding:
                groups.setdefault(origin.prompt, {}).setdefault(origin.session, []).append(row)

        # The number of a rollout, of its group and of its place there, for each row.
        owner = [-1] * len(origins)
        before = [0] * len(origins)
        final: list[int] = []
        group_of: list[int] = []
        place_of: list[int] = []
        lengths = self._mask.sum(dim=1).tolist()
        for group, sessions in enumerate(groups.values()):
            for place, session in enumerate(_in_order(sessions)):
                rows = sorted(sessions[session], key=lambda row: origins[row].output)
                for row, earlier in zip(rows, [None, *rows[:-1]], strict=True):
                    owner[row] = len(final)
                    before[row] = 0 if earlier is None else before[earlier] + lengths[earlier]
                final.append(rows[-1])
                group_of.append(group)
                place_of.append(place)
        self._owner = torch.tensor(owner, device=device)
        self._before = torch.tensor(before, device=device)
        self.final = torch.tensor(final, device=device)
        self._group = torch.tensor(group_of, device=device)
        self._place = torch.tensor(place_of, device=device)
        self._first = [rows[0] for sessions in groups.values() for rows in [*sessions.values()][:1]]
        self._shape = (len(groups), max(map(len, groups.values()), default=0))
        full = len(final) == self._shape[0] * self._shape[1]
        ones = torch.ones(len(final), dtype=torch.bool, device=device)
        self.present: Bool[Tensor, "groups rollouts"] | None = None if full else self.table(ones)

    def table(self, values: Tensor) -> Tensor:
        """Return one value per rollout as a table [groups, rollouts], 0 where there is none."""
        table = values.new_zeros(self._shape)
        table[self._group, self._place] = values
        return table

    def per_group(self, values: Sequence[str]) -> tuple[str, ...]:
        """Return one value per group, for values of rows that are the same in a group."""
        return tuple(values[row] for row in self._first)

    def lengths(self) -> Float[Tensor, " sessions"]:
        """Return the generated tokens of each rollout."""
        return self.token_sums(torch.ones_like(self._mask, dtype=torch.float32))

    def token_sums(self, values: Float[Tensor, "rows tokens"]) -> Float[Tensor, " sessions"]:
        """Return the sum over the generated tokens of each rollout."""
        real = self._owner >= 0
        sums = torch.where(self._mask, values, 0.0).sum(dim=1)
        total = sums.new_zeros(len(self.final))
        return total.index_add_(0, self._owner[real], sums[real])

    def token_table(
        self, values: Float[Tensor, "rows tokens"]
    ) -> Float[Tensor, "groups rollouts tokens"]:
        """Return one value per generated token, left-aligned, 0 past the end."""
        row, column, group, place, token = self._tokens()
        longest = int(token.max()) + 1 if len(token) else 1
        table = values.new_zeros(*self._shape, longest)
        table[group, place, token] = values[row, column]
        return table

    def spread(self, table: Tensor) -> Float[Tensor, "rows tokens"]:
        """Return the rows of verl for a table of one value per rollout, or per token.

        Tokens that the policy did not generate, and padding, get 0.
        """
        rows = table.new_zeros(self._mask.shape)
        row, column, group, place, token = self._tokens()
        where = (group, place, token) if table.ndim == 3 else (group, place)
        rows[row, column] = table[where]
        return rows

    def _tokens(self) -> tuple[Int[Tensor, " tokens"], ...]:
        """Return the row and column, and the group, place and number, of all generated tokens."""
        mask = self._mask & (self._owner >= 0)[:, None]
        row, column = mask.nonzero(as_tuple=True)
        owner = self._owner[row]
        token = self._before[row] + (mask.cumsum(dim=1) - 1)[row, column]
        return row, column, self._group[owner], self._place[owner], token


def _in_order(sessions: dict[Hashable, list[int]]) -> list[Hashable]:
    """Return the sessions by their numbers, if they have some: verl moves rows about."""
    numbers = [key for key in sessions if isinstance(key, int)]
    return [*sorted(numbers)] if len(numbers) == len(sessions) else [*sessions]
