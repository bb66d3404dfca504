"""An objective: RAFT++, which trains on what is better than the baseline alone."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from advsweep.components import option
from advsweep.objectives.tokenwise import Tokenwise, exp, share


@dataclass(kw_only=True)
class Raft(Tokenwise):
    """RAFT++: successes train, up to a bound on the importance ratio w = exp(l - l₀).

    Aggregation, KL penalty and entropy bonus are those of the base class.
    """

    name: ClassVar[str] = "raft"
    formula: ClassVar[str] = "loss = -min(w, 1 + ε) max(A, 0)"
    source: ClassVar[str] = (
        "RAFT++ (arXiv:2504.11343), whose A is 1 for right answers; any estimator gives it here."
    )

    clip_high: float = option(0.2, ge=0, help="ε: ratios above 1 + this are clipped")

    def _token_losses(self, inputs, metrics):
        ratio = exp(self._log_ratios(inputs))
        gains = inputs.token_advantages.clamp(min=0)
        clipped = (ratio > 1 + self.clip_high) & (gains > 0)
        metrics["loss/clip_fraction"] = share(clipped, inputs)
        return -torch.clamp(ratio, max=1 + self.clip_high) * gains
