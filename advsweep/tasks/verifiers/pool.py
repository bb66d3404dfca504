"""Verdicts under a hard deadline: the client of the process in which verifiers judge.

A process pool of the standard library does not fit: it cannot kill one worker at a deadline, and
it starts its workers from a process with threads. pebble could, but its licence is LGPL-3.0.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from advsweep.errors import TrainingError, counted

if TYPE_CHECKING:
    from advsweep.tasks.verifiers.base import Verifier
    from advsweep.tasks.verifiers.server import Job, JobResult

_ATTEMPTS = 3
_CLOSING_SECONDS = 10.0


class VerifierPool:
    """Judging processes, each of which is killed if an answer takes longer than the deadline.

    They start on first use and end with this process, however that ends. A pool serves only the
    process that made it; after a fork `pool_for` makes new pools.

    Args:
        workers: number of answers that are judged at the same time.
        deadline: seconds that one answer may take.
    """

    def __init__(self, verifier: Verifier, *, workers: int, deadline: float) -> None:
        self._settings = {
            "verifier": verifier.plain(),
            "workers": workers,
            "deadline": deadline,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def judge(self, jobs: Sequence[Job]) -> list[JobResult]:
        """Return the verdicts in the order of the jobs.

        Raises:
            TrainingError: the judging process ended repeatedly.
        """
        if not jobs:
            return []
        with self._lock:
            for _ in range(_ATTEMPTS):
                try:
                    connection = self._connect()
                    connection.send(list(jobs))
                    answers: list[JobResult] = connection.recv()
                except (EOFError, OSError):
                    self._close()
                except BaseException:
                    # Interrupted: a later call must not receive the answers to these jobs.
                    self._close()
                    raise
                else:
                    return answers
        raise TrainingError(
            f"the process that verifies answers ended {_ATTEMPTS} times with the same "
            f"{counted(len(jobs), 'answer')}; see its errors above"
        )

    def close(self) -> None:
        """End the processes; the next call of `judge` starts new ones."""
        with self._lock:
            self._close()

    def leave(self) -> None:
        """Close this process's copy of a connection that another process uses."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._process = None

    def _connect(self) -> Connection:
        if self._connection is None:
            ours, theirs = socket.socketpair()
            module, descriptor = "advsweep.tasks.verifiers.server", theirs.fileno()
            with theirs:
                # Its own session keeps Ctrl-C in the terminal from ending it: the training still
                # verifies its last answers and then stops in an orderly way.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, str(descriptor)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[descriptor],
                    start_new_session=True,
                )
            self._connection = Connection(ours.detach())
            self._connection.send(self._settings)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(_CLOSING_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


_pools: dict[str, VerifierPool] = {}


def pool_for(verifier: Verifier, *, workers: int, deadline: float) -> VerifierPool:
    """Return this process's pool for a verifier; every call returns the same one."""
    key = json.dumps([verifier.plain(), workers, deadline], sort_keys=True)
    if key not in _pools:
        _pools[key] = VerifierPool(verifier, workers=workers, deadline=deadline)
    return _pools[key]


@atexit.register
def _close_all() -> None:
    for pool in _pools.values():
        pool.close()


def _leave_all() -> None:
    """Forget the parent's pools after a fork; they end when no copy of a connection is open."""
    for pool in _pools.values():
        pool.leave()
    _pools.clear()


os.register_at_fork(after_in_child=_leave_all)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
