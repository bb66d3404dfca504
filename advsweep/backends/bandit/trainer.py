"""One training of a bandit: rollouts, advantages, update in closed form."""

from __future__ import annotations

import copy
import json
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from advsweep.backends.advantages import compute_advantages
from advsweep.backends.bandit import exact, softmax
from advsweep.backends.bandit.parameters import Logits, fresh_state, moved
from advsweep.backends.bandit.source import Source
from advsweep.backends.randomness import Stream, numpy_generator
from advsweep.diagnostics import rollout_metrics
from advsweep.errors import TrainingError
from advsweep.objectives.base import LossInputs
from advsweep.tasks.base import Completions

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.backends.bandit.backend import BanditBackend
    from advsweep.backends.bandit.model_config import Table
    from advsweep.backends.run import Run
    from advsweep.tasks.bandit import BanditTask
    from advsweep.tasks.base import Problem

_WEIGHTS_FILE = "table.safetensors"
_ESTIMATOR_FILE = "estimator.json"
_PARAMETERS = "parameters"
_REFERENCE = "reference"


@dataclass(frozen=True)
class _Experience:
    """What one step trains on, group by group.

    Attributes:
        rows: the prompt of each group.
        actions: the sampled behaviours.
        log_probs: log π of those, when they were sampled.
        advantages: theirs.
        keep: the rollouts that take part in the update.
    """

    rows: Int[Tensor, " groups"]
    actions: Int[Tensor, "groups rollouts"]
    log_probs: Float[Tensor, "groups rollouts"]
    advantages: Float[Tensor, "groups rollouts"]
    keep: Bool[Tensor, "groups rollouts"]

    def __getitem__(self, part: slice) -> _Experience:
        return _Experience(**{name: value[part] for name, value in vars(self).items()})


class Trainer:
    """The state of a training in memory; see `loop.Trainer`."""

    def __init__(self, run: Run, backend: BanditBackend, table: Table, task: BanditTask) -> None:
        self._run = run
        self._backend = backend
        self._task = task
        self._estimator = copy.deepcopy(run.estimator)
        self._estimator.reset()
        self._logits = Logits(table, task.arms)
        self._parameters = torch.zeros(self._logits.shape)
        self._moments = fresh_state(run.optimizer, self._logits.shape)
        self._reference = torch.zeros(self._logits.shape)

    def step(self, step: int) -> Mapping[str, float]:
        run = self._run
        started = time.perf_counter()
        before = self._policy(self._parameters)
        source = Source(run, self._task, before, self._policy(self._reference), step)
        collected = run.rollout.collect(source, run.prompts_per_step)
        groups, drawn = collected.groups, source.batch()
        sampled = time.perf_counter()
        advantages = compute_advantages(self._estimator, drawn, collected)
        estimated = time.perf_counter()
        rows, actions = source.rows[groups], source.actions[groups]
        metrics: dict[str, float] = {}
        if advantages.keep.any():
            log_probs = before[rows].gather(1, actions)
            experience = _Experience(rows, actions, log_probs, advantages.values, advantages.keep)
            metrics = self._update(step, experience)
        updated = time.perf_counter()
        after = self._policy(self._parameters)
        if self._backend.entropy_change and advantages.keep.any():
            change = softmax.entropies(after) - softmax.entropies(before)
            per_rollout = change[rows][:, None].expand(actions.shape)[advantages.keep]
            metrics["entropy/change"] = per_rollout.double().mean().item()
        if self._backend.exact_every and step % self._backend.exact_every == 0:
            metrics |= exact.quantities(before, after, self._correct, self._backend.exact_k)
        if run.rollout.renews_reference(step):
            self._reference = self._parameters
        rollouts = rollout_metrics(
            drawn,
            advantages,
            groups=groups,
            outcomes=source.outcomes,
            levels=source.levels,
            prompts=run.prompts_per_step,
            references=source.references,
            verifier_free=self._estimator.verifier_free,
        )
        return {
            **rollouts,
            **metrics,
            "time/rollout": sampled - started,
            "time/reward": 0.0,
            "time/estimator": estimated - sampled,
            "time/update": updated - estimated,
        }

    def sampler(self) -> BanditSampler:
        return BanditSampler(self._logits.of(self._parameters))

    def state(self) -> Mapping[str, bytes]:
        tensors = {
            _PARAMETERS: self._parameters,
            # What is renewed is the parameters themselves; a file holds no tensor twice.
            _REFERENCE: self._reference.clone(),
            **self._moments,
        }
        return {
            _WEIGHTS_FILE: safetensors.torch.save(tensors),
            _ESTIMATOR_FILE: json.dumps(self._estimator.state_dict()).encode(),
        }

    def restore(self, files: Mapping[str, bytes]) -> None:
        tensors = safetensors.torch.load(files[_WEIGHTS_FILE])
        self._parameters = tensors.pop(_PARAMETERS)
        self._reference = tensors.pop(_REFERENCE)
        self._moments = tensors
        self._estimator.load_state_dict(json.loads(files[_ESTIMATOR_FILE]))

    @property
    def _correct(self) -> Bool[Tensor, "prompts behaviours"]:
        return torch.from_numpy(self._task.arms.correct)

    def _policy(
        self, parameters: Float[Tensor, "rows behaviours"]
    ) -> Float[Tensor, "prompts behaviours"]:
        """log π at the sampling temperature."""
        return softmax.log_policy(self._logits.of(parameters), self._run.generation.temperature)

    def _update(self, step: int, experience: _Experience) -> dict[str, float]:
        """Trains on every minibatch `inner_epochs` times; returns means over minibatches."""
        run, backend = self._run, self._backend
        warmup = min(1.0, step / max(1, run.optimizer.warmup_steps))
        lr = run.optimizer.lr * run.learning_rate_scale * warmup
        parts = np.array_split(np.arange(len(experience.rows)), backend.minibatches)
        minibatches = [experience[slice(p[0], p[-1] + 1)] for p in parts if len(p)]
        sums: dict[str, float] = defaultdict(float)
        updates = 0
        for minibatch in minibatches * backend.inner_epochs:
            if minibatch.keep.any():
                updates += 1
                for name, value in self._train_on(step, minibatch, lr).items():
                    sums[name] += value
        return {**{name: value / updates for name, value in sums.items()}, "optim/lr": lr}

    def _train_on(self, step: int, minibatch: _Experience, lr: float) -> dict[str, float]:
        """One step of the optimizer; the gradient goes through log π and H alone."""
        objective, optimizer = self._run.objective, self._run.optimizer
        used = minibatch.keep
        if objective.skips_exactly:
            used = used & (minibatch.advantages != 0)
        policy = self._policy(self._parameters)[minibatch.rows]
        present = policy.gather(1, minibatch.actions)
        log_probs = present[used][:, None].requires_grad_()
        spread = softmax.entropies(policy)[:, None].expand(present.shape)
        entropies = spread[used][:, None].requires_grad_()
        base = self._policy(torch.zeros_like(self._parameters))[minibatch.rows]
        kept = int(minibatch.keep.sum())
        output = objective.loss(
            LossInputs(
                log_probs=log_probs,
                old_log_probs=minibatch.log_probs[used][:, None],
                completion_mask=torch.ones_like(log_probs, dtype=torch.bool),
                advantages=minibatch.advantages[used],
                rollouts=kept,
                tokens=kept,
                reference_log_probs=base.gather(1, minibatch.actions)[used][:, None],
                entropies=entropies,
            )
        )
        _check(step, "loss", output.loss.item())
        slopes = torch.autograd.grad(output.loss, (log_probs, entropies), materialize_grads=True)
        of_log_probs, of_entropies = (
            torch.zeros(used.shape).masked_scatter(used, slope) for slope in slopes
        )
        temperature = self._run.generation.temperature
        by_group = softmax.score_gradient(policy, minibatch.actions, of_log_probs, temperature)
        if objective.needs_entropy:
            weights = of_entropies.sum(dim=1, keepdim=True)
            by_group = by_group + weights * softmax.entropy_gradient(policy, temperature)
        by_prompt = torch.zeros_like(self._logits.base).index_add_(0, minibatch.rows, by_group)
        gradient = self._logits.pull_back(by_prompt)
        norm = gradient.norm().item()
        _check(step, "gradient norm", norm)
        if 0 < optimizer.max_grad_norm < norm:
            gradient = gradient * (optimizer.max_grad_norm / norm)
        self._parameters, self._moments = moved(
            optimizer, self._parameters, gradient, self._moments, lr
        )
        metrics = {name: value.item() for name, value in output.metrics.items()}
        return {**metrics, "optim/grad_norm": norm}


class BanditSampler:
    """Answers problems with the numbers of behaviours."""

    def __init__(self, logits: Float[Tensor, "prompts behaviours"]) -> None:
        self._logits = logits

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        rows = torch.tensor([problem.gold["row"] for problem in problems])
        policy = softmax.log_policy(self._logits[rows], temperature)
        rng = numpy_generator(seed, Stream.EVALUATION)
        uniform = torch.from_numpy(rng.random((len(problems), n))).float()
        actions = softmax.sample(policy, uniform).tolist()
        return Completions(
            texts=[[str(action) for action in group] for group in actions],
            token_entropy=softmax.entropies(policy).double().numpy(),
        )


def _check(step: int, what: str, value: float) -> None:
    if not math.isfinite(value):
        raise TrainingError(
            f"step {step}: expected a finite {what}, got {value}; the table is left as it was; "
            f"a smaller optimizer.lr may help"
        )
