"""Trainings of bandits side by side: one tensor [runs, prompts, behaviours] for all of them.

No number of a run depends on which others are beside it: what is computed for several runs at
once is computed row by row, and a run alone is a stack of one.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import safetensors.torch
import torch

from advsweep.backends.bandit import closed_form
from advsweep.backends.bandit.closed_form import (
    Weights,
    expected_changes,
    expected_step,
    weights_of,
)
from advsweep.backends.bandit.group_batches import Clock, Part, experience, stretches
from advsweep.backends.bandit.incremental_softmax import KeptPolicy
from advsweep.backends.bandit.model_config import Table
from advsweep.backends.bandit.parameters import Logits, fresh_state
from advsweep.backends.bandit.random_draws import Noise
from advsweep.backends.bandit.sampling import BanditSampler, Source
from advsweep.backends.bandit.softmax import Policy
from advsweep.backends.bandit.tables import Tables
from advsweep.backends.bandit.update import Updates, entropy_changes, learning_rates, temperatures
from advsweep.config.settings import Sgd
from advsweep.diagnostics import stacked_rollout_metrics
from advsweep.errors import TrainingError
from advsweep.tasks.bandit import BanditTask

if TYPE_CHECKING:
    from advsweep.backends.bandit.backend import BanditBackend
    from advsweep.backends.base import Run

_WEIGHTS_FILE = "table.safetensors"
_ESTIMATOR_FILE = "estimator.json"
_PARAMETERS = "parameters"
_REFERENCE = "reference"


class BanditStack:
    """The state of several trainings in memory; see `loop.Stack`.

    Args:
        runs: of one `stack_key` shape; those of the same group size and estimator stand next
            to each other.
    """

    def __init__(self, runs: Sequence[Run], backend: BanditBackend) -> None:
        first = runs[0]
        assert isinstance(first.model, Table)
        self._runs = list(runs)
        self._backend = backend
        self._table = first.model
        self._tables = Tables([run.task for run in runs if isinstance(run.task, BanditTask)])
        self._estimators = [copy.deepcopy(run.estimator) for run in runs]
        for estimator in self._estimators:
            estimator.reset()
        trained, prompts = self._tables.trained.shape[1], self._tables.logits.shape[1]
        self._noises = [Noise(run.seed, run.group_size, trained) for run in runs]
        # In which minibatch a group is, and which comes in a second draw, is random.
        in_order = backend.minibatches == 1 and first.rollout.keeps_all
        self._whole = in_order and first.prompts_per_step == trained == prompts
        self._kept: KeptPolicy | None = None
        self._weights: list[tuple[slice, Weights | None]] | None = None
        self._parts: list[Part] = []
        self._arrange()
        self._parameters = self._logits.origin()
        self._moments = fresh_state(first.optimizer, self._parameters)
        self._reference = self._logits.origin()

    def step(self, step: int) -> list[Mapping[str, float] | Exception]:
        every = self._backend.exact_every
        is_exact = bool(every) and step % every == 0
        tells_entropy = self._backend.entropy_change and not self._is_brief(step)
        # The policy may change in place.
        before = self._exact_policy() if is_exact or tells_entropy else None
        policy = self._policy()
        if not self._is_brief(step):
            # What every part of the stack will ask for, made of all at once.
            _ = policy.entropies
        outcomes: list[dict[str, float] | Exception] = []
        for part in self._parts:
            outcomes += self._step_part(part, step, policy[part.runs])
        if self._kept is not None:
            self._kept.forget()
        if before is not None:
            after = self._exact_policy()
            if is_exact:
                _add(
                    outcomes,
                    closed_form.quantities(
                        before, after, self._tables.correct, self._backend.exact_k
                    ),
                )
                _add(outcomes, self._expected(before, step))
            if tells_entropy:
                change = after.entropies - before.entropies
                for part in self._parts:
                    found = entropy_changes(change[part.runs], part.trained_on)
                    _add(outcomes[part.runs], found)
        if self._runs[0].rollout.renews_reference(step):
            self._reference = self._parameters.clone()
        return list(outcomes)

    def _expected(self, before: Policy, step: int) -> list[dict[str, float]]:
        """What the step does on average, to first order, of runs for which that is known."""
        if self._weights is None:
            alike = stretches([kind_of(run) for run in self._runs])
            self._weights = [
                (runs, weights_of(self._runs[runs.start], self._backend)) for runs in alike
            ]
        found: list[dict[str, float]] = []
        for runs, weights in self._weights:
            if weights is None:
                found += [{}] * (runs.stop - runs.start)
                continue
            log_policy, correct = before.log[runs], self._tables.correct[runs]
            temperature = self._temperature[runs]
            gradient = expected_step(log_policy, correct, weights, temperature)
            untrained = torch.ones(gradient.shape[:2], dtype=torch.bool)
            trained = torch.tensor(self._tables.trained[runs])
            gradient[untrained.scatter_(1, trained, False)] = 0.0
            rates = torch.tensor(learning_rates(self._runs[runs], step)).double()
            moves = self._logits[runs].response(gradient / trained.shape[1])
            changes = expected_changes(
                log_policy, correct, rates[:, None, None] * moves, temperature
            )
            columns = zip(*(values.tolist() for values in changes.values()), strict=True)
            found += [dict(zip(changes, column, strict=True)) for column in columns]
        return found

    def keep(self, indexes: Sequence[int]) -> None:
        chosen = list(indexes)
        self._runs = [self._runs[i] for i in chosen]
        self._estimators = [self._estimators[i] for i in chosen]
        self._noises = [self._noises[i] for i in chosen]
        self._tables = self._tables[chosen]
        self._parameters = self._parameters[chosen]
        self._reference = self._reference[chosen]
        self._moments = {name: values[chosen] for name, values in self._moments.items()}
        self._arrange()

    def sampler(self, index: int) -> BanditSampler:
        own = slice(index, index + 1)
        return BanditSampler(self._logits[own].of(self._parameters[own])[0].clone())

    def state(self, index: int) -> Mapping[str, bytes]:
        tensors = {
            _PARAMETERS: self._parameters,
            _REFERENCE: self._reference,
            **self._moments,
        }
        own = {name: values[index].clone() for name, values in tensors.items()}
        memory = self._estimators[index].state_dict()
        return {
            _WEIGHTS_FILE: safetensors.torch.save(own),
            _ESTIMATOR_FILE: json.dumps(memory).encode(),
        }

    def restore(self, index: int, files: Mapping[str, bytes]) -> None:
        tensors = safetensors.torch.load(files[_WEIGHTS_FILE])
        self._parameters[index] = tensors.pop(_PARAMETERS)
        self._reference[index] = tensors.pop(_REFERENCE)
        for name, values in tensors.items():
            self._moments[name][index] = values
        self._estimators[index].load_state_dict(json.loads(files[_ESTIMATOR_FILE]))
        self._kept = None

    def _arrange(self) -> None:
        """Finds the parts of which the stack consists."""
        self._logits = Logits(self._table, self._tables.logits)
        self._temperature = temperatures(self._runs)
        self._kept = self._weights = None
        sizes = [run.group_size for run in self._runs]
        self._parts = [Part(runs, self._estimators[runs]) for runs in stretches(sizes)]

    def _exact_policy(self) -> Policy:
        """The present policy, at the sampling temperature, as it stays when it changes."""
        return Policy.of(self._logits.of(self._parameters), self._temperature)

    def _policy(self) -> Policy:
        """The present policy, kept from the step before where a step moves few logits."""
        first = self._runs[0]
        optimizer = first.optimizer
        is_plain = isinstance(optimizer, Sgd) and optimizer.momentum == 0
        if not is_plain or not self._whole or self._table.rank or first.objective.needs_entropy:
            return self._exact_policy()
        if self._kept is None:
            self._kept = KeptPolicy(self._parameters, self._logits.base, self._temperature)
        return self._kept

    def _is_brief(self, step: int) -> bool:
        return step % self._backend.metrics_every > 0

    def _step_part(
        self, part: Part, step: int, policy: Policy
    ) -> list[dict[str, float] | Exception]:
        """One step of runs with the same group size."""
        brief = self._is_brief(step)
        runs, clock = self._runs[part.runs], Clock(len(part))
        first, logits = runs[0], self._logits[part.runs]
        source = Source(
            self._tables[part.runs],
            self._noises[part.runs],
            policy,
            lambda: Policy.of(logits.of(self._reference[part.runs]), self._temperature[part.runs]),
            group_size=first.group_size,
            whole=self._whole,
            step=step,
            total_steps=first.steps,
        )
        try:
            collected = first.rollout.collect(source, first.prompts_per_step)
        except TrainingError as error:
            assert len(runs) == 1
            return [error]
        drawn = source.batch(part.read, brief=brief)
        clock.lap("time/rollout")
        advantages, infos, errors = part.advantages(drawn, collected)
        clock.lap("time/estimator")
        updates = Updates(
            runs,
            self._backend,
            logits,
            self._parameters[part.runs],
            {name: values[part.runs] for name, values in self._moments.items()},
            step,
        )
        part.trained_on = experience(source, collected, drawn, advantages)
        trained = updates.train(policy, part.trained_on, tell=not brief)
        clock.lap("time/update")
        metrics = stacked_rollout_metrics(
            drawn,
            advantages,
            infos,
            groups=collected.groups if len(runs) == 1 else None,
            outcomes=source.outcomes,
            levels=source.levels,
            prompts=first.prompts_per_step,
            references=source.references,
            verifier_free=[run.estimator.verifier_free for run in runs],
            brief=brief,
        )
        errors |= updates.errors
        return [
            errors.get(index) or {**own, **of_update, "time/reward": 0.0, **clock.laps}
            for index, (own, of_update) in enumerate(zip(metrics, trained, strict=True))
        ]


def kind_of(run: Run) -> tuple[int, str]:
    """What runs that are sampled and weighed as one have in common."""
    return run.group_size, str(run.estimator.identity())


def _add(
    outcomes: Sequence[dict[str, float] | Exception], metrics: Sequence[Mapping[str, float]]
) -> None:
    """Adds metrics to those of runs that have any."""
    for outcome, more in zip(outcomes, metrics, strict=True):
        if not isinstance(outcome, Exception):
            outcome |= more
