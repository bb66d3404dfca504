"""The policy update of a walker's table: minibatches, the objective's loss, the optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.bandit.bandits import PARAMETERS, State
from advsweep.backends.bandit.update import next_state
from advsweep.backends.bandit.walk_policy import WalkPolicy, Ways, entropies
from advsweep.backends.bandit.walk_sampling import Rollouts, at_ways
from advsweep.backends.step_changes import update_means
from advsweep.errors import TrainingError
from advsweep.names import GRADIENT_NORM, LEARNING_RATE
from advsweep.objectives.base import LossInputs

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from advsweep.backends.bandit.options import BanditOptions
    from advsweep.backends.bandit.walk_policy import Logits
    from advsweep.backends.base import Run


@dataclass(frozen=True)
class WalkExperience:
    """The data that one step trains on, group by group.

    Attributes:
        advantages: advantage of every rollout, or of every turn of the rollouts.
        keep: whether a rollout takes part in the update.
        counted: whether it counts in means over rollouts, as truncated ones that are masked do.
    """

    rollouts: Rollouts
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows turns"]
    keep: Bool[Tensor, " rows"]
    counted: Bool[Tensor, " rows"]

    def __getitem__(self, rows: Tensor) -> WalkExperience:
        return WalkExperience(
            rollouts=self.rollouts[rows],
            advantages=self.advantages[rows],
            keep=self.keep[rows],
            counted=self.counted[rows],
        )


class WalkUpdate:
    """Trains a table in place.

    Args:
        state: the table `[1, rows, ways]` and the optimizer's moments, by name.
    """

    def __init__(self, run: Run, options: BanditOptions, ways: Ways, state: State) -> None:
        self._run = run
        self._options = options
        self._ways = ways
        self._state = state

    def step(self, step: int, experience: WalkExperience, anchor: Logits) -> dict[str, float]:
        """Train on every minibatch `inner_epochs` times; return means over minibatches.

        Skip minibatches in which no rollout takes part.

        Args:
            anchor: the table that a KL penalty refers to.

        Raises:
            TrainingError: a loss or a gradient is not finite. The table is that before the
                minibatch.
        """
        run = self._run
        size = run.group_size
        rate = run.optimizer.lr * run.learning_rate_scale
        rate *= run.optimizer.share(step, run.total_steps)
        # Minibatches are of whole groups, divided as evenly as possible.
        rows = np.arange(len(experience.keep)).reshape(-1, size)
        parts = np.array_split(rows, self._options.minibatches)
        minibatches = [experience[torch.from_numpy(part.flatten())] for part in parts if len(part)]
        trained = [minibatch for minibatch in minibatches if minibatch.keep.any()]
        updates = [
            self._train_on(step, minibatch, anchor, rate)
            for minibatch in trained * self._options.inner_epochs
        ]
        return {**update_means(updates), LEARNING_RATE: rate}

    def _train_on(
        self, step: int, minibatch: WalkExperience, anchor: Logits, rate: float
    ) -> dict[str, float]:
        """Make one step of the optimizer on a minibatch."""
        optimizer = self._run.optimizer
        logits = self._state[PARAMETERS][0].detach().clone().requires_grad_()
        output = self._run.objective.loss(self._inputs(logits, minibatch, anchor))
        _check(step, "loss", output.loss.item())
        (gradient,) = torch.autograd.grad(output.loss, logits, materialize_grads=True)
        norm = gradient.double().norm().item()
        _check(step, "gradient norm", norm)
        bound = optimizer.max_grad_norm
        if 0 < bound < norm:
            gradient = gradient * (bound / norm)
        moved = next_state(
            optimizer,
            self._state,
            gradient[None],
            torch.full((1, 1, 1), rate),
            self._ways.base[None],
        )
        for name, values in moved.items():
            self._state[name].copy_(values)
        metrics = {name: value.item() for name, value in output.metrics.items()}
        return {**metrics, GRADIENT_NORM: norm}

    def _inputs(self, logits: Logits, minibatch: WalkExperience, anchor: Logits) -> LossInputs:
        """Return the loss's inputs: the rollouts of a minibatch that take part."""
        run = self._run
        temperature = run.generation.temperature
        used = minibatch.keep.nonzero()[:, 0]
        rollouts = minibatch.rollouts[used]
        positions = rollouts.positions
        log = WalkPolicy(self._ways, logits, temperature).log(positions)
        references = None
        if run.objective.needs_reference:
            of_anchor = WalkPolicy(self._ways, anchor, temperature).log(positions)
            references = at_ways(of_anchor, rollouts.ways)
        return LossInputs(
            log_probs=at_ways(log, rollouts.ways),
            old_log_probs=rollouts.log_probs,
            completion_mask=rollouts.mask,
            advantages=minibatch.advantages[used],
            rollouts=int(minibatch.counted.sum()),
            tokens=int(rollouts.lengths.sum()),
            reference_log_probs=references,
            entropies=entropies(log) if run.objective.needs_entropy else None,
        )


def _check(step: int, what: str, value: float) -> None:
    if not math.isfinite(value):
        raise TrainingError(
            f"step {step}: expected a finite {what}, got {value}; the table is unchanged; try a "
            f"smaller optimizer.lr"
        )
