"""The trained parameters of a bandit: how they make logits, and how they are moved."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.randomness import Stream, numpy_generator
from advsweep.config.settings import AdamW, Optimizer, Sgd

if TYPE_CHECKING:
    from jaxtyping import Float

    from advsweep.backends.bandit.model_config import Table
    from advsweep.tasks.bandit import Arms


class Logits:
    """The logits of every behaviour: those of the base policy and trained offsets.

    Attributes:
        base: the base policy's, at temperature 1.
        shape: of the parameters, [prompts, behaviours], or [rank, behaviours] of a shared map.
    """

    def __init__(self, table: Table, arms: Arms) -> None:
        self.base = torch.from_numpy(arms.logits).float()
        prompts, behaviours = self.base.shape
        self._features = None if table.rank == 0 else _features(table, prompts)
        self.shape = (table.rank or prompts, behaviours)

    def of(
        self, parameters: Float[Tensor, "*runs rows behaviours"]
    ) -> Float[Tensor, "*runs prompts behaviours"]:
        offsets = parameters if self._features is None else self._features @ parameters
        return self.base + offsets

    def pull_back(
        self, gradient: Float[Tensor, "*runs prompts behaviours"]
    ) -> Float[Tensor, "*runs rows behaviours"]:
        """The gradient of the parameters, from that of the logits."""
        return gradient if self._features is None else self._features.T @ gradient


def _features(table: Table, prompts: int) -> Float[Tensor, "prompts rank"]:
    """Unit vectors: a part that all share, and one of a random direction."""
    rng = numpy_generator(table.seed, Stream.WEIGHTS)
    own = rng.standard_normal((prompts, table.rank - 1))
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    shared = np.full((prompts, 1), math.sqrt(table.overlap))
    features = np.concatenate([shared, math.sqrt(1 - table.overlap) * own], axis=1)
    return torch.from_numpy(features).float()


State = dict[str, Tensor]
"""What an optimizer remembers of earlier gradients, by name."""


def fresh_state(optimizer: Optimizer, shape: tuple[int, ...]) -> State:
    """The memory before the first update."""
    if isinstance(optimizer, AdamW):
        zeros = {name: torch.zeros(shape) for name in ("mean", "square")}
        return {**zeros, "updates": torch.zeros(())}
    assert isinstance(optimizer, Sgd)
    return {"velocity": torch.zeros(shape)} if optimizer.momentum else {}


def moved(
    optimizer: Optimizer,
    parameters: Float[Tensor, "*runs rows behaviours"],
    gradient: Float[Tensor, "*runs rows behaviours"],
    state: State,
    lr: float,
) -> tuple[Tensor, State]:
    """One step against the gradient, as torch's optimizers make it.

    torch's own take a second to import, longer than most trainings of a bandit.

    Returns:
        The parameters and the memory after it; what was given is left as it is.
    """
    if isinstance(optimizer, AdamW):
        return _adamw(optimizer, parameters, gradient, state, lr)
    assert isinstance(optimizer, Sgd)
    if not optimizer.momentum:
        return parameters - lr * gradient, state
    velocity = optimizer.momentum * state["velocity"] + gradient
    return parameters - lr * velocity, {"velocity": velocity}


def _adamw(
    optimizer: AdamW, parameters: Tensor, gradient: Tensor, state: State, lr: float
) -> tuple[Tensor, State]:
    beta1, beta2 = optimizer.beta1, optimizer.beta2
    updates = state["updates"] + 1
    mean = beta1 * state["mean"] + (1 - beta1) * gradient
    square = beta2 * state["square"] + (1 - beta2) * gradient**2
    size = (square / (1 - beta2**updates)).sqrt() + optimizer.eps
    decayed = parameters * (1 - lr * optimizer.weight_decay)
    step = lr * (mean / (1 - beta1**updates)) / size
    return decayed - step, {"mean": mean, "square": square, "updates": updates}
