"""One training of a table on the task `walks`: episodes, advantages, update, exact values."""

from __future__ import annotations

import copy
import functools
import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import safetensors.torch
import torch
from torch import Tensor

from advsweep.backends.bandit.bandits import PARAMETERS, PENALTY, REFERENCE, State, fresh_moments
from advsweep.backends.bandit.walk_policy import Chart, WalkPolicy, entropies, ways_of
from advsweep.backends.bandit.walk_sampling import (
    Rollouts,
    WalkSampler,
    at_ways,
    divergences,
    sample,
)
from advsweep.backends.bandit.walk_update import WalkExperience, WalkUpdate
from advsweep.backends.seeded_source import SampledTokens, SeededSource
from advsweep.backends.step_changes import KL_STEP, ChangeMeter, peak_memory
from advsweep.backends.training_loop import (
    base_solve_rate,
    collect_and_weigh,
)
from advsweep.names import ENTROPY_CHANGE, UPDATE_SECONDS
from advsweep.tasks.base import Split
from advsweep.tasks.walk_episodes import parse_prompts
from advsweep.tasks.walks import Walks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxtyping import Float, Int

    from advsweep.backends.bandit.options import BanditOptions
    from advsweep.backends.bandit.walk_policy import Logits
    from advsweep.backends.base import Run
    from advsweep.tasks.base import Problem

_WEIGHTS_FILE = "table.safetensors"
_ESTIMATOR_FILE = "estimator.json"
_CHANGE_FILE = "change.safetensors"


class WalkTrainer:
    """The state of a training in memory; see `training_loop.Trainer`.

    Attributes:
        state: the table, the optimizer's moments, and tables that references were renewed to.
    """

    def __init__(self, run: Run, options: BanditOptions) -> None:
        assert isinstance(run.task, Walks)
        self.run = run
        self.task = run.task
        self.ways = ways_of(run.task.map_seed)
        self._options = options
        # A copy, as planned runs share their components and each training has a memory.
        self._estimator = copy.deepcopy(run.estimator)
        self._estimator.reset()
        parameters = self.ways.base[None].clone()
        self.weights: State = {
            PARAMETERS: parameters,
            **fresh_moments(run.optimizer, parameters),
        }
        self._update = WalkUpdate(run, options, self.ways, self.weights)
        self._meter = ChangeMeter({PARAMETERS: parameters})

    @property
    def logits(self) -> Logits:
        """The table in training, which updates change in place."""
        return self.weights[PARAMETERS][0]

    def table(self, name: str) -> Logits:
        """Return a table that was renewed, or that of the base policy."""
        return self.weights[name][0] if name in self.weights else self.ways.base

    def policy(self, logits: Logits) -> WalkPolicy:
        """Return the policy of a table at the sampling temperature."""
        return WalkPolicy(self.ways, logits, self.run.generation.temperature)

    def step(self, step: int) -> Mapping[str, float]:
        run = self.run
        every = self._options.exact_every
        is_exact = every > 0 and step % every == 0
        before = self._exact_sums() if is_exact else None
        source = _Source(self, step)
        collected, advantages, metrics = collect_and_weigh(
            run, source, self._estimator, self.base_rate
        )
        started = updated = time.perf_counter()
        update: dict[str, float] = {KL_STEP: 0.0}
        if advantages.keep.any():
            experience = WalkExperience(
                rollouts=source.rollouts()[collected.rows(run.drawn_size)],
                advantages=advantages.values.flatten(0, 1),
                keep=advantages.keep.flatten(),
                counted=advantages.in_denominators.flatten(),
            )
            update |= self._update.step(step, experience, self.table(PENALTY))
            # The clock stops here: what only measures the update is no part of its time.
            updated = time.perf_counter()
            update |= self._changes(experience)
        exact = {} if before is None else self._exact_metrics(before, self._exact_sums())
        self._renew(step)
        return {
            **metrics,
            **update,
            **self._meter.measure(),
            **exact,
            **peak_memory(),
            UPDATE_SECONDS: updated - started,
        }

    @functools.cached_property
    def base_rate(self) -> float:
        """The base's solve rate, for a control that needs it."""
        return base_solve_rate(self.run, WalkSampler(self.ways.base, self.ways, self.task))

    @torch.no_grad()
    def _changes(self, experience: WalkExperience) -> dict[str, float]:
        """Return what the step did to the policy at its own turns; the KL is exact."""
        rollouts = experience.rollouts[experience.keep.nonzero()[:, 0]]
        log = self.policy(self.logits).log(rollouts.positions)
        kl = divergences(rollouts.log, log)[rollouts.mask]
        metrics = {KL_STEP: kl.mean().item()}
        if self._options.entropy_change:
            change = (entropies(log) - rollouts.entropies).where(rollouts.mask, 0.0).sum(dim=1)
            metrics[ENTROPY_CHANGE] = (change / rollouts.lengths).double().mean().item()
        return metrics

    def _renew(self, step: int) -> None:
        """Renew the references and the moments that are due after a step."""
        run = self.run
        parameters = self.weights[PARAMETERS]
        if run.rollout.renews_reference(step):
            self.weights[REFERENCE] = parameters.clone()
        if run.objective.renews_reference(step):
            self.weights[PENALTY] = parameters.clone()
        if run.optimizer.resets(step):
            self.weights.update(fresh_moments(run.optimizer, parameters))

    @functools.cached_property
    def _held_out(self) -> Chart:
        """The chart of the held-out problems, whose rates and entropies are exact."""
        return self.chart(self.task.problems(Split.HELD_OUT))

    def chart(self, problems: Iterable[Problem]) -> Chart:
        """Return the chart of problems."""
        prompts, _ = parse_prompts([problem.prompt for problem in problems])
        return Chart.of(self.ways, prompts)

    @torch.no_grad()
    def values(self, chart: Chart) -> Float[Tensor, "turns+1 prompts states"]:
        """Return the exact mean reward still to come, by the number of turns that are left."""
        (weight,) = self.task.part_weights
        gains = weight * chart.solves.double() + self.task.stop_reward * chart.passes
        log = self.policy(self.logits).log(chart.positions)
        return chart.to_come(log, gains - self.task.turn_cost, self.task.max_turns)

    @torch.no_grad()
    def _exact_sums(self) -> tuple[Float[Tensor, " problems"], Float[Tensor, " problems"]]:
        """Return the solve rate of each held-out problem, and the entropy of its episodes."""
        chart = self._held_out
        turns = self.task.max_turns
        log = self.policy(self.logits).log(chart.positions)
        rates = chart.at_start(chart.to_come(log, chart.solves.double(), turns)).clamp(0, 1)
        of_turn = entropies(log).double()[..., None]
        return rates, chart.at_start(chart.to_come(log, of_turn, turns))

    def _exact_metrics(
        self, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]
    ) -> dict[str, float]:
        rates, entropy = after
        metrics = {
            f"exact/pass@{k}": (1 - (1 - rates) ** k).mean().item() for k in self._options.exact_k
        }
        return {
            **metrics,
            "exact/pass@1_change": (rates - before[0]).mean().item(),
            "exact/entropy": entropy.mean().item(),
            "exact/entropy_change": (entropy - before[1]).mean().item(),
        }

    def sampler(self) -> WalkSampler:
        return WalkSampler(self.logits.clone(), self.ways, self.task)

    def change_norm(self) -> float:
        """Return the norm of the change of the table since the base policy."""
        return float((self.logits.double() - self.ways.base.double()).norm())

    def state(self) -> Mapping[str, bytes]:
        # No generators: all randomness of a step follows from the seed and its number.
        files = {
            _WEIGHTS_FILE: safetensors.torch.save(self.weights),
            _ESTIMATOR_FILE: json.dumps(self._estimator.state_dict()).encode(),
        }
        change = self._meter.state()
        if change:
            files[_CHANGE_FILE] = safetensors.torch.save(change)
        return files

    def restore(self, files: Mapping[str, bytes]) -> None:
        for name, values in safetensors.torch.load(files[_WEIGHTS_FILE]).items():
            if name in self.weights:
                self.weights[name].copy_(values)
            else:
                self.weights[name] = values
        self._estimator.load_state_dict(json.loads(files[_ESTIMATOR_FILE]))
        change = files.get(_CHANGE_FILE)
        self._meter.restore({} if change is None else safetensors.torch.load(change))


class _Source(SeededSource):
    """Draws groups of one step and scores them."""

    def __init__(self, trainer: WalkTrainer, step: int) -> None:
        super().__init__(trainer.run, step, trainer.base_rate)
        self._trainer = trainer
        self._rollouts: list[Rollouts] = []

    def _draw(self, problems: list[Problem]) -> Float[Tensor, "prompts rollouts"]:
        repeated = self._repeated(problems)
        rollouts = self._sample(self._trainer.logits, repeated, self._generator)
        scores = self._score(repeated, rollouts.answers)
        self._rollouts.append(rollouts)
        return self._add(problems, scores, self._statistics_of(problems, rollouts))

    def _anchor_log_probs(
        self, problems: Sequence[Problem], rollouts: SampledTokens
    ) -> Float[Tensor, "rows tokens"]:
        assert isinstance(rollouts, Rollouts)
        anchor = self._trainer.policy(self._trainer.table(PENALTY))
        return at_ways(anchor.log(rollouts.positions), rollouts.ways)

    def draw_references(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        problems = self._repeated(self._problems_of(groups))
        logits = self._trainer.table(REFERENCE)
        rollouts = self._sample(logits, problems, self._reference_generator)
        self.references += len(problems)
        return self._score(problems, rollouts.answers).rewards.view(len(groups), -1)

    def draw_greedy(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, " groups"]:
        problems = self._problems_of(groups)
        rollouts = self._sample(self._trainer.logits, problems, None)
        self.references += len(problems)
        return self._score(problems, rollouts.answers).rewards

    def draw_values(self, episodes: int, rollouts: int) -> None:
        """Compute the values before the turns of episodes; they are exact, and cost no rollout."""
        size = self._run.drawn_size
        drawn = self.rollouts()
        to_come = self._trainer.values(self._trainer.chart(self._problems))
        turns = torch.arange(drawn.ways.shape[1])
        owners = torch.arange(len(drawn.lengths)) // size
        exact = to_come[len(turns) - turns, owners[:, None], drawn.positions.states]
        is_measured = (torch.arange(len(owners)) % size < episodes)[:, None] & drawn.mask
        values = exact.float().where(is_measured, torch.nan)
        self._values = values.view(len(self._problems), size, -1)

    def rollouts(self) -> Rollouts:
        """Return all rollouts drawn, group by group."""
        return Rollouts.join(self._rollouts)

    def _sample(
        self, logits: Logits, problems: Sequence[Problem], generator: torch.Generator | None
    ) -> Rollouts:
        """Sample an episode of each problem; the likeliest one without a generator."""
        trainer = self._trainer
        prompts = [problem.prompt for problem in problems]
        return sample(trainer.policy(logits), trainer.ways, trainer.task, prompts, generator)
