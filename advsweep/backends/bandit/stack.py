"""Trains bandits of several runs together, as one tensor [runs, prompts, behaviours].

A run's numbers do not depend on the runs beside it: every operation on several runs computes row
by row, and a single run is a stack of one.
"""

from __future__ import annotations

import copy
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import safetensors.torch
import torch

from advsweep.backends.bandit.sampling import BanditSampler, RandomDraws, Source
from advsweep.backends.bandit.tables import (
    Logits,
    Policy,
    ShiftedPolicy,
    Tables,
    exact_metrics,
    solve_rates,
)
from advsweep.backends.bandit.update import (
    CHANGE,
    CHANGE_SUMS,
    PARAMETERS,
    Before,
    Experience,
    State,
    Updates,
    action_advantages,
    fresh_moments,
    rollout_means,
)
from advsweep.backends.models import Table
from advsweep.backends.step_changes import KL_STEP, peak_memory
from advsweep.backends.training_loop import compute_advantages, metrics_of_rollouts
from advsweep.config.settings import Sgd
from advsweep.errors import BatchError, TrainingError
from advsweep.estimators.batch import Advantages
from advsweep.names import (
    ENTROPY_CHANGE,
    ESTIMATOR_SECONDS,
    REWARD_SECONDS,
    ROLLOUT_SECONDS,
    UPDATE_SECONDS,
)
from advsweep.rollouts.base import Collected
from advsweep.tasks.bandit import BanditTask

if TYPE_CHECKING:
    from advsweep.backends.bandit.backend import BanditBackend
    from advsweep.backends.bandit.tables import PerBehaviour
    from advsweep.backends.base import Run
    from advsweep.estimators.batch import GroupBatch

_WEIGHTS_FILE = "table.safetensors"
_ESTIMATOR_FILE = "estimator.json"

# What a run trains and remembers, by the names in its checkpoints; the optimizer's moments too.
_REFERENCE, _PENALTY = "reference", "penalty"

# The metrics of each run's step, or the error that ends the run.
Outcomes = list[dict[str, float] | Exception]


class BanditStack:
    """The state of several trainings in memory; see `training_loop.TrainingStack`.

    Args:
        runs: runs with the same `stack_key`.

    Attributes:
        tables: the tasks.
        random_draws: the random numbers of each run.
        whole: whether each draw has every prompt, in order.
        base_rates: the base's solve rate of each prompt, for controls that need it.
        logits: the map from parameters to logits.
        weights: what the runs train and remember, by the names in their checkpoints.
        temperature: the sampling temperature of each run.
    """

    def __init__(self, runs: Sequence[Run], options: BanditBackend) -> None:
        first = runs[0]
        assert isinstance(first.model, Table)
        self.runs = list(runs)
        self.options = options
        self.tables = Tables.of([run.task for run in runs if isinstance(run.task, BanditTask)])
        # Copies, as planned runs share their components and each training has its own memory.
        self._estimators = [copy.deepcopy(run.estimator) for run in runs]
        for estimator in self._estimators:
            estimator.reset()
        trained, prompts = self.tables.trained.shape[1], self.tables.logits.shape[1]
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
            _REFERENCE: self.logits.origin(),
            CHANGE: torch.zeros_like(parameters),
            CHANGE_SUMS: torch.zeros(len(runs), 2).double(),
            **fresh_moments(first.optimizer, parameters),
        }

    def _arrange(self) -> None:
        """Rebuild what follows from the runs that are left."""
        self.logits = Logits(self._table, self.tables.logits)
        self.temperature = torch.tensor([run.generation.temperature for run in self.runs])[
            :, None, None
        ]
        self._highest = (self.logits.base / self.temperature).amax(dim=-1, keepdim=True)
        self.base_rates = torch.empty(0)
        if any(run.control.base_samples for run in self.runs):
            base = Policy.of(self.logits.base.double(), self.temperature)
            self.base_rates = solve_rates(base.log.exp(), self.tables.correct)

    def step(self, step: int) -> Outcomes:
        first, every = self.runs[0], self.options.exact_every
        is_exact = bool(every) and step % every == 0
        measures_entropy = self.options.entropy_change and not self._is_brief(step)
        before = self.policy() if is_exact or measures_entropy else None
        outcomes, trained_on = self._train(step)
        if before is not None and trained_on is not None:
            after = self.policy()
            added: list[dict[str, float]] = [{} for _ in self.runs]
            if is_exact:
                added = exact_metrics(before, after, self.tables.correct, self.options.exact_k)
            if measures_entropy:
                change = after.entropies - before.entropies
                of_rollouts = rollout_means(ENTROPY_CHANGE, change, trained_on)
                added = [own | more for own, more in zip(added, of_rollouts, strict=True)]
            for outcome, more in zip(outcomes, added, strict=True):
                if not isinstance(outcome, Exception):
                    outcome |= more
        # Runs of a stack have these settings in common, so one decides for all.
        parameters = self.weights[PARAMETERS]
        if first.rollout.renews_reference(step):
            self.weights[_REFERENCE] = parameters.clone()
        if first.objective.renews_reference(step):
            self.weights[_PENALTY] = parameters.clone()
        if first.optimizer.resets(step):
            self.weights |= fresh_moments(first.optimizer, parameters)
        return outcomes

    def _is_brief(self, step: int) -> bool:
        return step % self.options.metrics_every > 0

    def policy(self, of: str = PARAMETERS) -> Policy:
        """Return the policy of the current or other parameters at the sampling temperature."""
        return Policy.of(self.logits.of(self.weights[of]), self.temperature)

    def anchor(self) -> PerBehaviour:
        """Return the logits of the reference of a KL penalty."""
        penalty = self.weights.get(_PENALTY)
        return self.logits.base if penalty is None else self.logits.of(penalty)

    def follow(self) -> Policy:
        """Return the current policy for a training step, computed from as little as it needs."""
        if self._is_plain:
            return ShiftedPolicy(self.weights[PARAMETERS], self._highest, self.temperature)
        return self.policy()

    def _train(self, step: int) -> tuple[Outcomes, Experience | None]:
        """Draw, estimate and update; return the outcomes and the data of the step."""
        runs, first, brief = self.runs, self.runs[0], self._is_brief(step)
        times = [time.perf_counter()]
        policy = self.follow()
        source = Source(self, policy, lambda: self.policy(_REFERENCE), step)
        # Policies that may fail or drop groups train alone: a stack's runs have equal shapes.
        try:
            collected = first.rollout.collect(source, first.prompts_per_step)
        except TrainingError as error:
            assert len(runs) == 1
            return [error], None
        read = frozenset().union(*(one.needs | one.uses for one in self._estimators))
        drawn = source.batch(read, brief=brief)
        times.append(time.perf_counter())
        advantages, infos, errors = self._advantages(drawn, collected)
        times.append(time.perf_counter())
        experience = _experience(source, collected, drawn, advantages)
        updates = Updates(self, step, self.anchor())
        # A cosine also needs the step before.
        is_tracked = not (brief and self._is_brief(step + 1))
        before = Before(self, policy, experience.actions) if is_tracked else None
        trained = updates.train(policy, experience)
        times.append(time.perf_counter())
        if before is not None:
            moves, kl = before.compare(updates.drifted)
            of_kl = rollout_means(KL_STEP, kl, experience, otherwise=0.0)
            of_actions = action_advantages(experience, self.logits.base.shape[-1])
            trained = [
                {**own, **move, **of_step, **taken, **peak_memory()}
                for own, move, of_step, taken in zip(trained, moves, of_kl, of_actions, strict=True)
            ]
        if brief:
            # Unknown for every run, so that a run has the same numbers in any stack.
            self.weights[CHANGE_SUMS][:, 0 if is_tracked else slice(None)] = torch.nan
            trained = [{} for _ in runs]
        metrics = metrics_of_rollouts(
            runs, source, collected, drawn, advantages, infos, brief=brief
        )
        seconds = [(end - start) / len(runs) for start, end in itertools.pairwise(times)]
        laps = dict(zip((ROLLOUT_SECONDS, ESTIMATOR_SECONDS, UPDATE_SECONDS), seconds, strict=True))
        errors |= updates.errors
        outcomes: Outcomes = []
        for index, (run, own, of_update) in enumerate(zip(runs, metrics, trained, strict=True)):
            if run.control.base_samples:
                own["control/rate"] = float(self.base_rates[index].mean())
            made = {**own, **of_update, REWARD_SECONDS: 0.0, **laps}
            outcomes.append(errors.get(index) or made)
        return outcomes, experience

    def _advantages(
        self, drawn: GroupBatch, collected: Collected
    ) -> tuple[Advantages, list[Mapping[str, float]], dict[int, Exception]]:
        """Compute the advantages of the groups that a step trains on.

        Returns:
            The advantages, the info of each run's estimator, and the errors of runs whose
            estimator refuses their groups, by number; their advantages are 0.
        """
        weighed: list[Advantages] = []
        errors: dict[int, Exception] = {}
        each = len(collected.groups) // len(self.runs)
        for index, estimator in enumerate(self._estimators):
            groups, own = drawn, collected
            if len(self.runs) > 1:
                rows = slice(each * index, each * (index + 1))
                groups = drawn.select(rows)
                inputs = {name: value[rows] for name, value in collected.inputs.items()}
                own = Collected(torch.arange(each), **inputs)
            try:
                made = compute_advantages(estimator, groups, own)
                if made.per_token:
                    # A rollout is one token.
                    made = replace(made, values=made.values[..., 0])
            except BatchError as error:
                errors[index] = error
                nothing = torch.zeros_like(groups.select(own.groups, own.rollouts).rewards)
                made = Advantages(values=nothing, keep=nothing.bool())
            weighed.append(made)
        values, keep = (
            torch.cat([getattr(a, name) for a in weighed]) for name in ("values", "keep")
        )
        return Advantages(values=values, keep=keep), [made.info for made in weighed], errors

    def keep(self, indexes: Sequence[int]) -> None:
        chosen = list(indexes)
        self.runs = [self.runs[i] for i in chosen]
        self._estimators = [self._estimators[i] for i in chosen]
        self.random_draws = [self.random_draws[i] for i in chosen]
        self.tables = self.tables[chosen]
        self.weights = {name: values[chosen] for name, values in self.weights.items()}
        if chosen:
            self._arrange()

    def sampler(self, index: int) -> BanditSampler:
        logits = self.logits.of(self.weights[PARAMETERS])[index]
        return BanditSampler(logits.clone(), self.logits.base[index])

    def change_norm(self, index: int) -> float:
        """Return the norm of the change of a run's parameters since its base policy."""
        origin = self.logits.origin()[index].double()
        return float((self.weights[PARAMETERS][index].double() - origin).norm())

    def state(self, index: int) -> Mapping[str, bytes]:
        # Copies: safetensors would write the whole stack that a view belongs to.
        own = {name: values[index].clone() for name, values in self.weights.items()}
        memory = self._estimators[index].state_dict()
        return {
            _WEIGHTS_FILE: safetensors.torch.save(own),
            _ESTIMATOR_FILE: json.dumps(memory).encode(),
        }

    def restore(self, index: int, files: Mapping[str, bytes]) -> None:
        # Checkpoints of earlier versions lack these.
        missing = {CHANGE: torch.tensor(0.0), CHANGE_SUMS: torch.tensor(torch.nan)}
        for name, values in {**missing, **safetensors.torch.load(files[_WEIGHTS_FILE])}.items():
            if name == _PENALTY:
                self.weights.setdefault(name, self.logits.origin())
            self.weights[name][index] = values
        self._estimators[index].load_state_dict(json.loads(files[_ESTIMATOR_FILE]))


def _experience(
    source: Source, collected: Collected, drawn: GroupBatch, advantages: Advantages
) -> Experience:
    """Return the data that a step trains on.

    Args:
        collected: the groups kept; some of those drawn only if they are of one run.
        drawn: all groups drawn.
    """
    assert drawn.token_entropy is not None
    rows, actions = source.rows, source.actions
    log_probs = -drawn.token_entropy.view(actions.shape)
    groups, some = collected.groups, collected.rollouts
    if some is not None or len(groups) < len(drawn.rewards):
        rows = groups[None] if rows is None else rows[:, groups]
        actions, log_probs = actions[:, groups], log_probs[:, groups]
    if some is not None:
        actions, log_probs = (values.gather(2, some[None]) for values in (actions, log_probs))
    return Experience(
        rows=rows,
        actions=actions,
        log_probs=log_probs,
        advantages=advantages.values.view(actions.shape),
        keep=advantages.keep.view(actions.shape),
    )
