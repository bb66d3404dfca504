"""A backend without a language model: one solve rate per difficulty level.

Tests run the code around a training with it in milliseconds, faults included. It supports every
estimator, objective and rollout policy: a rollout is one token, "solved" or "not", and the rates
follow the gradient of the real loss with the real advantages.
"""

from __future__ import annotations

import copy
import ctypes
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from advsweep.backends import training_loop
from advsweep.backends.base import BATCH_FIELDS, Backend, Can, StackMember
from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.identity import hash_json
from advsweep.backends.reporter import Reporter
from advsweep.backends.step_changes import KL_STEP, ChangeMeter, peak_memory
from advsweep.backends.training_loop import Trainer, compute_advantages
from advsweep.components import option
from advsweep.diagnostics import rollout_metrics
from advsweep.errors import ConfigError, TrainingError
from advsweep.estimators.batch import GroupBatch
from advsweep.objectives.base import LossInputs
from advsweep.tasks.base import Completions, Problem, Split

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.estimators.batch import Advantages
    from advsweep.tasks.base import Sampler, Task

_STATE = "state.json"
_TABLE = "log_odds"


@dataclass(kw_only=True)
class Fake(Backend):
    """Trains a table of solve rates, at about a millisecond a step.

    It ignores the model and the optimizer of the run.
    """

    name: ClassVar[str] = "fake"
    provides: ClassVar[frozenset[str]] = BATCH_FIELDS - {
        *("solve_rates", "token_grad_norms", "token_kl")
    }
    supports: ClassVar[Can] = Can.REFERENCES | Can.SYSTEM_MESSAGES | Can.SHAPED_REWARDS
    optimizers: ClassVar[frozenset[str]] = frozenset({"adamw", "sgd"})

    learning_rate: float = option(0.5, gt=0, help="step along the gradient of the log-odds")
    step_seconds: float = option(0.0, ge=0, help="seconds to sleep in every step")
    fail_at: int = option(0, ge=0, help="step that raises an exception; 0: none")
    exit_at: int = option(0, ge=0, help="step that ends the process on the spot; 0: none")
    nan_at: int = option(0, ge=0, help="step whose loss is not a number; 0: none")
    hang_at: int = option(0, ge=0, help="step that never ends; 0: none")
    leave_at: int = option(0, ge=0, help="step that raises SystemExit; 0: none")
    crash_at: int = option(0, ge=0, help="step that reads where no memory is; 0: none")
    allocate_at: int = option(0, ge=0, identity=False, help="step that takes ever more memory")
    stack: int = option(
        1, ge=1, identity=False, help="runs of a task that are trained together at most"
    )

    def check(self, run: Run) -> None:
        """Refuses nothing."""

    def train(self, run: Run, directory: Path, reporter: Reporter) -> None:
        training_loop.train(run, _Trainer(run), directory, reporter)

    def stack_key(self, run: Run) -> str | None:
        return json.dumps(run.task.identity(), sort_keys=True) if self.stack > 1 else None

    def stack_size(self) -> int:
        return self.stack

    def train_together(self, members: Sequence[StackMember]) -> None:
        training_loop.train_together(
            members, lambda runs: RoundRobin([_Trainer(run) for run in runs])
        )

    def sampler(self, run: Run, directory: Path, step: int, task: Task | None = None) -> Sampler:
        trainer = _Trainer(run)
        trainer.check_levels(task or run.task)
        if step > 0:
            trainer.restore(Checkpoints(directory, run.identity).load(step).files)
        return trainer.sampler()

    def base_key(self, run: Run) -> str:
        material = {"backend": self.name, "revision": self.revision, "task": run.task.identity()}
        return hash_json(material)

    def export(self, run: Run, directory: Path, step: int, target: Path) -> None:
        raise ConfigError(
            f"backend: '{self.name}' trains a table of solve rates, which cannot be exported; "
            "expected a run of a backend that trains a language model"
        )


class RoundRobin:
    """A stack of independent trainers that make their steps in turn; see `TrainingStack`."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self._trainers = list(trainers)

    def step(self, step: int) -> Sequence[Mapping[str, float] | BaseException]:
        results: list[Mapping[str, float] | BaseException] = []
        for trainer in self._trainers:
            try:
                results.append(trainer.step(step))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it ends this run alone
                results.append(error)
        return results

    def sampler(self, index: int) -> Sampler:
        return self._trainers[index].sampler()

    def state(self, index: int) -> Mapping[str, bytes]:
        return self._trainers[index].state()

    def restore(self, index: int, files: Mapping[str, bytes]) -> None:
        self._trainers[index].restore(files)

    def keep(self, indexes: Sequence[int]) -> None:
        self._trainers = [self._trainers[index] for index in indexes]


class _Trainer:
    """Trains the log-odds of solving a problem of each level."""

    def __init__(self, run: Run) -> None:
        assert isinstance(run.backend, Fake)
        self._run = run
        self._backend = run.backend
        self._estimator = copy.deepcopy(run.estimator)
        self._estimator.reset()
        levels = sorted({p.level for split in Split for p in run.task.problems(split)})
        self._rows = {level: row for row, level in enumerate(levels)}
        self._base = torch.linspace(1.0, -2.0, len(levels), dtype=torch.float64)
        self._log_odds = self._base.clone()
        self._reference = self._base
        self._meter = ChangeMeter({_TABLE: self._log_odds})

    def step(self, step: int) -> Mapping[str, float]:
        run = self._run
        started = time.perf_counter()
        self._fault(step)
        source = _Source(run, self._rows, self._log_odds, self._reference, step)
        collected = run.rollout.collect(source, run.prompts_per_step)
        groups = collected.groups
        sampled = time.perf_counter()
        drawn = source.batch()
        advantages = compute_advantages(self._estimator, drawn, collected)
        estimated = time.perf_counter()
        losses: dict[str, float] = {KL_STEP: 0.0}
        before = self._log_odds.clone()
        if advantages.keep.any():
            solved, rows = source.verdicts[groups] == 1, source.rows[groups]
            losses |= self._update(step, rows, solved, advantages)
            kept, temperature = advantages.keep.sum(dim=1), run.generation.temperature
            kl = _divergences(before / temperature, self._log_odds / temperature)
            losses[KL_STEP] = ((kl[rows] * kept).sum() / kept.sum()).item()
        updated = time.perf_counter()
        if run.rollout.renews_reference(step):
            self._reference = self._log_odds.clone()
        metrics = rollout_metrics(
            drawn,
            advantages,
            groups=groups,
            verdicts=source.verdicts,
            judged=run.rollout.judged(drawn.rewards, source.verdicts),
            levels=source.levels,
            prompts=run.prompts_per_step,
            references=source.references,
            verifier_free=self._estimator.verifier_free,
        )
        return {
            **metrics,
            **losses,
            **self._meter.measure(),
            **peak_memory(),
            "time/rollout": sampled - started,
            "time/reward": 0.0,
            "time/estimator": estimated - sampled,
            "time/update": updated - estimated,
        }

    def _update(
        self,
        step: int,
        rows: Tensor,
        solved: Tensor,
        advantages: Advantages,
    ) -> dict[str, float]:
        """Make one step along the gradient of the objective; return the loss's metrics."""
        objective, temperature = self._run.objective, self._run.generation.temperature
        used = advantages.keep
        if objective.skips_exactly:
            used = used & advantages.nonzero

        def log_probs(log_odds: Tensor) -> Tensor:
            return _log_probs(log_odds[rows] / temperature, solved)[used][:, None]

        log_odds = self._log_odds.clone().requires_grad_()
        entropies = _entropies(log_odds / temperature)[rows, None].expand_as(solved)
        old = log_probs(self._log_odds)
        kept = int(advantages.keep.sum())
        output = objective.loss(
            LossInputs(
                log_probs=log_probs(log_odds),
                old_log_probs=old,
                completion_mask=torch.ones_like(old, dtype=torch.bool),
                advantages=advantages.values[used].to(old),
                rollouts=kept,
                tokens=kept,
                reference_log_probs=log_probs(self._base),
                entropies=entropies[used][:, None],
            )
        )
        loss = output.loss * torch.nan if step == self._backend.nan_at else output.loss
        (gradient,) = torch.autograd.grad(loss, log_odds)
        norm = gradient.norm().item()
        if not np.isfinite([loss.item(), norm]).all():
            raise TrainingError(
                f"step {step}: expected a finite loss and gradient, got a loss of "
                f"{loss.item():g} and a gradient norm of {norm:g}"
            )
        lr = self._backend.learning_rate * self._run.learning_rate_scale
        self._log_odds -= lr * gradient
        return {
            **{name: value.item() for name, value in output.metrics.items()},
            "optim/grad_norm": norm,
            "optim/lr": lr,
        }

    def check_levels(self, task: Task) -> None:
        """Refuse problems of levels without a solve rate in the run's table."""
        unknown = {problem.level for problem in task.problems(Split.HELD_OUT)} - set(self._rows)
        if unknown:
            raise ConfigError(
                f"task: expected problems of the levels {sorted(self._rows)} that the run was "
                f"trained on, got levels {sorted(unknown)} of '{task.label}'"
            )

    def sampler(self) -> Sampler:
        return _TableSampler(self._rows, self._log_odds.clone())

    def state(self) -> Mapping[str, bytes]:
        state = {
            "log_odds": self._log_odds.tolist(),
            "reference": self._reference.tolist(),
            "estimator": self._estimator.state_dict(),
            "change": {name: own.tolist() for name, own in self._meter.state().items()},
        }
        return {_STATE: json.dumps(state).encode()}

    def restore(self, files: Mapping[str, bytes]) -> None:
        state = json.loads(files[_STATE])
        self._log_odds.copy_(torch.tensor(state["log_odds"], dtype=torch.float64))
        self._reference = torch.tensor(state["reference"], dtype=torch.float64)
        self._estimator.load_state_dict(state["estimator"])
        change = state.get("change", {}).items()
        self._meter.restore({n: torch.tensor(own, dtype=torch.float64) for n, own in change})

    def _fault(self, step: int) -> None:
        backend = self._backend
        time.sleep(backend.step_seconds)
        if step == backend.fail_at:
            raise RuntimeError(f"step {step} fails, as the fake backend was told")
        if step == backend.exit_at:
            os._exit(70)
        if step == backend.leave_at:
            raise SystemExit(3)
        if step == backend.crash_at:
            ctypes.string_at(0)
        while step == backend.hang_at:
            time.sleep(1)
        taken = []
        while step == backend.allocate_at:
            taken.append(b"x" * 2**23)
            time.sleep(0.01)


class _Source:
    """Draws verdicts with the current solve rates; rollout policies draw from it.

    Attributes:
        step: the training step, counted from 1.
        rows: row of each group's problem in the table.
        verdicts: those of the verifier, from which the rewards are computed.
        references: number of rollouts of the reference so far.
    """

    def __init__(
        self,
        run: Run,
        rows: Mapping[int, int],
        log_odds: Tensor,
        reference: Tensor,
        step: int,
    ) -> None:
        self._run = run
        self._rows = rows
        self._log_odds = log_odds / run.generation.temperature
        self._reference = reference / run.generation.temperature
        self._rng = np.random.default_rng([run.seed, step])
        self._reference_rng = np.random.default_rng([run.seed, step, 1])
        self._problems: list[Problem] = []
        self._rewards = torch.empty(0, run.group_size)
        self.verdicts = torch.empty(0, run.group_size)
        self.step = step
        self.rows = torch.empty(0, dtype=torch.int64)
        self.references = 0

    def draw(self, prompts: int) -> Tensor:
        problems = self._run.task.draw(prompts, self._rng)
        rows = torch.tensor([self._rows[problem.level] for problem in problems])
        verdicts = self._verdicts(self._log_odds[rows], self._rng)
        rewards = self._shape(problems, verdicts)
        self._problems += problems
        self.rows = torch.cat((self.rows, rows))
        self.verdicts = torch.cat((self.verdicts, verdicts))
        self._rewards = torch.cat((self._rewards, rewards))
        return rewards

    def draw_references(self, groups: Tensor) -> Tensor:
        verdicts = self._verdicts(self._reference[self.rows[groups]], self._reference_rng)
        self.references += verdicts.numel()
        return self._shape([self._problems[group] for group in groups.tolist()], verdicts)

    @property
    def levels(self) -> list[int]:
        """Difficulty level of each group drawn."""
        return [problem.level for problem in self._problems]

    def batch(self) -> GroupBatch:
        """Return the groups drawn, as the estimator sees them."""
        rewards, log_odds = self._rewards, self._log_odds[self.rows]
        shaped = self._run.task.is_shaped

        def spread(per_group: Tensor) -> Tensor:
            return per_group[:, None].expand_as(rewards).float()

        return GroupBatch(
            rewards=rewards,
            lengths=torch.ones_like(rewards),
            token_entropy=-_log_probs(log_odds, self.verdicts == 1).float(),
            token_entropy_exact=spread(_entropies(log_odds)),
            token_entropies=spread(_entropies(log_odds))[..., None],
            self_certainty=spread(_certainties(log_odds)),
            solve_rates=self.verdicts.mean(dim=1) if shaped else None,
            # A wrong rollout has an empty text, without an answer.
            answered=self.verdicts == 1,
            truncated=torch.zeros_like(rewards, dtype=torch.bool),
            prompt_ids=tuple(problem.id for problem in self._problems),
            step=self.step,
            total_steps=self._run.total_steps,
        )

    def _shape(self, problems: Sequence[Problem], verdicts: Tensor) -> Tensor:
        """Return the rewards of verdicts."""
        if not self._run.task.is_shaped:
            return verdicts
        texts = [
            _write(problem, right)
            for problem, of_group in zip(problems, verdicts.tolist(), strict=True)
            for right in of_group
        ]
        flat = verdicts.double().flatten().numpy()
        rewards = self._run.task.rewards(texts, flat, np.ones(len(texts)))
        return torch.from_numpy(rewards).to(verdicts).view(verdicts.shape)

    def _verdicts(self, log_odds: Tensor, rng: np.random.Generator) -> Tensor:
        uniform = torch.from_numpy(rng.random((len(log_odds), self._run.group_size)))
        return (uniform < torch.sigmoid(log_odds)[:, None]).float()


@dataclass(frozen=True)
class _TableSampler:
    """Answers with a problem's known solution at the solve rate of its level."""

    rows: Mapping[int, int]
    log_odds: Tensor

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        log_odds = self.log_odds / temperature
        rows = torch.tensor([self.rows[problem.level] for problem in problems])
        uniform = torch.from_numpy(np.random.default_rng(seed).random((len(problems), n)))
        solved = (uniform < torch.sigmoid(log_odds)[rows, None]).tolist()
        texts = [
            [_write(problem, right) for right in verdicts]
            for problem, verdicts in zip(problems, solved, strict=True)
        ]
        return Completions(texts=texts, token_entropy=_entropies(log_odds)[rows].numpy())


def _write(problem: Problem, right: float) -> str:
    """Return the text of a rollout: the known solution, or nothing."""
    return str(problem.reference["solution"]) if right else ""


# Policies of one token, "solved" or not, given by the log-odds of "solved".


def _log_probs(log_odds: Tensor, solved: Tensor) -> Tensor:
    """Return log π of each rollout's single token."""
    return logsigmoid(torch.where(solved, log_odds[:, None], -log_odds[:, None]))


def _entropies(log_odds: Tensor) -> Tensor:
    """Return the exact entropies, in nats."""
    rates = torch.sigmoid(log_odds)
    return -rates * logsigmoid(log_odds) - (1 - rates) * logsigmoid(-log_odds)


def _certainties(log_odds: Tensor) -> Tensor:
    """Return KL(uniform ‖ π), in nats."""
    return -(logsigmoid(log_odds) + logsigmoid(-log_odds)) / 2 - math.log(2)


def _divergences(old: Tensor, new: Tensor) -> Tensor:
    """Return KL(old ‖ new), in nats."""
    of_solved = torch.sigmoid(old) * (logsigmoid(old) - logsigmoid(new))
    of_failed = torch.sigmoid(-old) * (logsigmoid(-old) - logsigmoid(-new))
    return (of_solved + of_failed).clamp(min=0)
