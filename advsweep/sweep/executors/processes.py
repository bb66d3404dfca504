"""Worker processes of this machine: their environment, their start, and what they are sent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advsweep.local_files import make_private_folder, open_private
from advsweep.printable import redacted_arguments
from advsweep.sweep.executors.base import Handle
from advsweep.sweep.worker.environment import COMMAND_VARIABLE

if TYPE_CHECKING:
    from advsweep.sweep.executors.base import Job

# The environment variable with the store's URL. The URL may hold a password, and command lines are
# visible to all users of a machine.
STORE_VARIABLE = "ADVSWEEP_STORE"

_WORKER = "advsweep.sweep.worker.main"
_PREFIX = "ADVSWEEP_"

_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def start_worker(
    job: Job,
    environment: Mapping[str, str],
    results: int | None = None,
    inherited: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a worker in a new session, which keeps Ctrl-C to the parent.

    Args:
        results: a pipe for the exit codes of jobs; without it the worker does this job alone.
        inherited: descriptors that the worker keeps open while it lives.

    Raises:
        OSError: the run's folder or the process cannot be made.
    """
    make_private_folder(job.directory)
    # `-P`: no module of the working folder is imported in place of an installed one.
    command = [sys.executable, "-P", "-m", _WORKER]
    if results is not None:
        command.append(str(results))
        inherited = (results, *inherited)
    with open_private(job.log, "ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=inherited,
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
        "is_pulled": job.is_pulled,
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
    """Return the variables that a worker on another machine needs, with this process's own.

    The Python environment, the runs' folders and the store must exist there under the same names.
    """
    of_advsweep = {k: v for k, v in os.environ.items() if k.startswith(_PREFIX)}
    return of_advsweep | worker_environment(threads, store_url)


@dataclass
class ProcessHandle(Handle):
    """A worker that is a child of this process and has one job."""

    process: subprocess.Popen[bytes]

    def pid(self) -> int | None:
        return self.process.pid

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
    def is_idle(self) -> bool:
        """Whether it has no job: the end of its last one was seen."""
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
        for worker in [worker for worker in self._workers if worker.is_idle]:
            if worker.give(job):
                return worker
            self._workers.remove(worker)
            worker.close()
        self._workers.append(ReusedWorker(job, environment))
        return self._workers[-1]

    def close(self) -> None:
        """End the idle workers; those with a job finish it."""
        for worker in self._workers:
            if worker.is_idle:
                worker.close()
        self._workers = []
