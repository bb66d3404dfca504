"""The policy update: minibatches, the objective's loss, gradient clipping, AdamW."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from advsweep.backends.tiny.continuations import Continuations
from advsweep.backends.tiny.network import fuse
from advsweep.config.settings import AdamW
from advsweep.errors import TrainingError
from advsweep.objectives.base import LossInputs

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from advsweep.backends.base import Run
    from advsweep.backends.tiny.backend import TinyBackend
    from advsweep.backends.tiny.model_config import TinyModel
    from advsweep.backends.tiny.sampling import Rollouts
    from advsweep.backends.tiny.vocabulary import Encoded
    from advsweep.backends.tiny.weights import Weights
    from advsweep.objectives.base import LossOutput


@dataclass(frozen=True)
class Experience:
    """What one step trains on.

    Attributes:
        prompts: the groups' prompts.
        rollouts: `group_size` rows per prompt.
        advantages: of every rollout.
        keep: the rollouts that take part in the update.
    """

    prompts: Encoded
    rollouts: Rollouts
    group_size: int
    advantages: Float[Tensor, " rows"]
    keep: Bool[Tensor, " rows"]


class PolicyUpdate:
    """Trains weights in place.

    Args:
        weights: what is trained.
        base: what a KL penalty refers to.
    """

    def __init__(
        self, run: Run, backend: TinyBackend, model: TinyModel, weights: Weights, base: Weights
    ) -> None:
        self._weights = weights
        self._model = model
        self._backend = backend
        self._objective = run.objective
        self._temperature = run.generation.temperature
        settings = run.optimizer
        assert isinstance(settings, AdamW)
        self._settings = settings
        self._steps = run.steps
        self._lr = settings.lr * run.learning_rate_scale
        self._reference = fuse(base, model) if run.objective.needs_reference else None
        self._skip = backend.skip_zero_advantages and run.objective.skips_exactly
        for weight in weights.values():
            weight.requires_grad_()
            weight.grad = torch.zeros_like(weight)
        self._optimizer = torch.optim.AdamW(
            weights.values(),
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def step(self, step: int, experience: Experience) -> dict[str, float]:
        """Trains on every minibatch `inner_epochs` times; returns means over minibatches.

        A minibatch in which no rollout takes part is passed over.

        Raises:
            TrainingError: a loss or a gradient is not finite. The weights are those before
                the minibatch.
        """
        lr = self._lr * self._settings.share(step, self._steps)
        self._optimizer.param_groups[0]["lr"] = lr
        sums: dict[str, float] = defaultdict(float)
        updates = 0
        for rows in self._minibatches(experience) * self._backend.inner_epochs:
            if experience.keep[rows].any():
                updates += 1
                for name, value in self._train_on(step, experience, rows).items():
                    sums[name] += value
        return {**{name: value / updates for name, value in sums.items()}, "optim/lr": lr}

    @torch.no_grad()
    def entropy_change(self, experience: Experience) -> float:
        """How much the mean token entropy has grown since the rollouts were sampled, in nats.

        At the tokens of the rollouts that take part in the update: mean over each of them, then
        over rollouts, as in `entropy/token`.
        """
        rows = experience.keep.nonzero()[:, 0]
        rollouts = experience.rollouts[rows]
        continuations = self._continuations(experience, rows)
        _, entropies = continuations.log_probs(
            fuse(self._weights, self._model), self._temperature, entropies=True
        )
        assert entropies is not None
        change = torch.where(rollouts.mask, entropies - rollouts.entropies, 0.0).sum(dim=1)
        return (change / rollouts.lengths).double().mean().item()

    def state(self) -> Weights:
        """The optimizer's moments and step counts, as `WEIGHT/MOMENT`."""
        return {
            f"{name}/{moment}": value
            for name, weight in self._weights.items()
            for moment, value in self._optimizer.state[weight].items()
        }

    def restore(self, state: Weights) -> None:
        """Takes up what `state` gave."""
        for key, value in state.items():
            name, moment = key.rsplit("/", 1)
            self._optimizer.state[self._weights[name]][moment] = value

    def _minibatches(self, experience: Experience) -> list[slice]:
        """The rows of each minibatch: whole groups, as even as can be."""
        groups = np.arange(len(experience.prompts.lengths))
        size = experience.group_size
        parts = np.array_split(groups, self._backend.minibatches)
        return [slice(p[0] * size, (p[-1] + 1) * size) for p in parts if len(p)]

    def _train_on(self, step: int, experience: Experience, rows: slice) -> dict[str, float]:
        """One optimizer step on some rows."""
        output = self._loss(experience, rows)
        _check(step, "loss", output.loss.item())
        self._optimizer.zero_grad(set_to_none=False)
        if output.loss.requires_grad:
            torch.autograd.backward(output.loss)
        norm = self._clip_gradient()
        _check(step, "gradient norm", norm)
        self._optimizer.step()
        metrics = {name: value.item() for name, value in output.metrics.items()}
        return {**metrics, "optim/grad_norm": norm}

    def _loss(self, experience: Experience, rows: slice) -> LossOutput:
        """The objective's loss; no gradient flows where every rollout is skipped."""
        objective = self._objective
        keep, advantages = experience.keep[rows], experience.advantages[rows]
        used = keep & (advantages != 0) if self._skip else keep
        index = rows.start + used.nonzero()[:, 0]
        rollouts = experience.rollouts[index]
        log_probs, reference, entropies = rollouts.log_probs, None, None
        if len(index):
            continuations = self._continuations(experience, index)
            log_probs, entropies = continuations.log_probs(
                fuse(self._weights, self._model),
                self._temperature,
                entropies=objective.needs_entropy,
            )
            if self._reference is not None:
                with torch.no_grad():
                    reference, _ = continuations.log_probs(self._reference, self._temperature)
        return objective.loss(
            LossInputs(
                log_probs=log_probs,
                old_log_probs=rollouts.log_probs,
                completion_mask=rollouts.mask,
                advantages=advantages[used],
                rollouts=int(keep.sum()),
                tokens=int(experience.rollouts.lengths[rows][keep].sum()),
                reference_log_probs=reference,
                entropies=entropies,
            )
        )

    @staticmethod
    def _continuations(experience: Experience, rows: Int[Tensor, " some"]) -> Continuations:
        rollouts = experience.rollouts[rows]
        return Continuations.lay_out(
            experience.prompts,
            rows.numpy() // experience.group_size,
            rollouts.tokens.numpy(),
            rollouts.lengths.numpy(),
        )

    def _clip_gradient(self) -> float:
        """Clips the gradient to the largest norm allowed; returns its norm before."""
        weights, largest = list(self._weights.values()), self._settings.max_grad_norm
        if largest == 0:
            gradients = [w.grad for w in weights if w.grad is not None]
            return torch.nn.utils.get_total_norm(gradients).item()
        return torch.nn.utils.clip_grad_norm_(weights, largest).item()


def _check(step: int, what: str, value: float) -> None:
    if not math.isfinite(value):
        raise TrainingError(
            f"step {step}: expected a finite {what}, got {value}; the weights are left as they "
            f"were; a smaller optimizer.lr may help"
        )
