"""Trains bandits of several runs together, as one tensor [runs, prompts, behaviours].

A run's numbers do not depend on the other runs: every operation on several runs computes row
by row, and a single run is a stack of one.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import safetensors.torch
import torch

from advsweep.backends.bandit.bandits import CHANGE, CHANGE_SUMS, PARAMETERS, PENALTY, Bandits
from advsweep.backends.bandit.sampling import BanditSampler, Source
from advsweep.backends.bandit.tables import Policy, exact_metrics
from advsweep.backends.bandit.update import (
    Before,
    Experience,
    Updates,
    action_advantages,
    rollout_means,
)
from advsweep.backends.step_changes import KL_STEP, peak_memory
from advsweep.backends.training_loop import compute_advantages, step_rollouts
from advsweep.diagnostics import stacked_rollout_metrics
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

if TYPE_CHECKING:
    from advsweep.backends.bandit.options import BanditOptions
    from advsweep.backends.base import Run
    from advsweep.estimators.batch import GroupBatch

_WEIGHTS_FILE = "table.safetensors"
_ESTIMATOR_FILE = "estimator.json"

# The metrics of each run's step, or the error that ends the run.
StepResults = list[dict[str, float] | Exception]


class BanditStack:
    """The state of several trainings in memory; see `training_loop.TrainingStack`.

    Args:
        runs: runs with the same `stack_key`.

    Attributes:
        bandits: what the runs train.
    """

    def __init__(self, runs: Sequence[Run], options: BanditOptions) -> None:
        self._options = options
        self.bandits = Bandits(runs, options)
        # Copies, as planned runs share their components and each training has its own memory.
        self._estimators = [copy.deepcopy(run.estimator) for run in runs]
        for estimator in self._estimators:
            estimator.reset()

    def step(self, step: int) -> StepResults:
        before = None
        if self._is_exact(step) or self._measures_entropy(step):
            before = self.bandits.policy()
        step_results, experience = self._train(step)
        if before is not None and experience is not None:
            metrics = self._policy_metrics(step, before, experience)
            for step_result, of_run in zip(step_results, metrics, strict=True):
                if not isinstance(step_result, Exception):
                    step_result |= of_run
        self.bandits.renew(step)
        return step_results

    def _is_brief(self, step: int) -> bool:
        """Whether a step has only the metrics that cost no pass over the table."""
        return step % self._options.metrics_every > 0

    def _is_exact(self, step: int) -> bool:
        """Whether a step has exact quantities."""
        every = self._options.exact_every
        return every > 0 and step % every == 0

    def _measures_entropy(self, step: int) -> bool:
        """Whether a step measures what it does to the entropies."""
        return self._options.entropy_change and not self._is_brief(step)

    def _policy_metrics(
        self, step: int, before: Policy, experience: Experience
    ) -> list[dict[str, float]]:
        """Return the metrics of each run that compare its policies before and after a step."""
        after = self.bandits.policy()
        metrics: list[dict[str, float]] = [{} for _ in self.bandits.runs]
        if self._is_exact(step):
            correct = self.bandits.tables.correct
            metrics = exact_metrics(before, after, correct, self._options.exact_k)
        if self._measures_entropy(step):
            change = after.entropies - before.entropies
            metrics = _joined(metrics, rollout_means(ENTROPY_CHANGE, change, experience))
        return metrics

    def _train(self, step: int) -> tuple[StepResults, Experience | None]:
        """Draw, estimate and update; return the results and the data of the step."""
        bandits = self.bandits
        brief = self._is_brief(step)
        first = bandits.runs[0]
        started = time.perf_counter()
        policy = bandits.follow()
        source = Source(bandits, policy, step)
        # Policies that may fail or drop groups train alone: a stack's runs have equal shapes.
        try:
            collected = first.rollout.collect(source, first.prompts_per_step)
        except TrainingError as error:
            assert len(bandits.runs) == 1
            return [error], None
        read = frozenset().union(*(one.needs | one.uses for one in self._estimators))
        drawn = source.batch(read, brief=brief)
        complete = time.perf_counter()
        advantages, infos, errors = self._advantages(drawn, collected)
        weighed = time.perf_counter()
        experience = _experience(source, collected, drawn, advantages)
        updates = Updates(bandits, step, bandits.anchor())
        # A cosine also needs the step before.
        is_tracked = not (brief and self._is_brief(step + 1))
        before = Before(bandits, policy, experience.actions) if is_tracked else None
        trained = updates.train(policy, experience)
        updated = time.perf_counter()
        if before is not None:
            trained = _joined(trained, self._change_metrics(before, updates, experience))
        if brief:
            # Unknown for every run, so that a run has the same numbers in any stack.
            bandits.weights[CHANGE_SUMS][:, 0 if is_tracked else slice(None)] = torch.nan
            trained = [{} for _ in bandits.runs]
        metrics = stacked_rollout_metrics(
            step_rollouts(bandits.runs, source, collected, drawn, advantages),
            infos,
            verifier_free=[run.estimator.verifier_free for run in bandits.runs],
            brief=brief,
        )
        times = {
            REWARD_SECONDS: 0.0,
            ROLLOUT_SECONDS: (complete - started) / len(bandits.runs),
            ESTIMATOR_SECONDS: (weighed - complete) / len(bandits.runs),
            UPDATE_SECONDS: (updated - weighed) / len(bandits.runs),
        }
        results = [{**of_run, **times} for of_run in _joined(metrics, trained)]
        for index, run in enumerate(bandits.runs):
            if run.control.base_samples:
                results[index]["control/rate"] = float(bandits.base_rates[index].mean())
        failed = errors | updates.errors
        step_results: StepResults = [
            failed.get(index, result) for index, result in enumerate(results)
        ]
        return step_results, experience

    def _change_metrics(
        self, before: Before, updates: Updates, experience: Experience
    ) -> list[dict[str, float]]:
        """Return the metrics of each run of what the step's updates have changed."""
        changes, kl = before.compare(updates.drifted)
        of_kl = rollout_means(KL_STEP, kl, experience, otherwise=0.0)
        of_actions = action_advantages(experience, self.bandits.logits.base.shape[-1])
        memory = peak_memory()
        return [{**of_run, **memory} for of_run in _joined(changes, of_kl, of_actions)]

    def _advantages(
        self, drawn: GroupBatch, collected: Collected
    ) -> tuple[Advantages, list[Mapping[str, float]], dict[int, Exception]]:
        """Compute the advantages of the groups that a step trains on.

        Returns:
            The advantages, the info of each run's estimator, and the errors of runs whose
            estimator refuses their groups, by number; their advantages are 0.
        """
        computed: list[Advantages] = []
        errors: dict[int, Exception] = {}
        runs = len(self.bandits.runs)
        per_run = len(collected.groups) // runs
        for index, estimator in enumerate(self._estimators):
            groups = drawn
            chosen = collected
            if runs > 1:
                rows = slice(per_run * index, per_run * (index + 1))
                inputs = {name: value[rows] for name, value in collected.inputs.items()}
                groups = drawn.select(rows)
                chosen = Collected(torch.arange(per_run), **inputs)
            try:
                advantages = compute_advantages(estimator, groups, chosen)
            except BatchError as error:
                errors[index] = error
                zeros = torch.zeros_like(groups.select(chosen.groups, chosen.rollouts).rewards)
                advantages = Advantages(values=zeros, keep=zeros.bool())
            if advantages.per_token:
                # A rollout is one token.
                advantages = replace(advantages, values=advantages.values[..., 0])
            computed.append(advantages)
        joined = Advantages(
            values=torch.cat([advantages.values for advantages in computed]),
            keep=torch.cat([advantages.keep for advantages in computed]),
        )
        return joined, [advantages.info for advantages in computed], errors

    def keep(self, indexes: Sequence[int]) -> None:
        self._estimators = [self._estimators[index] for index in indexes]
        self.bandits.keep(indexes)

    def sampler(self, index: int) -> BanditSampler:
        bandits = self.bandits
        logits = bandits.logits.of(bandits.weights[PARAMETERS])[index]
        return BanditSampler(logits.clone(), bandits.logits.base[index])

    def change_norm(self, index: int) -> float:
        """Return the norm of the change of a run's parameters since its base policy."""
        origin = self.bandits.logits.origin()[index].double()
        return float((self.bandits.weights[PARAMETERS][index].double() - origin).norm())

    def state(self, index: int) -> Mapping[str, bytes]:
        # Copies: safetensors would write the whole stack that a view belongs to.
        weights = {name: values[index].clone() for name, values in self.bandits.weights.items()}
        memory = self._estimators[index].state_dict()
        return {
            _WEIGHTS_FILE: safetensors.torch.save(weights),
            _ESTIMATOR_FILE: json.dumps(memory).encode(),
        }

    def restore(self, index: int, files: Mapping[str, bytes]) -> None:
        bandits = self.bandits
        # Checkpoints of earlier versions lack these.
        missing = {CHANGE: torch.tensor(0.0), CHANGE_SUMS: torch.tensor(torch.nan)}
        for name, values in {**missing, **safetensors.torch.load(files[_WEIGHTS_FILE])}.items():
            if name == PENALTY:
                bandits.weights.setdefault(name, bandits.logits.origin())
            bandits.weights[name][index] = values
        self._estimators[index].load_state_dict(json.loads(files[_ESTIMATOR_FILE]))


def _joined(*metrics: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the metrics of each run, from several lists of the metrics of all runs."""
    joined: list[dict[str, float]] = []
    for of_run in zip(*metrics, strict=True):
        joined.append({name: value for part in of_run for name, value in part.items()})
    return joined


def _experience(
    source: Source, collected: Collected, drawn: GroupBatch, advantages: Advantages
) -> Experience:
    """Return the data that a step trains on.

    Args:
        collected: the groups kept; some of those drawn only if they are of one run.
        drawn: all groups drawn.
    """
    assert drawn.token_entropy is not None
    rows = source.rows
    actions = source.actions
    log_probs = -drawn.token_entropy.view(actions.shape)
    groups = collected.groups
    rollouts = collected.rollouts
    if rollouts is not None or len(groups) < len(drawn.rewards):
        rows = groups[None] if rows is None else rows[:, groups]
        actions = actions[:, groups]
        log_probs = log_probs[:, groups]
    if rollouts is not None:
        actions = actions.gather(2, rollouts[None])
        log_probs = log_probs.gather(2, rollouts[None])
    return Experience(
        rows=rows,
        actions=actions,
        log_probs=log_probs,
        advantages=advantages.values.view(actions.shape),
        keep=advantages.keep.view(actions.shape),
    )
