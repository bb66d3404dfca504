"""The updates of one step, and what they change.

Gradients of log π and of the entropy are in closed form, so only the objective needs autograd.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.bandit.bandits import CHANGE, CHANGE_SUMS, PARAMETERS, State
from advsweep.backends.bandit.tables import (
    Policy,
    ShiftedPolicy,
    divergences,
    entropy_gradient,
    score_gradient,
    total,
)
from advsweep.backends.step_changes import change_metrics, loss_variance
from advsweep.config.settings import AdamW, Optimizer, Sgd
from advsweep.errors import TrainingError
from advsweep.names import GRADIENT_NORM, LEARNING_RATE, POLICY_LOSS
from advsweep.objectives.base import LossInputs

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from advsweep.backends.bandit.bandits import Bandits
    from advsweep.backends.bandit.tables import (
        Actions,
        FlagPerRun,
        Owners,
        Parameters,
        PerBehaviour,
        PerPrompt,
        PerRollout,
        PerRun,
    )


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

    rows: Owners | None
    actions: Actions
    log_probs: PerRollout
    advantages: PerRollout
    keep: Bool[Tensor, "runs groups rollouts"]

    def __getitem__(self, groups: slice) -> Experience:
        chosen: dict[str, Any] = {n: v[:, groups] for n, v in vars(self).items() if v is not None}
        return Experience(**{"rows": None, **chosen})


class Updates:
    """Trains the parameters of several runs in one step.

    Args:
        bandits: their parameters and moments are changed in place.
        anchor: logits of the policy that a KL penalty refers to.

    Attributes:
        errors: errors by number of the run; such a run cannot continue.
        drifted: the runs in which plain descent moved behaviours that were not sampled.
    """

    def __init__(self, bandits: Bandits, step: int, anchor: PerBehaviour) -> None:
        self._bandits = bandits
        self._run = bandits.runs[0]
        self._state = bandits.weights
        self._logits = bandits.logits
        self._parameters = bandits.weights[PARAMETERS]
        self._temperature = bandits.temperature
        self._step = step
        self._anchor = anchor
        self._rates = [
            run.optimizer.lr * run.learning_rate_scale * run.optimizer.share(step, run.total_steps)
            for run in bandits.runs
        ]
        self._lr = torch.tensor(self._rates)[:, None, None]
        self.errors: dict[int, TrainingError] = {}
        self.drifted: FlagPerRun = torch.zeros(len(bandits.runs), dtype=torch.bool)

    def train(self, policy: Policy, experience: Experience) -> list[dict[str, float]]:
        """Train on every minibatch `inner_epochs` times, from the policy that sampled.

        Returns:
            Means over the minibatches with which a run made an update; empty without one.
        """
        options = self._bandits.options
        runs = len(self._rates)
        parts = np.array_split(np.arange(experience.actions.shape[1]), options.minibatches)
        slices = [slice(part[0], part[-1] + 1) for part in parts if len(part)]
        sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(runs).double())
        losses: list[list[float]] = [[] for _ in range(runs)]
        updates = torch.zeros(runs)
        is_first = True
        for groups in slices * options.inner_epochs:
            minibatch = experience[groups]
            # All runs compute; those without a rollout here keep their parameters (`active`).
            active = minibatch.keep.flatten(1).any(dim=1)
            if not active.any():
                continue
            updates += active
            metrics = self._train_on(policy, minibatch, active, is_first)
            is_first = False
            # Runs without a rollout in this minibatch add 0.
            for name, values in metrics.items():
                sums[name] += values
            if POLICY_LOSS in metrics:
                policy_losses = metrics[POLICY_LOSS].tolist()
                for run in active.nonzero()[:, 0].tolist():
                    losses[run].append(policy_losses[run])
        means = {name: (values / updates).tolist() for name, values in sums.items()}
        of_runs: list[dict[str, float]] = []
        for run, count in enumerate(updates.tolist()):
            of_run: dict[str, float] = {}
            if count:
                of_run = {name: values[run] for name, values in means.items()}
                of_run |= {**loss_variance(losses[run]), LEARNING_RATE: self._rates[run]}
            of_runs.append(of_run)
        return of_runs

    def _train_on(
        self, policy: Policy, minibatch: Experience, active: FlagPerRun, is_first: bool
    ) -> dict[str, PerRun]:
        """Make one step of the optimizer, and return metrics.

        Args:
            policy: the policy that sampled, which is the current one if `is_first`.
        """
        rows = minibatch.rows
        drawn = policy if is_first else self._bandits.follow()
        if rows is not None:
            drawn = drawn.of_prompts(rows)
        metrics, of_log_probs, of_entropies = self._slopes(drawn, minibatch, is_first)
        active = active & self._is_finite("loss", metrics.pop("loss"), active)
        if isinstance(drawn, ShiftedPolicy):
            norm = self._descend(drawn, minibatch.actions, of_log_probs, active)
            return {**metrics, GRADIENT_NORM: norm}
        # The optimizer's moments, a shared map and drawn prompts take the whole table.
        gradient = score_gradient(drawn, minibatch.actions, of_log_probs)
        if of_entropies is not None:
            gradient = gradient + of_entropies.sum(-1, keepdim=True) * entropy_gradient(drawn)
        if rows is not None:
            index = rows[:, :, None].expand(gradient.shape)
            gradient = torch.zeros_like(self._logits.base).scatter_add_(1, index, gradient)
        gradient = self._logits.pull_back(gradient / self._temperature)
        norm = gradient.flatten(1).double().norm(dim=1)
        scale, active = self._clip(norm, active)
        origin = self._logits.origin()
        moved = next_state(self._run.optimizer, self._state, gradient * scale, self._lr, origin)
        copy_active(moved, self._state, active)
        return {**metrics, GRADIENT_NORM: norm}

    def _slopes(
        self, policy: Policy, minibatch: Experience, is_first: bool
    ) -> tuple[dict[str, PerRun], PerRollout, PerRollout | None]:
        """Return loss metrics, and the loss's derivatives by log-probabilities and entropies.

        The graph of autograd covers the rollouts, not the table.
        """
        objective = self._run.objective
        shape = minibatch.actions.shape
        tokens = (shape[0], shape[1] * shape[2], 1)
        kept = minibatch.keep.flatten(1).sum(dim=1).clamp(min=1)
        log_probs = minibatch.log_probs if is_first else policy.log_probs(minibatch.actions)
        leaves = [log_probs.reshape(tokens).detach().requires_grad_()]
        entropies = None
        if objective.needs_entropy:
            entropies = policy.entropies[..., None].expand(shape).reshape(tokens).requires_grad_()
            leaves.append(entropies)
        references = None
        if objective.needs_reference:
            base = Policy.of(self._anchor, self._temperature)
            if minibatch.rows is not None:
                base = base.of_prompts(minibatch.rows)
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
                entropies=entropies,
            )
        )
        slopes = torch.autograd.grad(output.loss.sum(), leaves, materialize_grads=True)
        metrics = {**output.metrics, "loss": output.loss.detach()}
        of_entropies = None
        if entropies is not None:
            of_entropies = slopes[1].view(shape)
        return metrics, slopes[0].view(shape), of_entropies

    def _descend(
        self, policy: ShiftedPolicy, actions: Actions, weights: PerRollout, active: FlagPerRun
    ) -> PerRun:
        """Make a step of plain gradient descent on a table; return the gradient's norm.

        The gradient is g_v - π_v C, and g is 0 at behaviours not sampled. So
        ‖g - πC‖² = Σᵢ wᵢ g(aᵢ) - 2 C Σᵢ wᵢ π(aᵢ) + C² Σ_v π_v² needs the table only where C is
        not 0.
        """
        weights = torch.where(active[:, None, None], weights / self._temperature, 0.0)
        drift = total(weights)
        gradient = torch.zeros_like(self._parameters).scatter_add_(-1, actions, weights)
        square = (weights.double() * gradient.gather(-1, actions)).flatten(1).sum(dim=1)
        if drift.any():
            chances = policy.probabilities.gather(-1, actions)
            crossed = (weights.double() * chances).sum(dim=-1)
            spread = policy.probabilities.double().square().sum(dim=-1)
            square = square + (drift * (drift * spread - 2 * crossed)).sum(dim=-1)
            gradient = gradient - policy.probabilities * drift[..., None]
            self.drifted |= drift.any(dim=1)
        norm = square.clamp(min=0).sqrt()
        scale, active = self._clip(norm, active)
        # In place: memory for a whole table costs as much as a pass over it.
        rate = torch.where(active[:, None, None], self._lr * scale, 0.0)
        self._parameters -= gradient.mul_(rate)
        return norm

    def _clip(
        self, norm: PerRun, active: FlagPerRun
    ) -> tuple[Float[Tensor, "runs 1 1"], FlagPerRun]:
        """Return the factors that clip the gradients, and the active runs with finite ones."""
        active = active & self._is_finite("gradient norm", norm, active)
        bound = self._run.optimizer.max_grad_norm
        scale = torch.ones(len(norm))
        if bound > 0:
            scale = torch.where(norm > bound, bound / norm, 1.0).float()
        return scale[:, None, None], active

    def _is_finite(self, what: str, values: PerRun, active: FlagPerRun) -> FlagPerRun:
        finite = values.isfinite()
        for index in (~finite & active).nonzero()[:, 0].tolist():
            self.errors[index] = TrainingError(
                f"step {self._step}: expected a finite {what}, got {values[index].item()}; the "
                f"table is unchanged; try a smaller optimizer.lr"
            )
        return finite


def next_state(
    optimizer: Optimizer,
    state: State,
    gradient: Parameters,
    lr: Float[Tensor, "runs 1 1"],
    origin: Parameters,
) -> State:
    """Return what one step against the gradient changes, as torch's optimizers do.

    Args:
        origin: parameters that weight decay pulls towards.
    """
    # torch's own optimizers take a second to import, longer than most trainings of a bandit.
    parameters = state[PARAMETERS]
    moved: State = {}
    if isinstance(optimizer, AdamW):
        beta1 = optimizer.beta1
        beta2 = optimizer.beta2
        updates = state["updates"] + 1
        mean = beta1 * state["mean"] + (1 - beta1) * gradient
        square = beta2 * state["square"] + (1 - beta2) * gradient**2
        moved = {"mean": mean, "square": square, "updates": updates}
        size = (square / (1 - beta2**updates)).sqrt() + optimizer.eps
        decayed = parameters
        if optimizer.weight_decay > 0:
            decayed = parameters - lr * optimizer.weight_decay * (parameters - origin)
        moved[PARAMETERS] = decayed - lr * (mean / (1 - beta1**updates)) / size
    else:
        assert isinstance(optimizer, Sgd)
        if optimizer.momentum:
            gradient = optimizer.momentum * state["velocity"] + gradient
            moved["velocity"] = gradient
        moved[PARAMETERS] = parameters - lr * gradient
    return moved


def copy_active(moved: State, state: State, active: FlagPerRun) -> None:
    """Copy what a step changes into the state, in place; runs that are not active keep theirs."""
    for name, new in moved.items():
        state[name].copy_(torch.where(active[:, None, None], new, state[name]))


class Before:
    """The state before a step, and what the step changes: the parameters, the policies exactly.

    Sums over the whole table take most of a step's time. Plain descent on advantages that sum to
    0 moves sampled behaviours alone, so there the sums are over these.

    Args:
        bandits: the runs, in their state before the step.
        policy: the policy before the step.
        actions: the behaviours that the step trains on.
    """

    def __init__(self, bandits: Bandits, policy: Policy, actions: Actions) -> None:
        self._bandits = bandits
        self._policy = policy
        self._table = bandits.weights[PARAMETERS].clone()
        if isinstance(policy, ShiftedPolicy):
            # Sorted, to count a behaviour that was sampled twice once; numpy sorts short rows
            # several times faster than torch.
            self._actions = torch.from_numpy(np.sort(actions.numpy(), axis=-1))
            self._log_probs = policy.log_probs(self._actions)

    def compare(self, drifted: FlagPerRun) -> tuple[list[dict[str, float]], PerPrompt]:
        """Return the metrics of the step's changes, and KL(old ‖ new) of each prompt.

        The weights, now those after the step, get the change and its sums.

        Args:
            drifted: as in `Updates`.
        """
        state = self._bandits.weights
        logits = self._bandits.logits
        temperature = self._bandits.temperature
        parameters = state[PARAMETERS]
        change = parameters - self._table

        def of_table(policy: Policy) -> tuple[Tensor, Tensor]:
            since = parameters - logits.origin()
            sums = [_dots(since, since), _dots(change, change), _dots(change, state[CHANGE])]
            kl = divergences(policy.probabilities, logits.change(change) / temperature)
            return torch.stack([*sums, state[CHANGE_SUMS][:, 1]], dim=1), kl.double()

        if isinstance(self._policy, ShiftedPolicy):
            sums, kl = self._of_samples(change)
            if drifted.any():
                # Each run's numbers are made in the way they are made for it alone.
                whole_sums, whole_kl = of_table(Policy.of(self._table, temperature))
                sums = whole_sums.where(drifted[:, None], sums)
                kl = whole_kl.where(drifted[:, None], kl)
        else:
            sums, kl = of_table(self._policy)
        state[CHANGE] = change
        state[CHANGE_SUMS] = sums[:, :2].clone()
        return [change_metrics(*of_run) for of_run in sums.tolist()], kl

    def _of_samples(self, change: PerBehaviour) -> tuple[Float[Tensor, "runs 4"], PerPrompt]:
        def summed(values: PerRollout) -> PerRun:
            return values.flatten(1).sum(dim=1, dtype=torch.float64)

        state = self._bandits.weights
        origin = self._bandits.logits.base
        actions = self._actions
        last_sums = state[CHANGE_SUMS]
        is_first = torch.ones_like(actions, dtype=torch.bool)
        torch.ne(actions[..., 1:], actions[..., :-1], out=is_first[..., 1:])
        moved = change.gather(-1, actions).where(is_first, 0.0)
        before = self._table.gather(-1, actions) - origin.gather(-1, actions)
        # (b + c)² - b² = c (c + 2 b)
        total = last_sums[:, 0] + summed(moved * (moved + 2 * before))
        if total.isnan().any():
            since = state[PARAMETERS] - origin
            total = total.where(~total.isnan(), _dots(since, since))
        along = summed(moved * state[CHANGE].gather(-1, actions))
        sums = torch.stack([total, summed(moved.square()), along, last_sums[:, 1]], dim=1)
        # In double precision, since e^x - 1 - x cancels where the change x is small.
        return sums, divergences(
            self._log_probs.double().exp(), moved.double() / self._bandits.temperature
        )


def _dots(first: Parameters, second: Parameters) -> PerRun:
    # Sums with a conversion are many times slower, so only those over rows have one.
    return (first * second).sum(dim=-1).sum(dim=-1, dtype=torch.float64)


def rollout_means(
    name: str, values: PerPrompt, experience: Experience, otherwise: float | None = None
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
    of_runs: list[dict[str, float]] = []
    for mean in means.tolist():
        value = otherwise if math.isnan(mean) else mean
        of_runs.append({} if value is None else {name: value})
    return of_runs


# The most behaviours whose mean advantages are metrics.
_FEW = 8


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
    of_runs: list[dict[str, float]] = []
    for of_run in means:
        named = {f"advantage/behaviour_{number}": mean for number, mean in enumerate(of_run)}
        of_runs.append({name: mean for name, mean in named.items() if not math.isnan(mean)})
    return of_runs
