"""An objective: CISPO, which clips importance weights and no gradients."""

from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import option
from advsweep.objectives.tokenwise import Aggregation, Tokenwise, total


@dataclass(kw_only=True)
class Cispo(Tokenwise):
    """The token loss is -sg(min(w, 1 + ε)) A l, with w = exp(l - l₀) and sg stopping the gradient.

    Every token keeps its gradient, where the clipped surrogate drops those beyond its bounds.
    Aggregation, KL penalty and entropy bonus are those of the base class.

    Source: MiniMax-M1 (arXiv:2506.13585), Eq. 4-5, without their lower bound, as there.
    """

    name: ClassVar[str] = "cispo"

    aggregation: Aggregation = option("token_mean", help="how token losses become one number")
    clip_high: float = option(2.0, ge=0, help="ε: weights above 1 + this are clipped")

    def _token_losses(self, inputs, metrics):
        mask = inputs.completion_mask
        weights = (inputs.log_probs.detach() - inputs.old_log_probs).where(mask, 0.0).exp()
        clipped = weights > 1 + self.clip_high
        metrics["loss/clip_fraction"] = total(clipped & mask) / inputs.tokens
        return -weights.clamp(max=1 + self.clip_high) * inputs.token_advantages * inputs.log_probs
