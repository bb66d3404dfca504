"""The contract of an executor whose runs outlive the command: it hands them to a queue."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from advsweep.sweep.executors.base import Executor, Handle, Job


@dataclass(kw_only=True)
class DetachedExecutor(Executor):
    """Submits workers to a queue, which starts them when it pleases.

    Nobody watches them: they record what becomes of them in the store.
    """

    @abstractmethod
    def queued(self, names: Iterable[str]) -> set[str]:
        """Those of these submissions that the queue has yet to start or to end.

        Raises:
            ConfigError: the queue cannot be asked.
        """

    @abstractmethod
    def submit(
        self, jobs: Sequence[Job], folder: Path, side_by_side: int
    ) -> Iterator[Mapping[int, str]]:
        """Submits jobs, some at a time, and tells under which name the queue has each run.

        Args:
            folder: what the queue needs to keep goes there.

        Raises:
            ConfigError: the queue cannot be had, or does not take them.
        """

    def start(self, job: Job) -> Handle:
        raise AssertionError("what is submitted is not watched, and has no handle")
