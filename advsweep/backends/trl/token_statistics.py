"""What the sampling distribution says of each rollout, taken down while it is generated."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

if TYPE_CHECKING:
    from jaxtyping import Float, Int


@dataclass(frozen=True)
class Signals:
    """Sums over the generated tokens of each rollout, the end mark included.

    Attributes:
        lengths: generated tokens.
        surprisal: of -log π of the sampled tokens, in nats.
        entropy: of the exact entropies of the next-token distributions, in nats.
        certainty: of KL(uniform ‖ π) of the next-token distributions, in nats.
    """

    lengths: Float[Tensor, " rows"]
    surprisal: Float[Tensor, " rows"]
    entropy: Float[Tensor, " rows"]
    certainty: Float[Tensor, " rows"]

    def stacked(self) -> Float[Tensor, "rows 4"]:
        """One row per rollout; `unstacked` takes it apart again."""
        return torch.stack((self.lengths, self.surprisal, self.entropy, self.certainty), dim=1)

    @classmethod
    def unstacked(cls, rows: Float[Tensor, "rows 4"]) -> Signals:
        return cls(*rows.unbind(dim=1))


class SignalRecorder(LogitsProcessor):  # type: ignore[misc]
    """Sees the scores of every step of one `generate`, which it leaves as they are.

    It is called before the temperature is applied and top-p and top-k cut the distribution.

    Args:
        temperature: what the scores are divided by.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._log_p: Float[Tensor, "rows vocabulary"] | None = None
        self._surprisal: list[Float[Tensor, " rows"]] = []
        self._entropy: list[Float[Tensor, " rows"]] = []
        self._certainty: list[Float[Tensor, " rows"]] = []

    def __call__(
        self, input_ids: Int[Tensor, "rows tokens"], scores: Float[Tensor, "rows vocabulary"]
    ) -> Float[Tensor, "rows vocabulary"]:
        if self._log_p is not None:
            self._see(input_ids[:, -1])
        self._log_p = log_p = torch.log_softmax(scores.float() / self._temperature, dim=-1)
        self._entropy.append(torch.special.entr(log_p.exp()).sum(dim=-1))
        self._certainty.append(-log_p.mean(dim=-1) - math.log(log_p.shape[-1]))
        return scores

    def signals(self, completions: Sequence[Sequence[int]]) -> Signals:
        """What was seen of each completion.

        Args:
            completions: tokens of each row up to its end mark.
        """
        assert self._log_p is not None
        device = self._log_p.device
        lengths = torch.tensor([len(tokens) for tokens in completions], device=device)
        # The last token was never given back to the model. Rows that had ended before hold
        # padding there, which is not counted.
        if len(self._surprisal) < len(self._entropy):
            self._see(torch.tensor([tokens[-1] for tokens in completions], device=device))
        steps = torch.arange(len(self._entropy), device=device)
        mask = steps < lengths[:, None]

        def summed(per_step: list[Float[Tensor, " rows"]]) -> Float[Tensor, " rows"]:
            return torch.stack(per_step, dim=1).where(mask, 0.0).sum(dim=1)

        return Signals(
            lengths=lengths.float(),
            surprisal=summed(self._surprisal),
            entropy=summed(self._entropy),
            certainty=summed(self._certainty),
        )

    def _see(self, tokens: Int[Tensor, " rows"]) -> None:
        assert self._log_p is not None
        self._surprisal.append(-self._log_p.gather(1, tokens[:, None])[:, 0])


@contextlib.contextmanager
def recording(model: Any, recorder: SignalRecorder) -> Iterator[None]:
    """Has the next `model.generate` call the recorder."""
    model.generate = functools.partial(
        model.generate, logits_processor=LogitsProcessorList([recorder])
    )
    try:
        yield
    finally:
        del model.generate
