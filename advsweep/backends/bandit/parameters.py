"""The trained parameters of a bandit: how they make logits, and how they are moved."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.randomness import Stream, numpy_generator
from advsweep.config.settings import AdamW, Optimizer, Sgd

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from advsweep.backends.bandit.model_config import Table


class Logits:
    """The logits of every behaviour, from what is trained: themselves, or a map that prompts share.

    Attributes:
        base: the base policies', at temperature 1.
        is_shared: whether there is such a map, whose product is added to the base policy's.
    """

    def __init__(self, table: Table, base: Float[Tensor, "runs prompts behaviours"]) -> None:
        self.base = base
        self.is_shared = table.rank > 0
        self._rank = table.rank
        prompts = base.shape[1]
        self._features = _features(table, prompts) if self.is_shared else torch.empty(0)

    def __getitem__(self, runs: slice) -> Logits:
        """Those of some of the runs."""
        part = copy.copy(self)
        part.base = self.base[runs]
        return part

    def origin(self) -> Float[Tensor, "runs rows behaviours"]:
        """The parameters before training, to which weight decay draws."""
        if not self.is_shared:
            return self.base.clone()
        runs, _, behaviours = self.base.shape
        return torch.zeros(runs, self._rank, behaviours)

    def of(
        self, parameters: Float[Tensor, "runs rows behaviours"]
    ) -> Float[Tensor, "runs prompts behaviours"]:
        """The logits that parameters make."""
        if not self.is_shared:
            return parameters
        # Products of one run each: a product of all rounds otherwise than that of one.
        return self.base + torch.stack([self._features @ own for own in parameters])

    def response(
        self, gradient: Float[Tensor, "runs prompts behaviours"]
    ) -> Float[Tensor, "runs prompts behaviours"]:
        """How logits move when the parameters make a step of 1 along the pulled-back gradient."""
        if not self.is_shared:
            return gradient
        features = self._features.to(gradient.dtype)
        return torch.stack([features @ (features.T @ own) for own in gradient])

    def pull_back(
        self, gradient: Float[Tensor, "runs prompts behaviours"]
    ) -> Float[Tensor, "runs rows behaviours"]:
        """The gradient of the parameters, from that of the logits."""
        if not self.is_shared:
            return gradient
        return torch.stack([self._features.T @ own for own in gradient])


def _features(table: Table, prompts: int) -> Float[Tensor, "prompts rank"]:
    """Unit vectors: a part that all share, and one of a random direction."""
    rng = numpy_generator(table.seed, Stream.WEIGHTS)
    own = rng.standard_normal((prompts, table.rank - 1))
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    shared = np.full((prompts, 1), math.sqrt(table.overlap))
    features = np.concatenate([shared, math.sqrt(1 - table.overlap) * own], axis=1)
    return torch.from_numpy(features).float()


State = dict[str, Tensor]
"""What an optimizer remembers of earlier gradients of each run, by name."""


def fresh_state(optimizer: Optimizer, parameters: Float[Tensor, "runs rows behaviours"]) -> State:
    """The memory before the first update."""
    if isinstance(optimizer, AdamW):
        updates = torch.zeros(len(parameters), 1, 1)
        return {
            "mean": torch.zeros_like(parameters),
            "square": torch.zeros_like(parameters),
            "updates": updates,
        }
    assert isinstance(optimizer, Sgd)
    return {"velocity": torch.zeros_like(parameters)} if optimizer.momentum else {}


def move(
    optimizer: Optimizer,
    parameters: Float[Tensor, "runs rows behaviours"],
    gradient: Float[Tensor, "runs rows behaviours"],
    state: State,
    lr: Float[Tensor, "runs 1 1"],
    origin: Float[Tensor, "runs rows behaviours"],
    active: Bool[Tensor, " runs"],
) -> None:
    """One step against the gradient, in place, as torch's optimizers make it.

    torch's own take a second to import, longer than most trainings of a bandit.

    Args:
        origin: what weight decay draws to.
        active: the runs that make the step; all else of the others stays as it is.
    """
    if isinstance(optimizer, AdamW):
        moved, memory = _adamw(optimizer, parameters, gradient, state, lr, origin)
    else:
        assert isinstance(optimizer, Sgd)
        memory = {}
        if optimizer.momentum:
            gradient = optimizer.momentum * state["velocity"] + gradient
            memory["velocity"] = gradient
        moved = parameters - lr * gradient
    for old, new in ((parameters, moved), *((state[name], memory[name]) for name in memory)):
        old.copy_(new if active.all() else torch.where(active[:, None, None], new, old))


def _adamw(
    optimizer: AdamW,
    parameters: Tensor,
    gradient: Tensor,
    state: State,
    lr: Tensor,
    origin: Tensor,
) -> tuple[Tensor, State]:
    beta1, beta2 = optimizer.beta1, optimizer.beta2
    updates = state["updates"] + 1
    mean = beta1 * state["mean"] + (1 - beta1) * gradient
    square = beta2 * state["square"] + (1 - beta2) * gradient**2
    size = (square / (1 - beta2**updates)).sqrt() + optimizer.eps
    decayed = parameters
    if optimizer.weight_decay > 0:
        decayed = parameters - lr * optimizer.weight_decay * (parameters - origin)
    step = lr * (mean / (1 - beta1**updates)) / size
    return decayed - step, {"mean": mean, "square": square, "updates": updates}
