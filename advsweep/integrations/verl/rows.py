"""Tokens of verl's rows as those of rollouts, and back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advsweep.integrations.rows import Origin, Rows

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class TokenRows(Rows):
    """Rows with a mask of the tokens that the policy generated.

    The tokens of a rollout are those of all its outputs, in their order; its reward is that of
    the last output.
    """

    def __init__(self, origins: Sequence[Origin], response_mask: Tensor) -> None:
        super().__init__(origins, response_mask.device)
        self._mask = response_mask.bool()
        lengths = self._mask.sum(dim=1).tolist()
        before = [0] * len(origins)
        for rows in self.sessions:
            for earlier, row in itertools.pairwise(rows):
                before[row] = before[earlier] + lengths[earlier]
        self._before = torch.tensor(before, device=response_mask.device)

    def lengths(self) -> Float[Tensor, " sessions"]:
        """Return the generated tokens of each rollout."""
        return self.totals(self._mask.sum(dim=1).float())

    def token_sums(self, values: Float[Tensor, "rows tokens"]) -> Float[Tensor, " sessions"]:
        """Return the sum over the generated tokens of each rollout."""
        return self.totals(torch.where(self._mask, values, 0.0).sum(dim=1))

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
        mask = self._mask & (self.owner >= 0)[:, None]
        row, column = mask.nonzero(as_tuple=True)
        group, place = (places[self.owner[row]] for places in self._places)
        token = self._before[row] + (mask.cumsum(dim=1) - 1)[row, column]
        return row, column, group, place, token
