"""Tokens of prompts with completions, and the padded rows of forward passes over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Int
    from torch import Tensor

    # Prompts padded on the left, completions padded on the right.
    Padded = Int[Tensor, "rows width"]

# Token ids of some texts.
Texts = Sequence[Sequence[int]]

# The most logits of one forward pass: half a GiB in float32.
_LOGITS = 1 << 27


class PaddedRows(NamedTuple):
    """Prompts with completions, in the order in which TRL's forward pass takes them.

    Attributes:
        ids: prompts padded on the left, completions padded on the right.
        mask: 0 at padding, 1 elsewhere.
        tokens: width of the completions.
    """

    ids: Padded
    mask: Padded
    tokens: int

    @property
    def generated(self) -> Bool[Tensor, "rows tokens"]:
        """Whether a completion has a token there."""
        return self.mask[:, -self.tokens :].bool()

    def split(self, size: int) -> Iterator[PaddedRows]:
        """Yield parts of at most so many rows."""
        parts = zip(torch.split(self.ids, size), torch.split(self.mask, size), strict=True)
        for ids, mask in parts:
            yield PaddedRows(ids, mask, self.tokens)


@dataclass(frozen=True)
class TokenizedAnswers:
    """The tokens of prompts, and of one completion of each.

    Attributes:
        pad_id: the token that fills rows.
    """

    prompts: Texts
    completions: Texts
    pad_id: int

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its completion."""
        pairs = zip(self.prompts, self.completions, strict=True)
        return max(len(prompt) + len(completion) for prompt, completion in pairs)

    def pick(self, rows: Sequence[int]) -> TokenizedAnswers:
        """Select answers by their numbers."""
        return TokenizedAnswers(
            [self.prompts[row] for row in rows],
            [self.completions[row] for row in rows],
            self.pad_id,
        )

    def batches(self, model: Any, rows: int) -> Iterator[PaddedRows]:
        """Yield what each forward pass of a model takes: at most so many rows, on its device."""
        width = max(map(len, self.completions))
        vocabulary = model.config.get_text_config().vocab_size
        size = max(1, min(rows, _LOGITS // (width * vocabulary)))
        for start in range(0, len(self.prompts), size):
            batch = self.pick(range(start, min(start + size, len(self.prompts))))
            yield batch._padded(model.device)

    def _padded(self, device: torch.device) -> PaddedRows:
        width = max(map(len, self.prompts))
        tokens = max(map(len, self.completions))
        ids = torch.full((len(self.prompts), width + tokens), self.pad_id)
        mask = torch.zeros_like(ids)
        pairs = zip(self.prompts, self.completions, strict=True)
        for row, (prompt, completion) in enumerate(pairs):
            columns = slice(width - len(prompt), width + len(completion))
            ids[row, columns] = torch.tensor([*prompt, *completion])
            mask[row, columns] = 1
        return PaddedRows(ids.to(device), mask.to(device), tokens)
