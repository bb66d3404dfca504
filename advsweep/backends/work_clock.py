"""Divides the time of a process that trains among kinds of work, for estimates of later runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from advsweep import names


class Work(Enum):
    """What a process does at a time; the unit in which it is counted, if it is."""

    START = "start"
    """Everything before the training: imports, the task, a model that is loaded."""
    PRETRAINING = "pretraining"
    """In updates of the base model."""
    TRAINING = "training"
    """In steps, those of calibrations too; with checkpoints and what the store takes."""
    EVALUATION = "evaluation"
    """In samples of each problem: `n` of an evaluation."""
    WAITING = "waiting"
    """For a base model or an evaluation that another process makes."""


# The summaries of a run with the seconds that a unit of work took.
_SUMMARIES = {
    Work.PRETRAINING: names.PRETRAINING_SECONDS,
    Work.TRAINING: names.TRAINING_SECONDS,
    Work.EVALUATION: names.EVALUATION_SECONDS,
}


class WorkClock:
    """The seconds and the units of each kind of work of a process.

    Runs that are trained together share a clock: they have one process, and the same rates.

    Args:
        runs: the runs of the process, each of which has its part of a start.
        boot: seconds that the process had lasted before its first run; None for a process that
            has done others, whose starts are shorter.
    """

    def __init__(self, runs: int = 1, boot: float | None = None) -> None:
        self._seconds: dict[Work, float] = dict.fromkeys(Work, 0.0)
        self._units: dict[Work, float] = dict.fromkeys(Work, 0.0)
        self._seconds[Work.START] = boot or 0.0
        self._start_name = names.START_SECONDS if boot is None else names.FIRST_START_SECONDS
        self._runs = runs
        self._work = Work.START
        self._since = time.monotonic()

    def begin(self, work: Work) -> None:
        """Count the time from now on as this work."""
        now = time.monotonic()
        self._seconds[self._work] += now - self._since
        self._since = now
        self._work = work

    @contextmanager
    def doing(self, work: Work, units: float = 0) -> Iterator[None]:
        """Count the time of a block as this work, and the units if the block succeeds."""
        before = self._work
        self.begin(work)
        try:
            yield
            self.count(work, units)
        finally:
            self.begin(before)

    def count(self, work: Work, units: float) -> None:
        """Count units of a kind of work that are done."""
        self._units[work] += units

    def summaries(self) -> dict[str, float]:
        """Return the seconds of a unit of each kind of work, by the name of a run's summary."""
        self.begin(self._work)
        rates = {
            name: self._seconds[work] / self._units[work]
            for work, name in _SUMMARIES.items()
            if self._units[work]
        }
        if self._work is not Work.START:
            rates[self._start_name] = self._seconds[Work.START] / self._runs
        return rates
