"""How a transformers model samples rollouts; only the standard library is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import option
from advsweep.config.settings import Generation


@dataclass(kw_only=True)
class TransformersGeneration(Generation):
    """transformers' `generate`, in the process that trains and with the weights that it trains.

    Log-probabilities and entropies are those of the distribution at the sampling temperature
    before `top_p` and `top_k` cut it.
    """

    name: ClassVar[str] = "transformers"

    max_tokens: int | None = option(
        None, ge=1, help="tokens of a completion; null: as many as the task needs, or 512"
    )
    top_p: float = option(1.0, gt=0, le=1, help="share of the probability that is sampled from")
    top_k: int = option(0, ge=0, help="tokens that are sampled from; 0: all")
