"""Weighted cross-entropy: the plain policy gradient, as GPG and AAPO use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from advsweep.components import option
from advsweep.objectives.base import LossInputs
from advsweep.objectives.tokenwise import Aggregation, Tokenwise

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(kw_only=True)
class CrossEntropy(Tokenwise):
    """The token loss is -l A: no ratio and no clip, so nothing reports a clipped share.

    Its gradient is that of `clipped` while the weights are those that sampled. Older
    rollouts (later minibatches, further inner epochs) count as if they were new, and with
    A < 0 the loss of a fixed sample has no lower bound. Aggregation, KL penalty and entropy
    bonus are those of `Tokenwise`; the mean over all tokens is the default.

    Source: AAPO (arXiv:2505.14264) Eq. 3-4, which has it from GPG (Chu et al. 2025,
    arXiv:2504.02546).

    Departures: the tokens are counted over the minibatch, as in the authors' code, where the
    equations count them prompt by prompt.
    """

    name: ClassVar[str] = "cross_entropy"

    aggregation: Aggregation = option(
        Aggregation.TOKEN_MEAN, help="how token losses become one number"
    )

    def _token_losses(
        self, inputs: LossInputs, metrics: dict[str, Tensor]
    ) -> Float[Tensor, "*runs rollouts tokens"]:
        return -inputs.log_probs * inputs.advantages[..., None]
