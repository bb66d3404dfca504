"""Losses that weigh log-probabilities: cross-entropy with a weight without gradient."""

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
    """Cross-entropy: the token loss is -l A, without ratio and clip.

    Its gradient equals that of `clipped` as long as the weights are those that sampled. Older
    rollouts (later minibatches, further inner epochs) count as if they were new, and for A < 0
    the loss of a fixed sample has no lower bound. Aggregation, KL penalty and entropy bonus are
    those of `Tokenwise`; the default aggregation is the mean over all tokens.

    Source: AAPO (arXiv:2505.14264) Eq. 3-4, which cites GPG (Chu et al. 2025,
    arXiv:2504.02546).

    Departures: tokens are counted over the minibatch, as in the authors' code; the equations
    count them per prompt.
    """

    name: ClassVar[str] = "cross_entropy"

    aggregation: Aggregation = option("token_mean", help="how token losses become one number")

    def _token_losses(
        self, inputs: LossInputs, metrics: dict[str, Tensor]
    ) -> Float[Tensor, "*runs rollouts tokens"]:
        return -inputs.log_probs * inputs.token_advantages
