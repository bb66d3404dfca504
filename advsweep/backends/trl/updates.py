"""What the updates of one step have measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float


class StepUpdates:
    """Sums up what the objective says, over the passes of an update and the updates of a step.

    Attributes:
        norm: of the present update's gradient, before it was clipped.
    """

    def __init__(self) -> None:
        self.norm = 0.0
        self._sums: dict[str, float] = defaultdict(float)
        self._updates = 0
        self._lr = 0.0
        self.begin()

    def begin(self) -> None:
        """The next pass is the first of an update."""
        self._passes: list[Tensor] = []
        self._names: list[str] = []

    def add(self, metrics: Mapping[str, Tensor], loss: Tensor) -> None:
        """Takes up a pass."""
        self._names = list(metrics)
        self._passes.append(torch.stack([loss, *metrics.values()]).detach())

    def means(self) -> tuple[list[str], Float[Tensor, " values"]]:
        """The names of the metrics, and the means of the loss and of each of them."""
        return self._names, torch.stack(self._passes).mean(dim=0)

    def end(self, metrics: Mapping[str, float], lr: float) -> None:
        """Takes up an update that is made."""
        for name, value in {**metrics, "optim/grad_norm": self.norm}.items():
            self._sums[name] += value
        self._lr = lr
        self._updates += 1
        self.begin()

    @property
    def metrics(self) -> dict[str, float]:
        """Means over the updates that were made; none if there was no update."""
        if self._updates == 0:
            return {}
        means = {name: value / self._updates for name, value in self._sums.items()}
        return means | {"optim/lr": self._lr}
