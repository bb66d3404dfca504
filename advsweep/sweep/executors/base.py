"""The contract of an executor. The shortest is `debug.py`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from advsweep.components import Component, Plain, option
from advsweep.errors import ConfigError
from advsweep.names import GPUS_VARIABLE, RUN_LOG
from advsweep.sweep.executors.sizes import parse_size

if TYPE_CHECKING:
    from advsweep.backends.base import Run


@dataclass(kw_only=True)
class Resources(Component):
    """What each run of a sweep occupies of its machine."""

    name: ClassVar[str] = "default"

    cpus: int = option(1, ge=1, identity=False, help="cores, and threads that it may compute with")
    gpus: float = option(
        0.0, ge=0, identity=False, help="whole GPUs, or a share of one and of its memory; 0: none"
    )

    memory: str | None = option(
        None,
        identity=False,
        help="the most memory of a run, such as 8G or 512M; beyond it the run is ended; null: no "
        "limit",
    )

    def __post_init__(self) -> None:
        if self.memory is not None:
            # A number without a unit is refused by the same sentence as any other text.
            parse_size(str(self.memory))
        super().__post_init__()
        if self.gpus > 1 and not self.gpus.is_integer():
            raise ConfigError(
                f"gpus: expected whole GPUs or a share of one below 1, got {self.gpus:g}"
            )

    @property
    def devices(self) -> int:
        """The GPUs that a run sees; one for a share of it."""
        return math.ceil(self.gpus)

    def variables(self) -> dict[str, str]:
        """Return the variables of a worker that say what its run was given."""
        return {GPUS_VARIABLE: str(self.devices)} if self.gpus else {}

    @property
    def memory_bytes(self) -> int | None:
        """The most memory of a run; None without a limit."""
        return None if self.memory is None else parse_size(self.memory)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One unit of work for a worker: complete a run's training and evaluations.

    Attributes:
        others: runs that the same process trains together with it, where the executor `stacks`.
        store_url: the store that holds the run.
        sweep: the name of its sweep, for people; empty without one.
        directory: the run's folder, which also takes the worker's log.
        is_pulled: whether other machines may train the run: if it cannot be built here, it is
            given back to them, and has not failed.
        evaluations: evaluation settings, the first of them used during training too; those of
            the run's own config when empty.
    """

    run_id: int
    store_url: str
    directory: Path
    evaluations: tuple[Plain, ...] = ()
    others: tuple[int, ...] = ()
    sweep: str = ""
    is_pulled: bool = False

    @property
    def log(self) -> Path:
        """The file that takes the worker's output."""
        return self.directory / RUN_LOG


class Handle(ABC):
    """A job that a worker does."""

    def is_waiting(self) -> bool:
        """Return whether it waits for a machine, which does not count for a time limit."""
        return False

    @abstractmethod
    def poll(self) -> int | None:
        """Return its exit code, negative for the signal that ended the worker; None before."""

    def pid(self) -> int | None:
        """Return the process id of a worker on this machine; None for any other."""
        return None

    def machine_fault(self) -> str:
        """Return why its machine is to blame for a failure; empty if it is not.

        Asked after the end.
        """
        return ""

    def memory_excess(self) -> str:
        """Return why it was killed for its memory, where its executor measures that; else empty.

        Asked after the end.
        """
        return ""

    @abstractmethod
    def stop(self) -> None:
        """Request a checkpoint and the end; may be repeated, harmless after the end."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once; harmless after its end."""


@dataclass(kw_only=True)
class Executor(Component):
    """Starts workers. Their results are in the store; the executor keeps no state of runs.

    A subclass implements `capacity` and `start`. `processes.start_worker(job, environment)` makes
    the process, on this machine with the variables of `worker_environment`, on another with those
    of `remote_environment`. An executor whose workers outlive the command is a `QueueExecutor`.

    A plan calls `prepare` once. A scheduler then calls `check`, `start` once per job, and
    `close` at its end, after which all of it may begin again.

    Attributes:
        limits_time: whether its workers can be held to a time limit, since `stop` and `kill` reach
            a busy worker.
        limits_memory: whether a run can be held to `resources.memory`: a handle has the `pid` of
            its worker, or the executor sees to it in another way.
        stacks: whether a worker can train several runs together.
        resources: what each worker occupies.
        chosen_jobs: the number of workers that the user chose; None: as many as fit.
    """

    limits_time: ClassVar[bool] = False
    limits_memory: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    jobs: int | None = option(
        None, ge=1, identity=False, help="runs side by side; null: as many as fit"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.resources = Resources()
        self.chosen_jobs = self.jobs

    def prepare(self, resources: Resources, runs: Iterable[Run]) -> None:
        """Note what each run of a sweep occupies.

        Raises:
            ConfigError: a run computes with more threads than it is given cores, cannot use its
                GPUs, or its memory cannot be limited here.
        """
        if resources.memory is not None and not self.limits_memory:
            raise ConfigError(
                f"resources.memory: executor '{self.name}' cannot hold its runs to it; leave it "
                "out, or choose another executor"
            )
        for run in runs:
            threads = run.backend.cpu_threads()
            if threads > resources.cpus:
                raise ConfigError(
                    f"resources.cpus: expected at least {threads}, as backend "
                    f"'{run.backend.name}' computes with {threads} threads, got {resources.cpus}"
                )
            if resources.gpus:
                run.backend.check_gpus(run, resources.devices)
        self.resources = resources

    def check(self) -> None:
        """Refuse prepared runs that could never start.

        Raises:
            ConfigError: a run needs more than there is.
        """

    def slots(self, jobs: int | None) -> int:
        """Return the number of workers side by side.

        Args:
            jobs: the number that the command line names, in place of the option's.
        """
        self.chosen_jobs = jobs or self.jobs
        return self.chosen_jobs or self.capacity()

    @abstractmethod
    def capacity(self) -> int:
        """Return the number of workers side by side: `jobs`, or as many as fit."""

    @abstractmethod
    def start(self, job: Job) -> Handle | None:
        """Start a job and return at once.

        Returns None if there is no room now; the scheduler then tries again.

        Raises:
            OSError: its process cannot be made.
        """

    def close(self) -> None:
        """Release what is kept between two starts; workers with a job continue."""


class Work(Protocol):
    """What a job of a queue does; it can be pickled before it is called and after `interrupt`."""

    def __call__(self) -> str:
        """Train runs until none is left; return how many there were, in words."""

    def interrupt(self) -> None:
        """Stop with a checkpoint, and return when it is written; called from a signal handler."""


@dataclass(kw_only=True)
class QueueExecutor(Executor):
    """Submits jobs to a queue, which starts them when it has room.

    No command watches them. Each takes one run of the sweep after another from the store, trains it
    in a worker, and ends when none is left (`scheduler/queue_work.py`).
    """

    @abstractmethod
    def queued(self, names: Iterable[str]) -> set[str]:
        """Return which of these jobs the queue has yet to start or to end.

        Raises:
            ConfigError: the queue cannot be queried.
        """

    @abstractmethod
    def submit(self, works: Sequence[Work], folder: Path, store_url: str) -> list[str]:
        """Submit jobs and return their names.

        Args:
            works: what the jobs call, one each. They go to files, and hold no password.
            folder: takes the files that the queue needs.
            store_url: for the environment of the jobs.

        Raises:
            ConfigError: the queue cannot be reached, or refuses the jobs.
        """

    def start(self, job: Job) -> Handle:
        raise AssertionError("submitted jobs are not watched and have no handle")
