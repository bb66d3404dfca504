"""The loop around the steps of a training, and what every kind of step has in common.

A backend gives the loop a `Trainer`, which makes single steps. The loop resumes, evaluates, writes
checkpoints and stops. `train` runs one training; `train_together` runs a stack of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from advsweep.backends.base import StackMember
from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.randomness import Stream, numpy_generator
from advsweep.config.settings import Match
from advsweep.diagnostics import rollout_metrics
from advsweep.errors import ConfigError
from advsweep.estimators.batch import Advantages, GroupBatch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from advsweep.backends.base import Reporter, Run
    from advsweep.estimators.base import Estimator
    from advsweep.rollouts.base import Collected
    from advsweep.tasks.base import Problem, Sampler


class Trainer(Protocol):
    """The state of a training in memory: weights, moments, the estimator's memory."""

    def step(self, step: int) -> Mapping[str, float]:
        """Make one training step (counted from 1) and return its metrics.

        Raises:
            TrainingError: a loss or a gradient is not finite; the message names the step.
        """
        ...

    def sampler(self) -> Sampler:
        """Return the current weights, for an evaluation; sampling does not change the training."""
        ...

    def state(self) -> Mapping[str, bytes]:
        """Return the files of a checkpoint: all that resuming needs."""
        ...

    def restore(self, files: Mapping[str, bytes]) -> None:
        """Load what `state` returned."""
        ...


class TrainingStack(Protocol):
    """The states of several trainings in memory, which make their steps together.

    Runs are numbered from 0, in the given order.
    """

    def step(self, step: int) -> Sequence[Mapping[str, float] | BaseException]:
        """Make one step of every run; return the metrics or the error of each."""
        ...

    def sampler(self, index: int) -> Sampler:
        """Return the current weights of a run, as `Trainer.sampler` does."""
        ...

    def state(self, index: int) -> Mapping[str, bytes]:
        """Return the files of a checkpoint of a run."""
        ...

    def restore(self, index: int, files: Mapping[str, bytes]) -> None:
        """Load what `state` returned into a run."""
        ...

    def keep(self, indexes: Sequence[int]) -> None:
        """Drop all runs but these, which are numbered in this order from now on."""
        ...


def train(run: Run, trainer: Trainer, directory: Path, reporter: Reporter) -> None:
    """Train to the last step, or until the reporter asks to stop: a stack of one.

    Args:
        trainer: a trainer in the state of the base model.
        directory: the run's directory; training resumes from its newest sound checkpoint.
    """
    train_together([StackMember(run, directory, reporter)], lambda runs: RoundRobin([trainer]))


def train_together(
    members: Sequence[StackMember], make: Callable[[Sequence[Run]], TrainingStack]
) -> None:
    """Train several runs side by side, each as `train` does.

    Runs that resume from different steps form different stacks, one after another.

    Args:
        make: makes a stack of runs in the state of their base models.
    """
    # Runs of one stack are at the same step: schedules, draws and evaluations go by its number.
    slots_by_start: dict[int, list[_StackSlot]] = defaultdict(list)
    for member in members:
        with member.guard():
            slot = _StackSlot(member)
            slots_by_start[slot.loop.start].append(slot)
    for start, slots in sorted(slots_by_start.items()):
        _train_stack(slots, start, make)


def _train_stack(
    slots: list[_StackSlot], start: int, make: Callable[[Sequence[Run]], TrainingStack]
) -> None:
    stack = make([slot.member.run for slot in slots])
    for index, slot in enumerate(slots):
        slot.begin(stack, index)
    step = start
    while True:
        active = [slot for slot in slots if slot.is_active]
        # A finished run leaves the stack at once: the others' steps take less time and memory.
        if len(active) < len(slots):
            stack.keep([slot.index for slot in active])
            for index, slot in enumerate(active):
                slot.index = index
        slots, step = active, step + 1
        if not slots:
            return
        for slot, outcome in zip(slots, stack.step(step), strict=True):
            slot.end_step(step, outcome)


class _StackSlot:
    """One run in a stack, with its loop.

    Attributes:
        index: number of the run in the stack.
        is_active: whether the run has a next step.
    """

    def __init__(self, member: StackMember) -> None:
        self.member = member
        self.loop = Loop(
            member.run,
            member.directory,
            member.reporter,
            lambda: self._stack.sampler(self.index),
            lambda checkpoints, step: checkpoints.save(step, self._stack.state(self.index)),
        )

    def begin(self, stack: TrainingStack, index: int) -> None:
        self._stack = stack
        self.index = index
        # Stays false if an error ends the guarded block: the guard swallows it.
        self.is_active = False
        with self.member.guard():
            if self.loop.newest:
                stack.restore(index, self.loop.newest.files)
            self.loop.begin()
            self.is_active = self.loop.start < self.member.run.steps

    def end_step(self, step: int, outcome: Mapping[str, float] | BaseException) -> None:
        self.is_active = False
        with self.member.guard():
            if isinstance(outcome, BaseException):
                raise outcome
            stopping = self.loop.end_step(step, outcome)
            self.is_active = not stopping and step < self.member.run.steps


class Loop:
    """The work before, between and after steps, for trainers that make their steps themselves.

    A step's evaluation comes before its checkpoint. A training that resumes evaluates the step it
    starts from again. So a process killed between the two repeats one evaluation, and no order of
    events leaves one out.

    Args:
        directory: the run's directory; training resumes from its newest sound checkpoint.
        sampler: returns the current weights, for an evaluation.
        save: writes the current state as the checkpoint of a step.

    Attributes:
        newest: the checkpoint to resume from, which the trainer restores before `begin`.
        start: the step to resume from; 0 without a checkpoint.
    """

    def __init__(
        self,
        run: Run,
        directory: Path,
        reporter: Reporter,
        sampler: Callable[[], Sampler],
        save: Callable[[Checkpoints, int], Path],
    ) -> None:
        if math.isnan(run.learning_rate_scale):
            raise ConfigError(
                "optimizer.match: expected a run whose learning rate a calibration has found, got "
                "one without; start it with `advsweep run` or `advsweep sweep`, which calibrate it"
            )
        self._run = run
        self._reporter = reporter
        self._sampler = sampler
        self._save = save
        self._evaluated = frozenset(run.evaluation.schedule(run.steps))
        self._checkpoints = Checkpoints(directory, run.identity)
        # The run's lease is this process's, so no other is writing a checkpoint now.
        self._checkpoints.discard_unfinished()
        self.newest = self._checkpoints.newest_sound(reporter.log)
        self.start = self.newest.step if self.newest else 0

    def begin(self) -> None:
        """Start the loop; call this once, before the first step."""
        if self.newest:
            self._reporter.resumed(self.start)
            # A process that is killed after it has written a checkpoint has not reported it.
            self._reporter.checkpoint(self.start, self._checkpoints.path(self.start))
        # Also when it resumes: it may have been killed between a checkpoint and its evaluation.
        if self.start in self._evaluated:
            self._reporter.evaluate(self.start, self._sampler())

    def end_step(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Report, evaluate and save after a step; return whether the training stops here."""
        backend = self._run.backend
        if self._run.optimizer.match is not Match.NONE:
            metrics = {**metrics, "optim/match_factor": self._run.learning_rate_scale}
        self._reporter.metrics(step, metrics)
        if step in self._evaluated:
            self._reporter.evaluate(step, self._sampler())
        # Asked once a step: a checkpoint is only written where a step ends.
        stopping = self._reporter.stop_requested()
        every = backend.checkpoint_every
        if step == self._run.steps or stopping or (every > 0 and step % every == 0):
            self._reporter.checkpoint(step, self._save(self._checkpoints, step))
            # Only now: until the new one is complete, the old ones are all that a killed run has.
            for old in self._checkpoints.prune(backend.keep_last, backend.keep_every):
                self._reporter.pruned(old)
        return stopping


class RoundRobin:
    """A stack of independent trainers that make their steps in turn; see `TrainingStack`."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self._trainers = list(trainers)

    def step(self, step: int) -> Sequence[Mapping[str, float] | BaseException]:
        outcomes: list[Mapping[str, float] | BaseException] = []
        for trainer in self._trainers:
            try:
                outcomes.append(trainer.step(step))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it ends this run alone
                outcomes.append(error)
        return outcomes

    def sampler(self, index: int) -> Sampler:
        return self._trainers[index].sampler()

    def state(self, index: int) -> Mapping[str, bytes]:
        return self._trainers[index].state()

    def restore(self, index: int, files: Mapping[str, bytes]) -> None:
        self._trainers[index].restore(files)

    def keep(self, indexes: Sequence[int]) -> None:
        self._trainers = [self._trainers[index] for index in indexes]


def base_solve_rate(run: Run, sampler: Sampler) -> float:
    """Estimate the base's solve rate on training problems; NaN if the run's control needs none.

    Args:
        sampler: the base model.
    """
    samples = run.control.base_samples
    if not samples:
        return math.nan
    problems = run.task.draw(samples, numpy_generator(run.seed, Stream.CONTROL))
    drawn = sampler.sample(problems, 1, temperature=run.generation.temperature, seed=run.seed)
    outcomes = run.task.score(problems, [text for (text,) in drawn.texts])
    return float((outcomes == 1).mean())


def metrics_of_rollouts(
    run: Run, source: Any, collected: Collected, drawn: GroupBatch, advantages: Advantages
) -> dict[str, float]:
    """Return the metrics of a step's rollouts, for one run.

    Args:
        source: drew the groups; also has their `outcomes`, `levels` and `references`.
        drawn: all groups drawn.
    """
    return rollout_metrics(
        drawn,
        advantages,
        groups=collected.groups,
        outcomes=source.outcomes,
        judged=run.rollout.judged(drawn.rewards, source.outcomes),
        levels=source.levels,
        prompts=run.prompts_per_step,
        references=source.references,
        turns=collected.turns,
        last_turn=collected.last_turn,
        verifier_free=run.estimator.verifier_free,
    )


def control_metrics(run: Run, base_rate: float) -> dict[str, float]:
    """Return the chance of a correct verdict, `control/rate`, where a control estimates it."""
    return {"control/rate": base_rate} if run.control.base_samples else {}


def reads_answers(estimator: Estimator) -> bool:
    """Return whether a backend has to find out which rollouts have a readable answer."""
    return "answered" in estimator.needs


def reads_token_entropies(estimator: Estimator) -> bool:
    """Return whether a backend has to keep the entropy of every token of a step."""
    return "token_entropies" in estimator.needs | estimator.uses


def group_batch(
    run: Run,
    problems: Sequence[Problem],
    rewards: Float[Tensor, "groups rollouts"],
    outcomes: Float[Tensor, "groups rollouts"],
    step: int,
    *,
    lengths: Float[Tensor, " rows"],
    surprisal: Float[Tensor, " rows"],
    entropy: Float[Tensor, " rows"],
    certainty: Float[Tensor, " rows"],
    entropies: Float[Tensor, "rows tokens"] | None,
    answered: Bool[Tensor, "groups rollouts"] | None,
) -> GroupBatch:
    """Return a language model's rollouts as an estimator sees them.

    Args:
        problems: the problem of each group.
        rewards: NaN for rollouts that the verifier could not score.
        outcomes: verdicts from which the rewards are computed.
        lengths: generated tokens of each rollout, group by group.
        surprisal: sum of -log π over the tokens of each rollout, in nats.
        entropy: sum of the exact token entropies, in nats.
        certainty: sum of KL(uniform ‖ π), in nats.
        entropies: exact entropy of each token, 0 past the end of a rollout; None if the estimator
            does not read it.
        answered: whether each rollout has an answer; None if the estimator does not read it.
    """
    scored = ~rewards.isnan()

    def token_mean(sums: Float[Tensor, " rows"]) -> Float[Tensor, "groups rollouts"]:
        return (sums / lengths).view(rewards.shape)

    return GroupBatch(
        rewards=rewards,
        mask=None if scored.all() else scored,
        lengths=lengths.view(rewards.shape),
        token_entropy=token_mean(surprisal),
        token_entropy_exact=token_mean(entropy),
        token_entropies=None if entropies is None else entropies.view(*rewards.shape, -1),
        self_certainty=token_mean(certainty),
        solve_rates=((outcomes == 1) & scored).sum(dim=1) / scored.sum(dim=1).clamp(min=1),
        answered=answered,
        prompt_ids=tuple(problem.id for problem in problems),
        step=step,
        total_steps=run.total_steps,
    )


def compute_advantages(estimator: Estimator, drawn: GroupBatch, collected: Collected) -> Advantages:
    """Return the advantages of the groups that a step trains on.

    A step without such groups has no advantages, and does not advance the estimator's memory.

    Args:
        drawn: all groups drawn.
        collected: the groups that the rollout policy chose.

    Raises:
        BatchError: the estimator refuses the groups.
    """
    groups, references = collected.groups, collected.ref_rewards
    if not torch.equal(groups, torch.arange(len(drawn.rewards), device=groups.device)):
        drawn = drawn.select(groups)
    batch = drawn if references is None else replace(drawn, ref_rewards=references)
    if len(batch.rewards):
        return estimator.compute(batch)
    return Advantages(values=batch.rewards, keep=torch.ones_like(batch.rewards, dtype=torch.bool))
