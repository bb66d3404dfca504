"""The updates of one step; gradients of log π and of the entropy are in closed form."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.bandit.changes import Drift
from advsweep.backends.bandit.softmax import (
    IncrementalSoftmax,
    Policy,
    entropy_gradient,
    score_gradient,
    total,
)
from advsweep.backends.bandit.tables import Logits, State, move
from advsweep.backends.step_changes import loss_variance
from advsweep.errors import TrainingError
from advsweep.objectives.base import LossInputs

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.backends.base import Run


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """Settings of a training; the options of `BanditBackend` have the same names and meanings."""

    minibatches: int
    inner_epochs: int
    entropy_change: bool
    metrics_every: int
    exact_every: int
    exact_k: tuple[int, ...]


@dataclass(frozen=True)
class Experience:
    """The data that one step of several runs trains on, group by group.

    Attributes:
        rows: the prompt of each group; None if they are all prompts in order.
        actions: the sampled behaviours.
        log_probs: log π of the actions when they were sampled.
        advantages: advantage of each action.
        keep: whether a rollout takes part in the update.
    """

    rows: Int[Tensor, "runs groups"] | None
    actions: Int[Tensor, "runs groups rollouts"]
    log_probs: Float[Tensor, "runs groups rollouts"]
    advantages: Float[Tensor, "runs groups rollouts"]
    keep: Bool[Tensor, "runs groups rollouts"]

    def __getitem__(self, groups: slice) -> Experience:
        return Experience(
            rows=None if self.rows is None else self.rows[:, groups],
            actions=self.actions[:, groups],
            log_probs=self.log_probs[:, groups],
            advantages=self.advantages[:, groups],
            keep=self.keep[:, groups],
        )


class Updates:
    """Trains parameters of runs that differ in seed, estimator, task and learning rate alone.

    Args:
        parameters, state: changed in place.
        penalty: parameters of the policy that a KL penalty refers to; None for the base.

    Attributes:
        errors: errors by number of the run; such a run cannot continue.
        drift: what an incremental policy changed beside the sampled behaviours; None if `train`
            does not measure, or for nothing.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        options: StackOptions,
        logits: Logits,
        parameters: Float[Tensor, "runs rows behaviours"],
        state: State,
        step: int,
        *,
        penalty: Float[Tensor, "runs rows behaviours"] | None = None,
    ) -> None:
        self._run = runs[0]
        self._runs = runs
        self._options = options
        self._logits = logits
        self._parameters = parameters
        self._state = state
        self._step = step
        self._base = logits.base if penalty is None else logits.of(penalty)
        self._temperature = temperatures(runs)
        self._rates = learning_rates(runs, step)
        self._lr = torch.tensor(self._rates)[:, None, None]
        self.errors: dict[int, TrainingError] = {}
        self.drift: Drift | None = None
        self._measures = True

    def train(
        self, policy: Policy, experience: Experience, *, measure: bool = True
    ) -> list[dict[str, float]]:
        """Train on every minibatch `inner_epochs` times.

        Args:
            policy: the current policy.
            measure: whether to return metrics.

        Returns:
            Means over the minibatches with which a run made an update; empty without one.
        """
        options, self._measures = self._options, measure
        parts = np.array_split(np.arange(experience.actions.shape[1]), options.minibatches)
        slices = [slice(part[0], part[-1] + 1) for part in parts if len(part)]
        sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(len(self._runs)).double())
        losses: list[list[float]] = [[] for _ in self._runs]
        updates = torch.zeros(len(self._runs))
        current: Policy | None = policy
        for groups in slices * options.inner_epochs:
            minibatch = experience[groups] if len(slices) > 1 else experience
            active = minibatch.keep.flatten(1).any(dim=1)
            if not active.any():
                continue
            is_first = current is not None
            if current is None:
                current = self._current_policy(policy)
            updates += active
            # Runs without a rollout in this minibatch add 0.
            for name, values in self._train_on(
                current, minibatch, active, is_first=is_first
            ).items():
                sums[name] += values
                if name == "loss/policy" and len(slices) * options.inner_epochs > 1:
                    for own, value, made in zip(losses, values.tolist(), active, strict=True):
                        own += [value] * bool(made)
            current = None
        if not measure:
            return [{} for _ in self._runs]
        names, columns = list(sums), [(values / updates).tolist() for values in sums.values()]
        return [
            {**dict(zip(names, values, strict=True)), **loss_variance(own), "optim/lr": rate}
            if made
            else {}
            for made, rate, own, *values in zip(
                updates.tolist(), self._rates, losses, *columns, strict=True
            )
        ]

    def _current_policy(self, policy: Policy) -> Policy:
        """Return the policy after an update."""
        if isinstance(policy, IncrementalSoftmax):
            return policy
        return Policy.of(self._logits.of(self._parameters), self._temperature)

    def _train_on(
        self,
        policy: Policy,
        minibatch: Experience,
        active: Bool[Tensor, " runs"],
        *,
        is_first: bool,
    ) -> dict[str, Float[Tensor, " runs"]]:
        """Make one step of the optimizer, and return metrics."""
        rows = minibatch.rows
        drawn = policy if rows is None else policy.of_prompts(rows)
        metrics, of_log_probs, of_entropies = self._slopes(drawn, minibatch, is_first=is_first)
        active = active & self._is_finite("loss", metrics.pop("loss"), active)
        if isinstance(drawn, IncrementalSoftmax):
            norm = self._step_along_samples(drawn, minibatch.actions, of_log_probs, active)
        else:
            by_group = score_gradient(drawn, minibatch.actions, of_log_probs)
            if of_entropies is not None:
                by_group = by_group + of_entropies.sum(-1, keepdim=True) * entropy_gradient(drawn)
            by_prompt = by_group
            if rows is not None:
                by_prompt = torch.zeros_like(self._logits.base)
                index = rows[:, :, None].expand(by_group.shape)
                by_prompt = by_prompt.scatter_add_(1, index, by_group)
            gradient = self._logits.pull_back(by_prompt / self._temperature)
            norm = gradient.flatten(1).double().norm(dim=1)
            scale, active = self._clip(norm, active)
            gradient = gradient * scale
            origin = self._logits.origin()
            optimizer, state = self._run.optimizer, self._state
            move(optimizer, self._parameters, gradient, state, self._lr, origin, active)
        return {**metrics, "optim/grad_norm": norm}

    def _slopes(
        self, policy: Policy, minibatch: Experience, *, is_first: bool
    ) -> tuple[
        dict[str, Float[Tensor, " runs"]],
        Float[Tensor, "runs groups rollouts"],
        Float[Tensor, "runs groups rollouts"] | None,
    ]:
        """Return loss metrics, and the loss's derivatives by log-probabilities and entropies.

        Only the objective needs autograd, so the graph covers the rollouts, not the table.

        Args:
            is_first: whether the policy is the one that sampled.
        """
        objective, shape = self._run.objective, minibatch.actions.shape
        tokens = shape[0], shape[1] * shape[2], 1
        kept = minibatch.keep.flatten(1).sum(dim=1).clamp(min=1)
        log_probs = minibatch.log_probs if is_first else policy.log_probs(minibatch.actions)
        leaves = [log_probs.reshape(tokens).detach().requires_grad_()]
        references = None
        if objective.needs_entropy:
            spread = policy.entropies[..., None].expand(shape).reshape(tokens)
            leaves.append(spread.requires_grad_())
        if objective.needs_reference:
            base = Policy.of(self._base, self._temperature)
            base = base if minibatch.rows is None else base.of_prompts(minibatch.rows)
            references = base.log_probs(minibatch.actions).view(tokens)
        output = objective.loss(
            LossInputs(
                log_probs=leaves[0],
                old_log_probs=minibatch.log_probs.reshape(tokens),
                completion_mask=minibatch.keep.reshape(tokens),
                advantages=minibatch.advantages.flatten(1),
                rollouts=kept,
                tokens=kept,
                reference_log_probs=references,
                entropies=leaves[1] if objective.needs_entropy else None,
            )
        )
        slopes = torch.autograd.grad(output.loss.sum(), leaves, materialize_grads=True)
        metrics = {**output.metrics, "loss": output.loss.detach()}
        return metrics, slopes[0].view(shape), slopes[1].view(shape) if slopes[1:] else None

    def _step_along_samples(
        self,
        policy: IncrementalSoftmax,
        actions: Int[Tensor, "runs prompts rollouts"],
        weights: Float[Tensor, "runs prompts rollouts"],
        active: Bool[Tensor, " runs"],
    ) -> Float[Tensor, " runs"]:
        """Make a step of plain gradient descent on a table; return the gradient's norm.

        The gradient is g_v - π_v C, and g is 0 at behaviours not sampled. So
        ‖g - πC‖² = Σᵢ wᵢ g(aᵢ) - 2 C Σᵢ wᵢ π(aᵢ) + C² Σ_v π_v² needs no full table.
        """
        weights = weights / self._temperature
        if not active.all():
            weights = torch.where(active[:, None, None], weights, 0.0)
        drift = total(weights)
        pull = policy.blank().scatter_add_(-1, actions, weights)
        pulled = pull.gather(-1, actions)
        square = (weights.double() * pulled).flatten(1).sum(dim=1)
        if drift.any():
            chances = policy.probabilities.gather(-1, actions)
            crossed = (weights.double() * chances).sum(dim=-1)
            spread = policy.probabilities.double().square().sum(dim=-1)
            square = square + (drift * (drift * spread - 2 * crossed)).sum(dim=-1)
        norm = square.clamp(min=0).sqrt()
        scale, active = self._clip(norm, active)
        rate = torch.where(active[:, None, None], self._lr * scale, 0.0)
        if drift.any():
            if self._measures:
                if self.drift is None:
                    self.drift = Drift(self._parameters.clone(), active & False)
                self.drift.runs |= drift.flatten(1).any(dim=1)
            self._parameters -= rate * (pull - policy.probabilities * drift[..., None])
            policy.renew()
        else:
            moved = self._parameters.gather(-1, actions) - rate * pulled
            self._parameters.scatter_(-1, actions, moved)
            policy.follow(actions, moved)
        return norm

    def _clip(
        self, norm: Float[Tensor, " runs"], active: Bool[Tensor, " runs"]
    ) -> tuple[Float[Tensor, "runs 1 1"], Bool[Tensor, " runs"]]:
        """Return the factors that clip the gradients, and the active runs with finite ones."""
        active = active & self._is_finite("gradient norm", norm, active)
        bound = self._run.optimizer.max_grad_norm
        scale = torch.ones(len(norm))
        if bound > 0:
            scale = torch.where(norm > bound, bound / norm, 1.0).float()
        return scale[:, None, None], active

    def _is_finite(
        self, what: str, values: Float[Tensor, " runs"], active: Bool[Tensor, " runs"]
    ) -> Bool[Tensor, " runs"]:
        finite = values.isfinite()
        if not finite.all():
            for index in (~finite & active).nonzero()[:, 0].tolist():
                self.errors[index] = TrainingError(
                    f"step {self._step}: expected a finite {what}, got {values[index].item()}; the "
                    f"table is unchanged; try a smaller optimizer.lr"
                )
        return finite


def learning_rates(runs: Sequence[Run], step: int) -> list[float]:
    """Return the learning rate of each run in a step."""
    return [
        run.optimizer.lr * run.learning_rate_scale * run.optimizer.share(step, run.total_steps)
        for run in runs
    ]


def temperatures(runs: Sequence[Run]) -> Float[Tensor, "runs 1 1"]:
    """Return the sampling temperature of each run."""
    return torch.tensor([run.generation.temperature for run in runs])[:, None, None]


def rollout_means(
    name: str,
    values: Float[Tensor, "runs prompts"],
    experience: Experience,
    otherwise: float | None = None,
) -> list[dict[str, float]]:
    """Return the mean of a number per prompt over each run's rollouts that take part.

    Args:
        name: the name of the metric.
        otherwise: the number of a run without an update; None leaves it out.
    """
    if experience.rows is not None:
        values = values.gather(1, experience.rows)
    kept = experience.keep.sum(dim=2)
    means = (values.double() * kept).sum(dim=1) / kept.sum(dim=1)
    found = [otherwise if math.isnan(mean) else mean for mean in means.tolist()]
    return [{} if mean is None else {name: mean} for mean in found]


_FEW = 8
"""The most behaviours whose mean advantages are metrics."""


def action_advantages(experience: Experience, behaviours: int) -> list[dict[str, float]]:
    """Return the mean advantage of each behaviour among a run's rollouts, if there are few.

    Names are `advantage/behaviour_I`; a behaviour without a rollout has none.
    """
    if behaviours > _FEW:
        return [{} for _ in experience.actions]
    taken = experience.actions.flatten(1)[..., None] == torch.arange(behaviours)
    taken = taken & experience.keep.flatten(1)[..., None]
    sums = (experience.advantages.double().flatten(1)[..., None] * taken).sum(dim=1)
    means = (sums / taken.sum(dim=1)).tolist()
    return [
        {f"advantage/behaviour_{i}": mean for i, mean in enumerate(own) if not math.isnan(mean)}
        for own in means
    ]
