"""The contract of an executor: starts the processes of runs, watches them, ends them."""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import Component, Plain, option
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.sweep.retry_policy import Policy


@dataclass(kw_only=True)
class Resources(Component):
    """What each run of a sweep occupies of the machine that it runs on."""

    name: ClassVar[str] = "default"

    cpus: int = option(
        1, ge=1, identity=False, help="cores of its own, and threads that it may compute with"
    )
    gpus: float = option(
        0.0, ge=0, identity=False, help="whole GPUs, or a share of one and of its memory; 0: none"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpus > 1 and not self.gpus.is_integer():
            raise ConfigError(
                f"gpus: expected whole GPUs or a share of one below 1, got {self.gpus:g}"
            )


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one worker process does: train a run as far as it is missing, and evaluate it.

    Attributes:
        others: runs that the same process trains together with it; for executors that can have
            that alone.
        store_url: the store that holds the run.
        directory: the run's folder; its log goes there, and what the process has to say.
        evaluations: settings to evaluate by, the first of them during training too; those
            of the run's own config when empty.
    """

    run_id: int
    store_url: str
    directory: Path
    evaluations: tuple[Plain, ...] = ()
    others: tuple[int, ...] = ()


class Handle(ABC):
    """A worker process that was started."""

    @abstractmethod
    def poll(self) -> int | None:
        """None while it lives; then its exit code, negative for the signal that ended it."""

    def pid(self) -> int | None:
        """The process's id, where it is one of this machine that has the run to itself."""
        return None

    @abstractmethod
    def stop(self) -> None:
        """Asks it to write a checkpoint and end; may be repeated, harmless after its end."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it at once; harmless after its end."""


def kill_session(pid: int) -> None:
    """Ends a worker that leads a session, and with it what it has started and left in there."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        # It was forked this moment, and has yet to make its session.
        os.kill(pid, signal.SIGKILL)


@dataclass(kw_only=True)
class Executor(Component):
    """Starts workers. What they do and record is the store's; the executor keeps nothing.

    A plan calls `prepare` once; an execution then calls `check`, `start` as often as it has
    runs and `close` at its end, after which it may all begin again.

    Attributes:
        limits: the limits that its workers can be held to: `time` where `stop` and `kill`
            reach a worker while it is busy, `memory` where its handle has a `pid` as well.
        stacks: whether its workers can be given several runs to train together.
        resources: what each worker occupies.
        modules: what the workers of the prepared runs will import for them.
    """

    limits: ClassVar[frozenset[str]] = frozenset()
    stacks: ClassVar[bool] = False

    jobs: int | None = option(
        None, ge=1, identity=False, help="runs side by side; null: as many as fit"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.resources = Resources()
        self.modules: frozenset[str] = frozenset()

    def prepare(self, resources: Resources, runs: Iterable[Run]) -> None:
        """Takes in what a sweep's runs are and what each of them occupies.

        Raises:
            ConfigError: a run computes with more than it is given.
        """
        modules = set()
        for run in runs:
            threads = run.backend.cpu_threads()
            if threads > resources.cpus:
                raise ConfigError(
                    f"resources.cpus: expected at least {threads}, as backend "
                    f"'{run.backend.name}' computes with {threads} threads, got {resources.cpus}"
                )
            parts = vars(run).values()
            modules |= {type(part).__module__ for part in parts if isinstance(part, Component)}
            modules |= run.backend.late_imports
        self.resources, self.modules = resources, frozenset(modules)

    def check(self) -> None:
        """Refuses what was prepared where it could never be started.

        Raises:
            ConfigError: a run is to have more than there is.
        """

    @abstractmethod
    def capacity(self) -> int:
        """How many workers run side by side: `jobs`, or as many as there is room for."""

    @abstractmethod
    def start(self, job: Job) -> Handle | None:
        """Starts a worker (`python -m advsweep.sweep.worker.main`) for a job and returns at once.

        None where there is no room for it at the moment: ask again.

        Raises:
            OSError: its process cannot be made.
        """

    def close(self) -> None:
        """Gives back what is kept between one start and the next; workers go on."""


@dataclass(frozen=True)
class QueueEntry:
    """Where a submission stands in its queue.

    Attributes:
        state: in the queue's own words, such as `PENDING`.
        reason: why it is not running, such as `Priority`; empty where nothing is told.
    """

    state: str
    reason: str = ""


@dataclass(kw_only=True)
class QueueExecutor(Executor):
    """Submits workers to a queue, which starts them when it pleases.

    Nobody watches them: their jobs do what an execution does for its runs (`attending`), and
    what becomes of them is in the store.
    """

    @abstractmethod
    def queued(self, names: Iterable[str]) -> dict[str, QueueEntry]:
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
