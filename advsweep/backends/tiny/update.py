"""The policy update of a step: minibatches, the objective's loss, gradient clipping, AdamW."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from advsweep.backends.step_changes import evenly_spaced, kl_estimate, update_means
from advsweep.backends.tiny.network import Continuations
from advsweep.config.settings import AdamW
from advsweep.errors import TrainingError
from advsweep.estimators.batch import nonzero_rows
from advsweep.names import GRADIENT_NORM, LEARNING_RATE
from advsweep.objectives.base import LossInputs

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from advsweep.backends.base import Run
    from advsweep.backends.models import TinyModel
    from advsweep.backends.tiny.options import TinyOptions
    from advsweep.backends.tiny.sampling import Rollouts
    from advsweep.backends.tiny.tokens import Encoded
    from advsweep.objectives.base import LossOutput


# Rollouts of a step that its KL is estimated from.
_KL_ROLLOUTS = 16


@dataclass(frozen=True)
class Experience:
    """The data that one step trains on.

    Attributes:
        prompts: the prompt of each group.
        rollouts: `group_size` rows per prompt.
        advantages: advantage of every rollout, or of every token of the rollouts.
        keep: whether a rollout takes part in the update.
        counted: whether it counts in means over rollouts, as truncated ones that are masked do.
    """

    prompts: Encoded
    rollouts: Rollouts
    group_size: int
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows tokens"]
    keep: Bool[Tensor, " rows"]
    counted: Bool[Tensor, " rows"]


class PolicyUpdate:
    """Trains weights in place.

    Args:
        weights: the weights to train.
        base: reference weights of a KL penalty.
    """

    def __init__(
        self,
        run: Run,
        options: TinyOptions,
        model: TinyModel,
        weights: Float[Tensor, " weights"],
        base: Float[Tensor, " weights"],
    ) -> None:
        self._weights = weights.requires_grad_()
        self._model = model
        self._options = options
        self._objective = run.objective
        self._temperature = run.generation.temperature
        settings = run.optimizer
        assert isinstance(settings, AdamW)
        self._settings = settings
        self._steps = run.total_steps
        self._lr = settings.lr * run.learning_rate_scale
        self._reference = base if run.objective.needs_reference else None
        self._skip = options.skip_zero_advantages and run.objective.skips_exactly
        self._optimizer = torch.optim.AdamW(
            [weights],
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def step(self, step: int, experience: Experience) -> dict[str, float]:
        """Train on every minibatch `inner_epochs` times; return means over minibatches.

        `loss/variance` is the variance of the policy loss over them.

        Skip minibatches in which no rollout takes part.

        Raises:
            TrainingError: a loss or a gradient is not finite. The weights are those before
                the minibatch.
        """
        lr = self._lr * self._settings.share(step, self._steps)
        self._optimizer.param_groups[0]["lr"] = lr
        # Minibatches are of whole groups, divided as evenly as possible.
        groups = np.arange(len(experience.prompts.lengths))
        size = experience.group_size
        parts = np.array_split(groups, self._options.minibatches)
        minibatches = [slice(p[0] * size, (p[-1] + 1) * size) for p in parts if len(p)]
        old = self._old_log_probs(experience)
        prepared = [
            self._prepare(experience, rows, old)
            for rows in minibatches
            if experience.keep[rows].any()
        ]
        updates = [
            self._train_on(step, continuations, inputs)
            for continuations, inputs in prepared * self._options.inner_epochs
        ]
        return {**update_means(updates), LEARNING_RATE: lr}

    @torch.no_grad()
    def _old_log_probs(self, experience: Experience) -> Float[Tensor, "rows tokens"]:
        """Return log π of the sampled tokens, to which the loss's ratios are.

        It is that of the weights that sampled, or of the current ones if the objective asks for
        them.
        """
        old = experience.rollouts.log_probs
        if self._options.stale_steps == 0 or not self._objective.recomputes_old:
            return old
        rows = experience.keep.nonzero()[:, 0]
        current, _ = self._continuations(experience, rows).log_probs(
            self._weights, self._model, self._temperature
        )
        return old.index_copy(0, rows, current)

    @torch.no_grad()
    def kl_step(self, experience: Experience) -> float:
        """Return an estimate of KL(old ‖ new) per token since the rollouts were sampled, in nats.

        It is the k3 estimate over the tokens of up to 16 of the rollouts that take part in the
        update, spread evenly over them.
        """
        kept = experience.keep.nonzero()[:, 0]
        rows = kept[evenly_spaced(len(kept), _KL_ROLLOUTS)]
        rollouts = experience.rollouts[rows]
        log_probs, _ = self._continuations(experience, rows).log_probs(
            self._weights, self._model, self._temperature
        )
        kl, tokens = kl_estimate(rollouts.log_probs, log_probs, rollouts.mask).tolist()
        return float(kl / tokens)

    @torch.no_grad()
    def entropy_change(self, experience: Experience) -> float:
        """Return the growth of the mean token entropy since the rollouts were sampled, in nats.

        The mean is over the tokens of each rollout that takes part in the update, then over
        rollouts, as in `entropy/token`.
        """
        rows = experience.keep.nonzero()[:, 0]
        rollouts = experience.rollouts[rows]
        continuations = self._continuations(experience, rows)
        _, entropies = continuations.log_probs(
            self._weights, self._model, self._temperature, entropies=True
        )
        assert entropies is not None
        change = torch.where(rollouts.mask, entropies - rollouts.entropies, 0.0).sum(dim=1)
        return (change / rollouts.generated).double().mean().item()

    def renew_reference(self, weights: Float[Tensor, " weights"]) -> None:
        """Make weights the reference of the KL penalty."""
        self._reference = weights

    def reset_moments(self) -> None:
        """Let the optimizer start anew."""
        self._optimizer.state.clear()

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer's moments and its count of steps."""
        return dict(self._optimizer.state[self._weights])

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned."""
        self._optimizer.state[self._weights].update(state)

    def _prepare(
        self, experience: Experience, rows: slice, old: Float[Tensor, "rows tokens"]
    ) -> tuple[Continuations | None, LossInputs]:
        """Lay out a minibatch; its inputs lack what depends on the current weights.

        Without continuations, every rollout is skipped and the loss has no gradient.
        """
        keep = experience.keep[rows]
        advantages = experience.advantages[rows]
        used = keep & nonzero_rows(advantages) if self._skip else keep
        index = rows.start + used.nonzero()[:, 0]
        rollouts = experience.rollouts[index]
        continuations = self._continuations(experience, index) if len(index) else None
        reference = None
        if continuations is not None and self._reference is not None:
            reference, _ = continuations.log_probs(self._reference, self._model, self._temperature)
        has_sampler = self._options.stale_steps > 0 or self._objective.needs_sampler
        return continuations, LossInputs(
            log_probs=rollouts.log_probs,
            old_log_probs=old[index],
            completion_mask=rollouts.mask,
            advantages=advantages[used],
            rollouts=int(experience.counted[rows].sum()),
            tokens=int(experience.rollouts.generated[rows][keep].sum()),
            reference_log_probs=reference,
            sampler_log_probs=rollouts.log_probs if has_sampler else None,
        )

    def _train_on(
        self, step: int, continuations: Continuations | None, inputs: LossInputs
    ) -> dict[str, float]:
        """Make one optimizer step on a minibatch."""
        output = self._loss(continuations, inputs)
        _check(step, "loss", output.loss.item())
        self._weights.grad = None
        if output.loss.requires_grad:
            torch.autograd.backward(output.loss)
        else:
            # Every rollout is skipped; the optimizer goes on with its moments.
            self._weights.grad = torch.zeros_like(self._weights)
        largest = self._settings.max_grad_norm or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self._weights, largest).item()
        _check(step, "gradient norm", norm)
        self._optimizer.step()
        metrics = {name: value.item() for name, value in output.metrics.items()}
        return {**metrics, GRADIENT_NORM: norm}

    def _loss(self, continuations: Continuations | None, inputs: LossInputs) -> LossOutput:
        if continuations is not None:
            log_probs, entropies = continuations.log_probs(
                self._weights,
                self._model,
                self._temperature,
                entropies=self._objective.needs_entropy,
            )
            inputs = replace(inputs, log_probs=log_probs, entropies=entropies)
        return self._objective.loss(inputs)

    @staticmethod
    def _continuations(experience: Experience, rows: Int[Tensor, " some"]) -> Continuations:
        rollouts = experience.rollouts[rows]
        return Continuations.lay_out(
            experience.prompts,
            rows.numpy() // experience.group_size,
            rollouts.tokens.numpy(),
            rollouts.lengths.numpy(),
        )


def _check(step: int, what: str, value: float) -> None:
    if not math.isfinite(value):
        raise TrainingError(
            f"step {step}: expected a finite {what}, got {value}; the weights are "
            f"unchanged; try a smaller optimizer.lr"
        )
