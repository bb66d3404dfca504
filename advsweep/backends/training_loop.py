"""The loop around the steps of a training: resume, evaluate, write checkpoints, stop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from advsweep.backends.checkpoints import Checkpoints
from advsweep.estimators.batch import Advantages

if TYPE_CHECKING:
    from advsweep.backends.base import Reporter, Run, StackMember
    from advsweep.estimators.base import Estimator
    from advsweep.estimators.batch import GroupBatch
    from advsweep.rollouts.base import Collected
    from advsweep.tasks.base import Sampler


class Trainer(Protocol):
    """The state of a training in memory: weights, moments, the estimator's memory."""

    def step(self, step: int) -> Mapping[str, float]:
        """Makes one training step (counted from 1) and returns its metrics.

        Raises:
            TrainingError: a loss or a gradient is not finite; the message names the step.
        """
        ...

    def sampler(self) -> Sampler:
        """The present weights, for an evaluation; sampling leaves the training alone."""
        ...

    def state(self) -> Mapping[str, bytes]:
        """All that going on takes, as a checkpoint's files."""
        ...

    def restore(self, files: Mapping[str, bytes]) -> None:
        """Takes up what `state` gave."""
        ...


class Stack(Protocol):
    """The states of several trainings in memory, which make their steps together.

    Runs are counted from 0, as they were given and are left.
    """

    def step(self, step: int) -> Sequence[Mapping[str, float] | BaseException]:
        """Makes one step of every run; its metrics, or what it failed of."""
        ...

    def sampler(self, index: int) -> Sampler:
        """The present weights of a run; sampling leaves the training alone."""
        ...

    def state(self, index: int) -> Mapping[str, bytes]:
        """All that going on with a run takes, as a checkpoint's files."""
        ...

    def restore(self, index: int, files: Mapping[str, bytes]) -> None:
        """Takes up what `state` gave."""
        ...

    def keep(self, indexes: Sequence[int]) -> None:
        """Goes on with some of the runs alone, in this order."""
        ...


def train(run: Run, trainer: Trainer, directory: Path, reporter: Reporter) -> None:
    """Trains to the last step, or until the reporter asks to stop.

    Args:
        trainer: in the state of the base model.
        directory: the run's; its newest sound checkpoint is gone on from.
    """

    def save(checkpoints: Checkpoints, step: int) -> Path:
        return checkpoints.save(step, trainer.state())

    loop = Loop(run, directory, reporter, trainer.sampler, save)
    if loop.newest:
        trainer.restore(loop.newest.files)
    loop.begin()
    for step in range(loop.start + 1, run.steps + 1):
        if loop.end_step(step, trainer.step(step)):
            return


def train_together(members: Sequence[StackMember], make: Callable[[Sequence[Run]], Stack]) -> None:
    """Trains several runs side by side, each as `train` does one.

    Those that go on from different steps are trained one set after another.

    Args:
        make: makes a stack of runs in the state of their base models.
    """
    seats: dict[int, list[_Seat]] = defaultdict(list)
    for member in members:
        with member.guard():
            seat = _Seat(member)
            seats[seat.loop.start].append(seat)
    for start, together in sorted(seats.items()):
        _train_stack(together, start, make)


def _train_stack(seats: list[_Seat], start: int, make: Callable[[Sequence[Run]], Stack]) -> None:
    stack = make([seat.member.run for seat in seats])
    for index, seat in enumerate(seats):
        seat.begin(stack, index)
    seats = _staying(seats, stack)
    for step in range(start + 1, 1 + max((seat.member.run.steps for seat in seats), default=0)):
        for seat, outcome in zip(seats, stack.step(step), strict=True):
            seat.end_step(step, outcome)
        seats = _staying(seats, stack)
        if not seats:
            return


def _staying(seats: list[_Seat], stack: Stack) -> list[_Seat]:
    """Takes those that leave out of the stack."""
    staying = [seat for seat in seats if seat.stays]
    if len(staying) < len(seats):
        stack.keep([seat.index for seat in staying])
        for index, seat in enumerate(staying):
            seat.index = index
    return staying


class _Seat:
    """The place of one run in a stack.

    Attributes:
        index: of the run in the stack.
        stays: whether it has a next step.
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

    def begin(self, stack: Stack, index: int) -> None:
        self._stack = stack
        self.index = index
        self.stays = False
        with self.member.guard():
            if self.loop.newest:
                stack.restore(index, self.loop.newest.files)
            self.loop.begin()
            self.stays = self.loop.start < self.member.run.steps

    def end_step(self, step: int, outcome: Mapping[str, float] | BaseException) -> None:
        self.stays = False
        with self.member.guard():
            if isinstance(outcome, BaseException):
                raise outcome
            stopping = self.loop.end_step(step, outcome)
            self.stays = not stopping and step < self.member.run.steps


class Loop:
    """What stands around the steps of a training, for trainers that make their steps themselves.

    An evaluation comes before the checkpoint of its step, and a training that goes on asks for
    that of the step it starts from again: a death between the two costs a second evaluation,
    a request to stop costs no step, and none of both leaves an evaluation out.

    Args:
        directory: the run's; its newest sound checkpoint is gone on from.
        sampler: gives the present weights, for an evaluation.
        save: writes the present state as the checkpoint of a step.

    Attributes:
        newest: the checkpoint to go on from, which is to be restored before `begin`.
        start: the step to go on from; 0 without a checkpoint.
    """

    def __init__(
        self,
        run: Run,
        directory: Path,
        reporter: Reporter,
        sampler: Callable[[], Sampler],
        save: Callable[[Checkpoints, int], Path],
    ) -> None:
        self._run = run
        self._reporter = reporter
        self._sampler = sampler
        self._save = save
        self._checkpoints = Checkpoints(directory, run.identity)
        self._checkpoints.discard_unfinished()
        self.newest = self._checkpoints.newest_sound(reporter.log)
        self.start = self.newest.step if self.newest else 0

    def begin(self) -> None:
        """To be called once, before the first step."""
        if self.newest:
            self._reporter.resumed(self.start)
        if _is_evaluated(self._run, self.start):
            self._reporter.evaluate(self.start, self._sampler())

    def end_step(self, step: int, metrics: Mapping[str, float]) -> bool:
        """To be called after each step; true if the training is to be left there."""
        backend = self._run.backend
        self._reporter.metrics(step, metrics)
        if _is_evaluated(self._run, step):
            self._reporter.evaluate(step, self._sampler())
        stopping = self._reporter.stop_requested()
        if step == self._run.steps or stopping or _due(step, backend.checkpoint_every):
            self._reporter.checkpoint(step, self._save(self._checkpoints, step))
            for old in self._checkpoints.prune(backend.keep_last, backend.keep_every):
                self._reporter.pruned(old)
        return stopping


def _is_evaluated(run: Run, step: int) -> bool:
    return step in (0, run.steps) or _due(step, run.evaluation.every)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


class InTurn:
    """A stack of trainings that know nothing of each other; see `loop.Stack`."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self._trainers = list(trainers)

    def step(self, step: int) -> Sequence[Mapping[str, float] | BaseException]:
        return [_stepped(trainer, step) for trainer in self._trainers]

    def sampler(self, index: int) -> Sampler:
        return self._trainers[index].sampler()

    def state(self, index: int) -> Mapping[str, bytes]:
        return self._trainers[index].state()

    def restore(self, index: int, files: Mapping[str, bytes]) -> None:
        self._trainers[index].restore(files)

    def keep(self, indexes: Sequence[int]) -> None:
        self._trainers = [self._trainers[index] for index in indexes]


def _stepped(trainer: Trainer, step: int) -> Mapping[str, float] | BaseException:
    """What a step came to, whose error the supervisor of its run is given."""
    try:
        return trainer.step(step)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is that run's alone
        return error


def reads_answers(estimator: Estimator) -> bool:
    """True where a backend has to tell in which rollouts an answer can be read."""
    return "answered" in estimator.needs


def compute_advantages(estimator: Estimator, drawn: GroupBatch, collected: Collected) -> Advantages:
    """The advantages of the groups that a step trains on.

    A step without such groups has none, and the estimator's memory does not advance.

    Args:
        drawn: all groups that were drawn.
        collected: what the rollout policy made of them.

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
