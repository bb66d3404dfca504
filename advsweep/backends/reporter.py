"""What a training reports while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from advsweep.backends.work_clock import Work
    from advsweep.tasks.base import Sampler


@dataclass(frozen=True, kw_only=True)
class CountedProblem:
    """The counts of one problem in an evaluation that advsweep did not sample itself.

    Attributes:
        problem: stable name of the problem within its task.
        n, correct: samples, and the correct ones.
        prompt: its text; empty if it is unknown.
        level: its difficulty; 0 if it is unknown.
    """

    problem: str
    n: int
    correct: int
    prompt: str = ""
    level: int = 0


def evaluation_stage(step: int) -> str:
    """Return the name of the stage in which the weights after `step` steps are evaluated."""
    return "evaluation" if step else "base evaluation"


class Reporter(Protocol):
    """Receives the progress of a training, and tells it when to stop."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics of a finished step (counted from 1)."""

    def evaluate(self, step: int, sampler: Sampler) -> None:
        """Evaluate the weights after `step` steps, unless done before; 0: the base model."""

    def counted(self, step: int, task: str, problems: Sequence[CountedProblem]) -> None:
        """Record an evaluation after `step` steps whose counts the training made itself."""

    def checkpoint(self, step: int, path: Path) -> None:
        """Record a checkpoint that is complete."""

    def pruned(self, path: Path) -> None:
        """Record that an old checkpoint was deleted."""

    def resumed(self, step: int) -> None:
        """Record that training resumes after `step`, and discard what was reported past it."""

    def stop_requested(self) -> bool:
        """Return whether the run should write a checkpoint and return."""

    def log(self, message: str) -> None:
        """Write a line to the run's log."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Report the progress of a stage that is not a training step, such as pretraining."""

    def doing(self, work: Work, units: float = 0) -> AbstractContextManager[None]:
        """Surround work that is not a training step; its time is measured for estimates."""


class SilentReporter:
    """A `Reporter` that reports nothing and never asks to stop."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    def evaluate(self, step: int, sampler: Sampler) -> None: ...

    def counted(self, step: int, task: str, problems: Sequence[CountedProblem]) -> None: ...

    def checkpoint(self, step: int, path: Path) -> None: ...

    def pruned(self, path: Path) -> None: ...

    def resumed(self, step: int) -> None: ...

    def stop_requested(self) -> bool:
        return False

    def log(self, message: str) -> None: ...

    def progress(self, stage: str, done: int, total: int) -> None: ...

    def doing(self, work: Work, units: float = 0) -> AbstractContextManager[None]:
        return nullcontext()
