"""The contract of an executor: starts one process per run, watches it, ends it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from advsweep.components import Component, Plain, option


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one worker process does: train a run as far as it is missing, and evaluate it.

    Attributes:
        store_url: the store that holds the run.
        directory: the run's folder; its log goes there.
        evaluations: settings to evaluate by, the first of them during training too; those
            of the run's own config when empty.
    """

    run_id: int
    store_url: str
    directory: Path
    evaluations: tuple[Plain, ...] = ()


class Handle(ABC):
    """A worker process that was started."""

    @abstractmethod
    def poll(self) -> int | None:
        """None while it lives; then its exit code, negative for the signal that ended it."""

    @abstractmethod
    def stop(self) -> None:
        """Asks it to write a checkpoint and end; may be repeated, harmless after its end."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it at once; harmless after its end."""


@dataclass(kw_only=True)
class Executor(Component):
    """Starts workers. What they do and record is the store's; the executor keeps nothing."""

    jobs: int | None = option(
        None, ge=1, identity=False, help="runs side by side; null: as many as fit"
    )

    @abstractmethod
    def capacity(self) -> int:
        """How many workers run side by side: `jobs`, or as many as there is room for."""

    @abstractmethod
    def start(self, job: Job) -> Handle:
        """Starts a worker (`python -m advsweep.sweep.worker`) for a job and returns at once."""
