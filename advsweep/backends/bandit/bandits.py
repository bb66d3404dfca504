"""Bandits of several runs in training: what they have, train and remember."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advsweep.backends.bandit.random_draws import RandomDraws
from advsweep.backends.bandit.tables import Logits, Policy, ShiftedPolicy, Tables, solve_rates
from advsweep.backends.models import Table
from advsweep.config.settings import AdamW, Optimizer, Sgd
from advsweep.tasks.bandit import BanditTask

if TYPE_CHECKING:
    from advsweep.backends.bandit.options import BanditOptions
    from advsweep.backends.bandit.tables import Parameters, PerBehaviour
    from advsweep.backends.base import Run

# What the runs train and remember, by the names in their checkpoints; the first axis is that of
# the runs. The optimizer's moments are in it too.
State = dict[str, Tensor]

PARAMETERS = "parameters"
REFERENCE = "reference"
PENALTY = "penalty"
# The last step's change of the parameters, with which the next one is compared.
CHANGE = "change"
# Squared norms of the change since the base and of the last change, NaN if unknown.
CHANGE_SUMS = "change_sums"


class Bandits:
    """The bandits of several runs, as tensors whose first axis is that of the runs.

    Args:
        runs: runs with the same `stack_key`.

    Attributes:
        tables: the tasks.
        random_draws: the random numbers of each run.
        whole: whether each draw has every prompt, in order.
        base_rates: the base's solve rate of each prompt, for controls that need it.
        logits: the map from parameters to logits.
        weights: what the runs train and remember.
        temperature: the sampling temperature of each run.
    """

    def __init__(self, runs: Sequence[Run], options: BanditOptions) -> None:
        first = runs[0]
        assert isinstance(first.model, Table)
        self.runs = list(runs)
        self.options = options
        self.tables = Tables.of([run.task for run in runs if isinstance(run.task, BanditTask)])
        trained = self.tables.trained.shape[1]
        prompts = self.tables.logits.shape[1]
        self.random_draws = [
            RandomDraws(run.seed, run.rollout_seed, run.drawn_size, trained) for run in runs
        ]
        # Minibatches and later draws take prompts at random; otherwise the order is free.
        in_order = options.minibatches == 1 and first.rollout.keeps_all
        self.whole = in_order and first.prompts_per_step == trained == prompts
        self._is_plain = (
            self.whole
            and first.model.rank == 0
            and isinstance(first.optimizer, Sgd)
            and first.optimizer.momentum == 0
            and not first.objective.needs_entropy
        )
        self._table = first.model
        self._arrange()
        parameters = self.logits.origin()
        self.weights: State = {
            PARAMETERS: parameters,
            REFERENCE: self.logits.origin(),
            CHANGE: torch.zeros_like(parameters),
            CHANGE_SUMS: torch.zeros(len(runs), 2).double(),
            **fresh_moments(first.optimizer, parameters),
        }

    def _arrange(self) -> None:
        """Rebuild what follows from the runs that are left."""
        self.logits = Logits(self._table, self.tables.logits)
        temperatures = torch.tensor([run.generation.temperature for run in self.runs])
        self.temperature = temperatures[:, None, None]
        self._highest = (self.logits.base / self.temperature).amax(dim=-1, keepdim=True)
        self.base_rates = torch.empty(0)
        if any(run.control.base_samples for run in self.runs):
            base = Policy.of(self.logits.base.double(), self.temperature)
            self.base_rates = solve_rates(base.log.exp(), self.tables.correct)

    def policy(self) -> Policy:
        """Return the current policy at the sampling temperature."""
        return Policy.of(self.logits.of(self.weights[PARAMETERS]), self.temperature)

    def follow(self) -> Policy:
        """Return the current policy for a training step, computed from as little as it needs."""
        if self._is_plain:
            return ShiftedPolicy(self.weights[PARAMETERS], self._highest, self.temperature)
        return self.policy()

    def reference_policy(self) -> Policy:
        """Return the policy of the reference model at the sampling temperature."""
        return Policy.of(self.logits.of(self.weights[REFERENCE]), self.temperature)

    def anchor(self) -> PerBehaviour:
        """Return the logits of the reference of a KL penalty."""
        penalty = self.weights.get(PENALTY)
        return self.logits.base if penalty is None else self.logits.of(penalty)

    def renew(self, step: int) -> None:
        """Renew the references and the moments that are due after a step."""
        # Runs that train together have these settings in common, so one decides for all.
        first = self.runs[0]
        parameters = self.weights[PARAMETERS]
        if first.rollout.renews_reference(step):
            self.weights[REFERENCE] = parameters.clone()
        if first.objective.renews_reference(step):
            self.weights[PENALTY] = parameters.clone()
        if first.optimizer.resets(step):
            self.weights |= fresh_moments(first.optimizer, parameters)

    def keep(self, indexes: Sequence[int]) -> None:
        """Drop all runs but these, which are numbered in this order from now on."""
        chosen = list(indexes)
        self.runs = [self.runs[index] for index in chosen]
        self.random_draws = [self.random_draws[index] for index in chosen]
        self.tables = self.tables[chosen]
        self.weights = {name: values[chosen] for name, values in self.weights.items()}
        if chosen:
            self._arrange()


def fresh_moments(optimizer: Optimizer, parameters: Parameters) -> State:
    """Return the moments before the first update."""
    if isinstance(optimizer, AdamW):
        moments = {name: torch.zeros_like(parameters) for name in ("mean", "square")}
        return {**moments, "updates": torch.zeros(len(parameters), 1, 1)}
    if isinstance(optimizer, Sgd) and optimizer.momentum:
        return {"velocity": torch.zeros_like(parameters)}
    return {}
