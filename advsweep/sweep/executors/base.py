"""The contract of an executor, and the worker processes that all executors start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from advsweep.components import Component, Plain, option
from advsweep.errors import ConfigError
from advsweep.local_files import make_private_folder, open_private
from advsweep.printable import redacted, redacted_arguments
from advsweep.sweep.worker.environment import COMMAND_VARIABLE

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.sweep.retry_policy import Policy

STORE_VARIABLE = "ADVSWEEP_STORE"
"""The environment variable with the store's URL. The URL may hold a password, and command lines
are visible to all users of a machine."""

_WORKER = "advsweep.sweep.worker.main"
_OWN_PREFIX = "ADVSWEEP_"

_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@dataclass(kw_only=True)
class Resources(Component):
    """What each run of a sweep occupies of its machine."""

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
    """What one worker process does: complete a run's training and evaluations.

    Attributes:
        others: runs that the same process trains together with it, where the executor `stacks`.
        store_url: the store that holds the run.
        directory: the run's folder, which also takes the worker's log.
        evaluations: evaluation settings, the first of them used during training too; those of
            the run's own config when empty.
    """

    run_id: int
    store_url: str
    directory: Path
    evaluations: tuple[Plain, ...] = ()
    others: tuple[int, ...] = ()

    @property
    def log(self) -> Path:
        """The file that takes the worker's output."""
        return self.directory / "log.txt"

    def arguments(self) -> list[str]:
        """Returns the worker's arguments; the worker ends when this process is gone."""
        arguments = []
        for run_id in (self.run_id, *self.others):
            arguments += ["--run", str(run_id)]
        arguments += ["--parent-pid", str(os.getpid())]
        for settings in self.evaluations:
            arguments += ["--evaluation", json.dumps(settings)]
        return arguments

    def start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Starts the worker in a session of its own, which keeps Ctrl-C to the parent.

        Raises:
            OSError: the run's folder or the process cannot be made.
        """
        make_private_folder(self.directory)
        with open_private(self.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", _WORKER, *self.arguments()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )


def worker_environment(threads: int, store_url: str) -> dict[str, str]:
    """Returns the variables that a worker with so many threads needs besides the user's own."""
    return {
        **dict.fromkeys(_THREADS, str(threads)),
        # Threads that spin cost several times over where runs share a machine.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        STORE_VARIABLE: store_url,
        COMMAND_VARIABLE: redacted_arguments(sys.argv),
    }


class Handle(ABC):
    """A worker process that was started."""

    @abstractmethod
    def poll(self) -> int | None:
        """Returns the exit code, negative for the signal that ended it; None while it lives."""

    def pid(self) -> int | None:
        """Returns the process id of a worker on this machine; None for any other."""
        return None

    @abstractmethod
    def stop(self) -> None:
        """Requests a checkpoint and the end; may be repeated, harmless after the end."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it at once; harmless after its end."""


@dataclass
class ForkedProcess:
    """A worker that was forked: an adopted child, with the methods of `subprocess.Popen`."""

    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code, negative for the signal that ended it; None while it lives."""
        if self.code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if ended else None
        return self.code

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


@dataclass
class ProcessHandle(Handle):
    """A worker that is a child of this process."""

    process: subprocess.Popen[bytes] | ForkedProcess

    def poll(self) -> int | None:
        return self.process.poll()

    def pid(self) -> int | None:
        return self.process.pid

    def stop(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        if self.process.poll() is None:
            kill_session(self.process.pid)


def kill_session(pid: int) -> None:
    """Kills a worker that leads a session, and the processes that it has started there."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        # It was forked a moment ago and has not made its session yet.
        os.kill(pid, signal.SIGKILL)


@dataclass(kw_only=True)
class Executor(Component):
    """Starts workers. Their results are in the store; the executor keeps no state of runs.

    A subclass implements `capacity` and `start`. The worker is `Job.start(environment)` on this
    machine, with the variables of `worker_environment`; `RemoteJob` is the form for another one.
    An executor whose workers outlive the command is a `QueueExecutor`.

    A plan calls `prepare` once. A scheduler then calls `check`, `start` once per worker, and
    `close` at its end, after which all of it may begin again.

    Attributes:
        limits: the limits that its workers can be held to: `time` if `stop` and `kill` reach a
            busy worker, `memory` if its handle has a `pid` as well.
        stacks: whether a worker can train several runs together.
        resources: what each worker occupies.
        modules: the modules that the workers of the prepared runs will import.
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
        """Notes the runs of a sweep and what each of them occupies.

        Raises:
            ConfigError: a run computes with more threads than it is given cores.
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
        """Refuses prepared runs that could never start.

        Raises:
            ConfigError: a run needs more than there is.
        """

    @abstractmethod
    def capacity(self) -> int:
        """Returns the number of workers side by side: `jobs`, or as many as fit."""

    @abstractmethod
    def start(self, job: Job) -> Handle | None:
        """Starts a worker (`python -m advsweep.sweep.worker.main`) and returns at once.

        Returns None if there is no room now; the scheduler then tries again.

        Raises:
            OSError: its process cannot be made.
        """

    def close(self) -> None:
        """Releases what is kept between two starts; workers continue."""


@dataclass(frozen=True)
class QueueEntry:
    """The state of a job in its queue.

    Attributes:
        state: in the queue's own words, such as `PENDING`.
        reason: why it is not running, such as `Priority`; empty if the queue gives none.
    """

    state: str
    reason: str = ""


@dataclass(kw_only=True)
class QueueExecutor(Executor):
    """Submits workers to a queue, which starts them at a time of its own.

    No scheduler watches them: each job acts as the scheduler of its run
    (`scheduler/queue_job.py`), and the store has the results.
    """

    @abstractmethod
    def queued(self, names: Iterable[str]) -> dict[str, QueueEntry]:
        """Returns, by name, those of these jobs that the queue has yet to start or to end.

        Raises:
            ConfigError: the queue cannot be queried.
        """

    @abstractmethod
    def submit(
        self,
        jobs: Sequence[Job],
        folder: Path,
        side_by_side: int,
        policy: Policy,
        make_execution: MakeExecution,
    ) -> Iterator[Mapping[int, str]]:
        """Submits jobs in batches and yields the job names of each batch, by run.

        Args:
            folder: takes the files that the queue needs.
            policy: retries and limits, which each job applies to its own run.
            make_execution: what each job calls where it runs, to execute its run.

        Raises:
            ConfigError: the queue cannot be reached, or refuses the jobs.
        """

    def start(self, job: Job) -> Handle:
        raise AssertionError("submitted jobs are not watched and have no handle")


class JobExecution(Protocol):
    """Executes one run in the job of a queue; the scheduler makes it."""

    @property
    def retries(self) -> int:
        """The number of retries of the run."""

    def execute(self) -> str:
        """Executes the run and returns how it ended, in a word."""

    def interrupt(self) -> None:
        """Stops the worker and waits for its end; called from a signal handler."""


MakeExecution = Callable[["RemoteJob", "Policy", int], JobExecution]
"""Makes the execution of a job from the job, its policy and the number of earlier retries."""


@dataclass(frozen=True)
class RemoteJob:
    """A job in the form that is sent to another process or machine.

    The Python environment, the run's folder and the store must exist there under the same
    names.

    Attributes:
        job: without the store's URL, which the environment holds.
        environment: variables to set there, the ADVSWEEP_ variables of this process included.
    """

    job: Job
    environment: Mapping[str, str]

    @classmethod
    def of(cls, job: Job, threads: int) -> Self:
        """Makes the job of a worker that computes with so many threads."""
        environment = {k: v for k, v in os.environ.items() if k.startswith(_OWN_PREFIX)}
        environment |= worker_environment(threads, job.store_url)
        return cls(replace(job, store_url=""), environment)

    def without_secrets(self) -> Self:
        """Removes the store's URL if it holds a password, for a job that is kept in a file.

        The process that runs the job must then find the URL in its own environment.
        """
        url = self.environment[STORE_VARIABLE]
        if redacted(url) == url:
            return self
        environment = {k: v for k, v in self.environment.items() if k != STORE_VARIABLE}
        return replace(self, environment=environment)

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the worker as a child of this process.

        Raises:
            OSError: the run's folder or the process cannot be made.
        """
        return self.job.start(os.environ | self.environment)
