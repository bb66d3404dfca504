"""The contract of an executor, and the worker processes that executors start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import Component, Plain, option
from advsweep.errors import ConfigError
from advsweep.local_files import make_private_folder, open_private
from advsweep.names import RUN_LOG
from advsweep.printable import redacted_arguments
from advsweep.sweep.worker.environment import COMMAND_VARIABLE

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.sweep.scheduler.execute import QueueWork

# The environment variable with the store's URL. The URL may hold a password, and command lines are
# visible to all users of a machine.
STORE_VARIABLE = "ADVSWEEP_STORE"

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

    cpus: int = option(1, ge=1, identity=False, help="cores, and threads that it may compute with")
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
    """What a worker does at a time: complete a run's training and evaluations.

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
        return self.directory / RUN_LOG


def start_worker(
    job: Job,
    environment: Mapping[str, str],
    results: int | None = None,
    inherited: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a worker in a session of its own, which keeps Ctrl-C to the parent.

    Args:
        results: a pipe for the exit codes of jobs; without it the worker does this job alone.
        inherited: descriptors that the worker keeps open while it lives.

    Raises:
        OSError: the run's folder or the process cannot be made.
    """
    make_private_folder(job.directory)
    # `-P`: no module of the working folder is imported in place of an installed one.
    with open_private(job.log, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", _WORKER, *([] if results is None else [str(results)])],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=inherited if results is None else (results, *inherited),
            start_new_session=True,
        )
    _send(process, job)
    if results is None:
        _close_input(process)
    return process


def _send(process: subprocess.Popen[bytes], job: Job) -> bool:
    """Send a job; return False if the worker has ended."""
    order = {
        "runs": [job.run_id, *job.others],
        "evaluations": job.evaluations,
        "log": str(job.log.absolute()),
        "parent": os.getpid(),
    }
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return False
    return True


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def worker_environment(threads: int, store_url: str) -> dict[str, str]:
    """Return the variables that a worker with so many threads needs besides the user's own."""
    return {
        **dict.fromkeys(_THREADS, str(threads)),
        # Threads that spin cost several times over where runs share a machine.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        STORE_VARIABLE: store_url,
        COMMAND_VARIABLE: redacted_arguments(sys.argv),
    }


def remote_environment(threads: int, store_url: str) -> dict[str, str]:
    """Return the variables that a worker on another machine needs, those of this process included.

    The Python environment, the runs' folders and the store must exist there under the same names.
    """
    own = {k: v for k, v in os.environ.items() if k.startswith(_OWN_PREFIX)}
    return own | worker_environment(threads, store_url)


class Handle(ABC):
    """A job that a worker does."""

    @abstractmethod
    def poll(self) -> int | None:
        """Return its exit code, negative for the signal that ended the worker; None before."""

    @abstractmethod
    def stop(self) -> None:
        """Request a checkpoint and the end; may be repeated, harmless after the end."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once; harmless after its end."""


@dataclass
class ProcessHandle(Handle):
    """A worker that is a child of this process and has one job."""

    process: subprocess.Popen[bytes]

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self) -> None:
        if self.poll() is None:  # a worker without a job has nothing to stop
            self.process.terminate()

    def kill(self) -> None:
        if self.poll() is None:
            # It leads a session: processes that it has started there are killed, too.
            os.killpg(self.process.pid, signal.SIGKILL)


class ReusedWorker(ProcessHandle):
    """A child of this process that does one job after another, so that imports are paid once.

    It reads a job per line, and answers a job that ended well with a line that has the exit code.
    After any other job it ends with that code, since a process in which something failed may be
    in any state.

    Raises:
        OSError: the run's folder or the process cannot be made.
    """

    def __init__(self, job: Job, environment: Mapping[str, str]) -> None:
        # Not its standard output, which is the log of the run, and anybody's to print to.
        self._results, theirs = os.pipe()
        try:
            super().__init__(start_worker(job, environment, theirs))
        except BaseException:
            os.close(self._results)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(self._results, False)
        self._code: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the end of its job was seen."""
        return self._code is not None

    def give(self, job: Job) -> bool:
        """Give it another job; return False if it has ended, also if it was killed while idle."""
        make_private_folder(job.directory)
        if self.process.poll() is not None or not _send(self.process, job):
            return False
        self._code = None
        return True

    def poll(self) -> int | None:
        if self._code is None:
            try:
                # One job is done at a time, so that no more than one line can wait.
                line = os.read(self._results, 32)
            except BlockingIOError:
                # A process that it has left behind may keep the pipe open after its death.
                self._code = self.process.poll()
            else:
                self._code = int(line) if line else self.process.wait()
        return self._code

    def close(self) -> None:
        """End it at once; it has no job."""
        self.process.kill()
        self.process.wait()
        _close_input(self.process)
        os.close(self._results)


class WorkerPool:
    """Workers of one environment on this machine, used again for further jobs."""

    def __init__(self) -> None:
        self._workers: list[ReusedWorker] = []

    def start(self, job: Job, environment: Mapping[str, str]) -> ReusedWorker:
        """Give a job to an idle worker, or to a new one.

        Raises:
            OSError: the run's folder or the process cannot be made.
        """
        for worker in [worker for worker in self._workers if worker.is_over]:
            if worker.give(job):
                return worker
            self._workers.remove(worker)
            worker.close()
        self._workers.append(ReusedWorker(job, environment))
        return self._workers[-1]

    def close(self) -> None:
        """End the idle workers; those with a job finish it."""
        for worker in self._workers:
            if worker.is_over:
                worker.close()
        self._workers = []


@dataclass(kw_only=True)
class Executor(Component):
    """Starts workers. Their results are in the store; the executor keeps no state of runs.

    A subclass implements `capacity` and `start`. `start_worker(job, environment)` makes the
    process, on this machine with the variables of `worker_environment`, on another with those of
    `remote_environment`. An executor whose workers outlive the command is a `QueueExecutor`.

    A plan calls `prepare` once. A scheduler then calls `check`, `start` once per job, and
    `close` at its end, after which all of it may begin again.

    Attributes:
        limits_time: whether its workers can be held to a time limit, since `stop` and `kill` reach
            a busy worker.
        stacks: whether a worker can train several runs together.
        resources: what each worker occupies.
    """

    limits_time: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    jobs: int | None = option(
        None, ge=1, identity=False, help="runs side by side; null: as many as fit"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.resources = Resources()

    def prepare(self, resources: Resources, runs: Iterable[Run]) -> None:
        """Note what each run of a sweep occupies.

        Raises:
            ConfigError: a run computes with more threads than it is given cores.
        """
        for run in runs:
            threads = run.backend.cpu_threads()
            if threads > resources.cpus:
                raise ConfigError(
                    f"resources.cpus: expected at least {threads}, as backend "
                    f"'{run.backend.name}' computes with {threads} threads, got {resources.cpus}"
                )
        self.resources = resources

    def check(self) -> None:
        """Refuse prepared runs that could never start.

        Raises:
            ConfigError: a run needs more than there is.
        """

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


@dataclass(kw_only=True)
class QueueExecutor(Executor):
    """Submits jobs to a queue, which starts them at a time of its own.

    No command watches them. Each is a scheduler (`scheduler/execute.py`) that takes one run of the
    sweep after another from the store, trains it in a worker, and ends when none is left.
    """

    @abstractmethod
    def queued(self, names: Iterable[str]) -> set[str]:
        """Return those of these jobs that the queue has yet to start or to end.

        Raises:
            ConfigError: the queue cannot be queried.
        """

    @abstractmethod
    def submit(self, works: Sequence[QueueWork], folder: Path, store_url: str) -> list[str]:
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
