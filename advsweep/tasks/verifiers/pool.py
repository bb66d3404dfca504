"""Verdicts under a hard deadline: the client's side of the process that verifiers judge in."""

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

from advsweep.errors import TrainingError

if TYPE_CHECKING:
    from advsweep.tasks.verifiers.base import Verifier
    from advsweep.tasks.verifiers.server import Job, JobResult

_ATTEMPTS = 3
_CLOSING_SECONDS = 10.0


class VerifierPool:
    """Processes that judge, each killed when one answer takes it longer than the deadline.

    They are started when they are first needed, and end when this process does, however it
    does. A pool serves the process that made it; after a fork `pool_for` makes others.

    Args:
        workers: how many answers are judged at a time.
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
        """The verdicts, in the order of the jobs.

        Raises:
            TrainingError: the process that verifiers judge in cannot be kept alive.
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
                    # Interrupted: what is under way must not be taken for later answers.
                    self._close()
                    raise
                else:
                    return answers
        raise TrainingError(
            f"the process that verifies answers ended {_ATTEMPTS} times with the same "
            f"{len(jobs)} answers; its errors stand above"
        )

    def close(self) -> None:
        """Ends its processes; the next answers start others."""
        with self._lock:
            self._close()

    def leave(self) -> None:
        """Closes this process's copy of a connection that another process uses."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._process = None

    def _connect(self) -> Connection:
        if self._connection is None:
            ours, theirs = socket.socketpair()
            module, descriptor = "advsweep.tasks.verifiers.server", theirs.fileno()
            with theirs:
                # In a session of its own: an interrupt from the terminal is for the training,
                # which verifies what it has and stops in order.
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
    """The pool of this process for a verifier; made once."""
    key = json.dumps([verifier.plain(), workers, deadline], sort_keys=True)
    if key not in _pools:
        _pools[key] = VerifierPool(verifier, workers=workers, deadline=deadline)
    return _pools[key]


@atexit.register
def _close_all() -> None:
    for pool in _pools.values():
        pool.close()


def _leave_all() -> None:
    """After a fork: the pools are the other process's, and end when no copy of theirs is open."""
    for pool in _pools.values():
        pool.leave()
    _pools.clear()


os.register_at_fork(after_in_child=_leave_all)


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
