"""Trains bandits of several runs together, as one tensor [runs, prompts, behaviours].

A run's numbers do not depend on the runs beside it: every operation on several runs computes row
by row, and a single run is a stack of one.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import safetensors.torch
import torch

from advsweep.backends.bandit import closed_form
from advsweep.backends.bandit.changes import BlockChanges, ChangeMemory
from advsweep.backends.bandit.closed_form import (
    OutcomeWeights,
    closed_form_weights,
    expected_changes,
    expected_step,
    signal_ratio,
    solve_rates,
)
from advsweep.backends.bandit.model_config import Table
from advsweep.backends.bandit.run_blocks import (
    RunBlock,
    StepClock,
    equal_neighbours,
    experience,
)
from advsweep.backends.bandit.sampling import BanditSampler, RandomDraws, Source
from advsweep.backends.bandit.softmax import IncrementalSoftmax, Policy
from advsweep.backends.bandit.tables import Logits, Tables, fresh_state
from advsweep.backends.bandit.update import (
    StackOptions,
    Updates,
    action_advantages,
    learning_rates,
    rollout_means,
    temperatures,
)
from advsweep.backends.step_changes import KL_STEP, peak_memory
from advsweep.backends.training_loop import control_metrics
from advsweep.config.settings import Sgd
from advsweep.diagnostics import stacked_rollout_metrics
from advsweep.errors import TrainingError
from advsweep.tasks.bandit import BanditTask

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from advsweep.backends.base import Run

_WEIGHTS_FILE = "table.safetensors"
_ESTIMATOR_FILE = "estimator.json"
_PARAMETERS = "parameters"
_REFERENCE = "reference"
_PENALTY = "penalty"
_CHANGE, _CHANGE_SUMS = "change", "change_sums"


class BanditStack:
    """The state of several trainings in memory; see `training_loop.Stack`.

    Args:
        runs: runs with the same shape of `stack_key`. Runs with the same group size and
            estimator must be neighbours.
    """

    def __init__(self, runs: Sequence[Run], options: StackOptions) -> None:
        first = runs[0]
        assert isinstance(first.model, Table)
        self._runs = list(runs)
        self._options = options
        self._table = first.model
        self._tables = Tables([run.task for run in runs if isinstance(run.task, BanditTask)])
        self._estimators = [copy.deepcopy(run.estimator) for run in runs]
        for estimator in self._estimators:
            estimator.reset()
        trained, prompts = self._tables.trained.shape[1], self._tables.logits.shape[1]
        self._random_draws = [
            RandomDraws(run.seed, run.rollout_seed, run.group_size, trained) for run in runs
        ]
        # Minibatches and later draws take prompts at random; otherwise the order is free.
        in_order = options.minibatches == 1 and first.rollout.keeps_all
        self._whole = in_order and first.prompts_per_step == trained == prompts
        self._incremental: IncrementalSoftmax | None = None
        self._weights: list[tuple[slice, OutcomeWeights | None]] | None = None
        self._blocks: list[RunBlock] = []
        self._arrange()
        self._parameters = self._logits.origin()
        self._moments = fresh_state(first.optimizer, self._parameters)
        self._reference = self._logits.origin()
        self._penalty: torch.Tensor | None = None
        self._changes = ChangeMemory(self._parameters)

    def step(self, step: int) -> list[Mapping[str, float] | Exception]:
        every = self._options.exact_every
        is_exact = bool(every) and step % every == 0
        measures_entropy = self._options.entropy_change and not self._is_brief(step)
        # A copy, as the policy may change in place.
        before = self._exact_policy() if is_exact or measures_entropy else None
        policy = self._policy()
        if not self._is_brief(step):
            # Every block reads these; computing them once for the whole table is faster.
            _ = policy.entropies
        outcomes: list[dict[str, float] | Exception] = []
        for block in self._blocks:
            outcomes += self._step_block(block, step, policy[block.runs])
        if self._incremental is not None:
            self._incremental.forget()
        if before is not None:
            after = self._exact_policy()
            if is_exact:
                _add(
                    outcomes,
                    closed_form.quantities(
                        before, after, self._tables.correct, self._options.exact_k
                    ),
                )
                _add(outcomes, self._expected(before, after, step))
            if measures_entropy:
                change = after.entropies - before.entropies
                for block in self._blocks:
                    found = rollout_means("entropy/change", change[block.runs], block.trained_on)
                    _add(outcomes[block.runs], found)
        if self._runs[0].rollout.renews_reference(step):
            self._reference = self._parameters.clone()
        if self._runs[0].objective.renews_reference(step):
            self._penalty = self._parameters.clone()
        if self._runs[0].optimizer.resets(step):
            self._moments = fresh_state(self._runs[0].optimizer, self._parameters)
        return list(outcomes)

    def _expected(self, before: Policy, after: Policy, step: int) -> list[dict[str, float]]:
        """Return the mean effect of the step, to first order, and the step's share of signal.

        Empty if no closed form exists.
        """
        if self._weights is None:
            alike = equal_neighbours([stack_kind(run) for run in self._runs])
            self._weights = [
                (runs, closed_form_weights(self._runs[runs.start], self._options)) for runs in alike
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
            moves = rates[:, None, None] * moves
            changes = expected_changes(log_policy, correct, moves, temperature)
            columns = zip(*(values.tolist() for values in changes.values()), strict=True)
            ratios = signal_ratio(log_policy, after.log[runs], moves / temperature)
            found += [
                {**dict(zip(changes, column, strict=True)), **own}
                for column, own in zip(columns, ratios, strict=True)
            ]
        return found

    def keep(self, indexes: Sequence[int]) -> None:
        chosen = list(indexes)
        self._runs = [self._runs[i] for i in chosen]
        self._estimators = [self._estimators[i] for i in chosen]
        self._random_draws = [self._random_draws[i] for i in chosen]
        self._tables = self._tables[chosen]
        self._parameters = self._parameters[chosen]
        self._reference = self._reference[chosen]
        self._penalty = None if self._penalty is None else self._penalty[chosen]
        self._changes = self._changes[chosen]
        self._moments = {name: values[chosen] for name, values in self._moments.items()}
        self._arrange()

    def sampler(self, index: int) -> BanditSampler:
        own = slice(index, index + 1)
        logits = self._logits[own]
        return BanditSampler(logits.of(self._parameters[own])[0].clone(), logits.base[0])

    def change_norm(self, index: int) -> float:
        own = slice(index, index + 1)
        change = self._parameters[own].double() - self._logits[own].origin().double()
        return float(change.norm())

    def state(self, index: int) -> Mapping[str, bytes]:
        tensors = {
            _PARAMETERS: self._parameters,
            _REFERENCE: self._reference,
            _CHANGE: self._changes.last,
            _CHANGE_SUMS: self._changes.sums,
            **self._moments,
            **({} if self._penalty is None else {_PENALTY: self._penalty}),
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
        if _PENALTY in tensors:
            self._penalty = self._logits.origin() if self._penalty is None else self._penalty
            self._penalty[index] = tensors.pop(_PENALTY)
        # Checkpoints of earlier versions lack these.
        self._changes.last[index] = tensors.pop(_CHANGE, torch.tensor(0.0))
        self._changes.sums[index] = tensors.pop(_CHANGE_SUMS, torch.tensor(torch.nan))
        for block in self._blocks:
            block.changes = None
        for name, values in tensors.items():
            self._moments[name][index] = values
        self._estimators[index].load_state_dict(json.loads(files[_ESTIMATOR_FILE]))
        self._incremental = None

    def _arrange(self) -> None:
        """Divide the runs into blocks, and rebuild what depends on the set of runs."""
        self._logits = Logits(self._table, self._tables.logits)
        self._temperature = temperatures(self._runs)
        self._incremental = self._weights = None
        vars(self).pop("_base_rates", None)
        sizes = [run.group_size for run in self._runs]
        self._blocks = [RunBlock(runs, self._estimators[runs]) for runs in equal_neighbours(sizes)]

    @functools.cached_property
    def _base_rates(self) -> Float[Tensor, "runs prompts"]:
        """The exact solve rate of each prompt before training."""
        base = Policy.of(self._logits.base.double(), self._temperature)
        return solve_rates(base.log.exp(), self._tables.correct)

    def _exact_policy(self) -> Policy:
        """Return the current policy at the sampling temperature, as a snapshot."""
        return Policy.of(self._logits.of(self._parameters), self._temperature)

    def _policy(self) -> Policy:
        """Return the current policy; follow it incrementally if steps move few logits."""
        first = self._runs[0]
        optimizer = first.optimizer
        is_plain = isinstance(optimizer, Sgd) and optimizer.momentum == 0
        if not is_plain or not self._whole or self._table.rank or first.objective.needs_entropy:
            return self._exact_policy()
        if self._incremental is None:
            self._incremental = IncrementalSoftmax(
                self._parameters, self._logits.base, self._temperature
            )
        return self._incremental

    def _is_brief(self, step: int) -> bool:
        return step % self._options.metrics_every > 0

    def _step_block(
        self, block: RunBlock, step: int, policy: Policy
    ) -> list[dict[str, float] | Exception]:
        """Make one step of runs with the same group size."""
        brief = self._is_brief(step)
        runs, clock = self._runs[block.runs], StepClock(len(block))
        first, logits = runs[0], self._logits[block.runs]
        source = Source(
            runs,
            self._tables[block.runs],
            self._random_draws[block.runs],
            policy,
            lambda: Policy.of(
                logits.of(self._reference[block.runs]), self._temperature[block.runs]
            ),
            lambda: self._base_rates[block.runs],
            whole=self._whole,
            step=step,
        )
        try:
            collected = first.rollout.collect(source, first.prompts_per_step)
        except TrainingError as error:
            assert len(runs) == 1
            return [error]
        drawn = source.batch(block.read, brief=brief)
        clock.lap("time/rollout")
        advantages, infos, errors = block.advantages(drawn, collected)
        clock.lap("time/estimator")
        updates = Updates(
            runs,
            self._options,
            logits,
            self._parameters[block.runs],
            {name: values[block.runs] for name, values in self._moments.items()},
            step,
            penalty=None if self._penalty is None else self._penalty[block.runs],
        )
        block.trained_on = experience(source, collected, drawn, advantages)
        changes = self._block_changes(block)
        # A cosine also needs the step before.
        if is_tracked := not (brief and self._is_brief(step + 1)):
            changes.begin(policy, block.trained_on.actions)
        else:
            changes.skip()
        trained = updates.train(policy, block.trained_on, measure=is_tracked)
        clock.lap("time/update")
        if is_tracked:
            if brief:
                changes.end_brief(updates.drift)
                trained = [{} for _ in runs]
            else:
                moves, kl = changes.end(updates.drift)
                divergence = rollout_means(KL_STEP, kl, block.trained_on, otherwise=0.0)
                memory = peak_memory()
                trained = [
                    {**of_update, **move, **own, **of_actions, **memory}
                    for of_update, move, own, of_actions in zip(
                        trained,
                        moves,
                        divergence,
                        action_advantages(block.trained_on, logits.base.shape[-1]),
                        strict=True,
                    )
                ]
        metrics = stacked_rollout_metrics(
            drawn,
            advantages,
            infos,
            groups=collected.groups if len(runs) == 1 else None,
            outcomes=source.outcomes,
            judged=first.rollout.judged(drawn.rewards, source.outcomes),
            levels=source.levels,
            prompts=first.prompts_per_step,
            references=source.references,
            turns=collected.turns,
            last_turn=collected.last_turn,
            verifier_free=[run.estimator.verifier_free for run in runs],
            brief=brief,
        )
        for index, run in enumerate(runs):
            if run.control.base_samples:
                rate = float(self._base_rates[block.runs][index].mean())
                metrics[index] |= control_metrics(run, rate)
        errors |= updates.errors
        return [
            errors.get(index) or {**own, **of_update, "time/reward": 0.0, **clock.laps}
            for index, (own, of_update) in enumerate(zip(metrics, trained, strict=True))
        ]

    def _block_changes(self, block: RunBlock) -> BlockChanges:
        if block.changes is None:
            block.changes = BlockChanges(
                self._parameters[block.runs],
                self._logits[block.runs],
                self._temperature[block.runs],
                self._changes[block.runs],
            )
        return block.changes


def stack_kind(run: Run) -> tuple[int, str]:
    """Return what runs of one block and one call of the estimator have in common."""
    return run.group_size, str([run.estimator.identity(), run.control.identity()])


def _add(
    outcomes: Sequence[dict[str, float] | Exception], metrics: Sequence[Mapping[str, float]]
) -> None:
    """Add metrics to the outcomes of runs without an error."""
    for outcome, more in zip(outcomes, metrics, strict=True):
        if not isinstance(outcome, Exception):
            outcome |= more
