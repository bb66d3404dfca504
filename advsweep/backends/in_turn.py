"""Runs that share a process and nothing else: each makes its step after that of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advsweep.backends.loop import Trainer
    from advsweep.tasks.base import Sampler


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
