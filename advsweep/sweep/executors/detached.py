"""The contract of an executor whose runs outlive the command: it hands them to a queue."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from advsweep.sweep.executors.base import Executor, Handle, Job

if TYPE_CHECKING:
    from advsweep.sweep.policy import Policy


@dataclass(frozen=True)
class Place:
    """Where a submission stands in its queue.

    Attributes:
        state: in the queue's own words, such as `PENDING`.
        reason: why it is not running, such as `Priority`; empty where nothing is told.
    """

    state: str
    reason: str = ""


@dataclass(kw_only=True)
class DetachedExecutor(Executor):
    """Submits workers to a queue, which starts them when it pleases.

    Nobody watches them: their jobs do what an execution does for its runs (`attending`), and
    what becomes of them is in the store.
    """

    @abstractmethod
    def queued(self, names: Iterable[str]) -> dict[str, Place]:
        """Those of these submissions that the queue has yet to start or to end, by name.

        Raises:
            ConfigError: the queue cannot be asked.
        """

    @abstractmethod
    def submit(
        self, jobs: Sequence[Job], folder: Path, side_by_side: int, policy: Policy
    ) -> Iterator[Mapping[int, str]]:
        """Submits jobs, some at a time, and tells under which name the queue has each run.

        Args:
            folder: what the queue needs to keep goes there.
            policy: retries and limits, which each job sees to for its own run.

        Raises:
            ConfigError: the queue cannot be had, or does not take them.
        """

    def start(self, job: Job) -> Handle:
        raise AssertionError("what is submitted is not watched, and has no handle")
