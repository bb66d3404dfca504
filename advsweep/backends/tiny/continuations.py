"""Completions after their prompts, as the training forward pass sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from advsweep.backends.tiny.network import (
    Layout,
    Prefixes,
    encode_prefix,
    extend,
    last_hidden,
    lay_out,
)
from advsweep.backends.tiny.packing import pack

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.backends.tiny.network import Network
    from advsweep.backends.tiny.vocabulary import Encoded


@dataclass(frozen=True)
class Continuations:
    """Completions of some prompts, laid out for a forward pass.

    Each prompt is encoded once, but for its last character, which opens every row of its
    own. What the rows of a prompt have in common is computed once.

    Attributes:
        prefixes: layout of the prompts without their last characters.
        rows: layout of the completions without their last tokens.
        node: the node that predicts each token of each completion; 0 past the end.
        tokens: the completions' tokens, end marks included.
    """

    prefixes: Layout
    rows: Layout
    node: Int[Tensor, "rows tokens"]
    tokens: Int[Tensor, "rows tokens"]

    @classmethod
    def lay_out(
        cls,
        prompts: Encoded,
        owner: Int[np.ndarray, " rows"],
        tokens: Int[np.ndarray, "rows tokens"],
        lengths: Int[np.ndarray, " rows"],
    ) -> Continuations:
        """Lays out completions.

        Args:
            prompts: of two tokens at least; those that own no row are left out.
            owner: the prompt of each row.
            tokens: the completions, end marks included.
            lengths: tokens per completion, at least 1.
        """
        in_use, owner = np.unique(owner, return_inverse=True)
        starts = prompts.lengths[in_use] - 1
        openings = prompts.tokens[in_use, starts]
        prefix_tokens = prompts.tokens[in_use, : int(starts.max())]
        prefixes = pack(np.zeros_like(in_use), prefix_tokens, starts)
        row_tokens = np.concatenate((openings[owner, None], tokens[:, :-1]), axis=1)
        rows = pack(owner, row_tokens, lengths)
        return cls(
            prefixes=lay_out(prefixes, prefix_tokens),
            rows=lay_out(rows, row_tokens, Prefixes(prefixes, owner, starts[owner])),
            node=torch.from_numpy(rows.node),
            tokens=torch.from_numpy(tokens),
        )

    def log_probs(
        self, network: Network, temperature: float, *, entropies: bool = False
    ) -> tuple[Float[Tensor, "rows tokens"], Float[Tensor, "rows tokens"] | None]:
        """log π of each token and, where asked for, the entropy of its distribution.

        What stands past a completion's end means nothing.
        """
        logits, _ = extend(network, self.rows, encode_prefix(network, self.prefixes))
        log_p = F.log_softmax(logits / temperature, dim=-1)
        place = (self.node * log_p.shape[1] + self.tokens).view(-1)
        chosen = log_p.view(-1).index_select(0, place).view(self.node.shape)
        if not entropies:
            return chosen, None
        entropy = -(log_p.exp() * log_p).sum(dim=-1)
        return chosen, entropy.index_select(0, self.node.view(-1)).view(self.node.shape)

    def hidden(self, network: Network) -> Float[Tensor, "rows tokens width"]:
        """The normalised state that predicts each token, without the last norm's scale.

        What stands past a completion's end means nothing.
        """
        states, _ = last_hidden(network, self.rows, encode_prefix(network, self.prefixes))
        return states.index_select(0, self.node.view(-1)).view(*self.node.shape, -1)
