"""One training of the tiny model: rollouts, rewards, advantages, update."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from advsweep.backends.tiny.network import fuse
from advsweep.backends.tiny.randomness import Stream, numpy_generator, torch_generator
from advsweep.backends.tiny.sampling import Rollouts, TinySampler, sample
from advsweep.backends.tiny.update import Experience, PolicyUpdate
from advsweep.backends.tiny.vocabulary import Encoded, decode, encode
from advsweep.backends.tiny.weights import Weights, from_bytes, to_bytes
from advsweep.diagnostics import rollout_metrics
from advsweep.estimators import GroupBatch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from advsweep.backends.run import Run
    from advsweep.backends.tiny.backend import TinyBackend
    from advsweep.backends.tiny.model_config import TinyModel
    from advsweep.tasks.base import Problem, SymbolTask

WEIGHTS_FILE = "model.safetensors"
_OPTIMIZER_FILE = "optimizer.safetensors"
_ESTIMATOR_FILE = "estimator.json"


class Trainer:
    """The state of a training in memory; see `loop.Trainer`."""

    def __init__(
        self, run: Run, backend: TinyBackend, model: TinyModel, task: SymbolTask, base: Weights
    ) -> None:
        self._run = run
        self._model = model
        self._task = task
        self._estimator = copy.deepcopy(run.estimator)
        self._estimator.reset()
        # In one order, whoever made the base: the optimizer's moments are kept by position.
        self._weights = {name: base[name].clone() for name in sorted(base)}
        self._update = PolicyUpdate(run, backend, model, self._weights, base)

    def step(self, step: int) -> Mapping[str, float]:
        run = self._run
        source = _Source(run, self._task, self._weights, self._model, step)
        groups = run.rollout.collect(source, run.prompts_per_step)
        prompts, rollouts, rewards = source.take(groups)
        started = time.perf_counter()
        batch = _batch(rewards, rollouts, step, run.steps)
        advantages = self._estimator.compute(batch)
        estimated = time.perf_counter()
        update = self._update.step(
            step,
            Experience(
                prompts=prompts,
                rollouts=rollouts,
                group_size=run.group_size,
                advantages=advantages.values.flatten(),
                keep=advantages.keep.flatten(),
            ),
        )
        updated = time.perf_counter()
        return {
            **rollout_metrics(batch, advantages, generated=source.generated),
            **update,
            "time/rollout": source.rollout_seconds,
            "time/reward": source.reward_seconds,
            "time/estimator": estimated - started,
            "time/update": updated - estimated,
        }

    def sampler(self) -> TinySampler:
        return TinySampler(self._weights, self._model, self._task)

    def state(self) -> Mapping[str, bytes]:
        return {
            WEIGHTS_FILE: to_bytes(self._weights),
            _OPTIMIZER_FILE: to_bytes(self._update.state()),
            _ESTIMATOR_FILE: json.dumps(self._estimator.state_dict()).encode(),
        }

    def restore(self, files: Mapping[str, bytes]) -> None:
        with torch.no_grad():
            for name, weight in from_bytes(files[WEIGHTS_FILE]).items():
                self._weights[name].copy_(weight)
        self._update.restore(from_bytes(files[_OPTIMIZER_FILE]))
        self._estimator.load_state_dict(json.loads(files[_ESTIMATOR_FILE]))


class _Source:
    """Rollouts of one step, scored by the task; what a rollout policy draws from.

    Attributes:
        rollout_seconds, reward_seconds: what sampling and scoring took, in all.
    """

    def __init__(
        self, run: Run, task: SymbolTask, weights: Weights, model: TinyModel, step: int
    ) -> None:
        self._run = run
        self._task = task
        with torch.no_grad():
            self._network = fuse(weights, model)
        self._rng = numpy_generator(run.seed, Stream.PROMPTS, step)
        self._generator = torch_generator(run.seed, Stream.ROLLOUTS, step)
        self._problems: list[Problem] = []
        self._rollouts: list[Rollouts] = []
        self._rewards: list[Float[Tensor, "prompts rollouts"]] = []
        self.rollout_seconds = self.reward_seconds = 0.0

    def draw(self, prompts: int) -> Float[Tensor, "prompts rollouts"]:
        started = time.perf_counter()
        size = self._run.group_size
        problems = list(self._task.draw(prompts, self._rng))
        rollouts = sample(
            self._network,
            self._task,
            encode([problem.prompt for problem in problems], self._task),
            size,
            temperature=self._run.generation.temperature,
            generator=self._generator,
        )
        sampled = time.perf_counter()
        repeated = [problem for problem in problems for _ in range(size)]
        scores = self._task.score(repeated, decode(rollouts.tokens.numpy(), self._task))
        rewards = torch.from_numpy(scores).float().view(prompts, size)
        self._problems += problems
        self._rollouts.append(rollouts)
        self._rewards.append(rewards)
        self.rollout_seconds += sampled - started
        self.reward_seconds += time.perf_counter() - sampled
        return rewards

    @property
    def generated(self) -> int:
        """Rollouts sampled so far, whether trained on or not."""
        return sum(rewards.numel() for rewards in self._rewards)

    def take(
        self, groups: Int[Tensor, " groups"]
    ) -> tuple[Encoded, Rollouts, Float[Tensor, "groups rollouts"]]:
        """The prompts, rollouts and rewards of some groups."""
        texts = [self._problems[group].prompt for group in groups.tolist()]
        rewards = torch.cat(self._rewards)
        rows = torch.arange(rewards.numel()).view(rewards.shape)[groups].flatten()
        return (
            encode(texts, self._task),
            Rollouts.concatenate(self._rollouts)[rows],
            rewards[groups],
        )


def _batch(
    rewards: Float[Tensor, "groups rollouts"], rollouts: Rollouts, step: int, steps: int
) -> GroupBatch:
    """What the estimator is told of a step's rollouts."""
    lengths = rollouts.lengths.float()
    scored = ~rewards.isnan()
    solved = ((rewards == 1) & scored).sum(dim=1) / scored.sum(dim=1).clamp(min=1)
    return GroupBatch(
        rewards=rewards,
        mask=None if scored.all() else scored,
        lengths=lengths.view(rewards.shape),
        token_entropy=-(rollouts.log_probs.sum(dim=1) / lengths).view(rewards.shape),
        token_entropy_exact=(rollouts.entropies.sum(dim=1) / lengths).view(rewards.shape),
        solve_rates=solved,
        step=step,
        total_steps=steps,
    )
