"""Exit codes of a worker, and the cause of failure that each of them means."""

from __future__ import annotations

import contextlib
import signal
from collections import deque
from typing import NamedTuple

from advsweep.machine import memory_kills
from advsweep.store import Failure

DONE = 0
"""Each run has its own outcome in the store, and the process takes another job."""
FAILED = 10
"""The run failed; the store has the error."""
STOPPED = 11
"""The runs were stopped on request, with a checkpoint if they had progress to save."""
ELSEWHERE = 12
"""Another process holds the run."""
UNRECORDED = 13
"""The store could not be written."""
ORPHANED = 14
"""The parent process is gone and the run did not stop in time."""
OUT_OF_MEMORY = 15
"""The run ran out of memory; the store has the error."""
DISK_FULL = 18
"""The store could not be written: the disk is full, or a file may not grow."""

REUSABLE = frozenset({DONE, ELSEWHERE})
"""Exit codes of jobs after which their process takes another one."""


class FailureCause(NamedTuple):
    """Why a run failed: the class of failure, and a sentence for the user."""

    failure: Failure
    reason: str


class ExitClassifier:
    """Classifies the exit codes of workers that recorded no outcome."""

    def __init__(self) -> None:
        self._kernel_kills = deque([memory_kills()], maxlen=3)

    def sample(self) -> None:
        """Sample the kernel's OOM counter; call it about once a second.

        The counter is compared with an older sample, so that earlier kills are not blamed.
        """
        self._kernel_kills.append(memory_kills())

    def cause(self, code: int) -> FailureCause:
        """Return the cause of failure for an exit code."""
        if code == OUT_OF_MEMORY:
            return FailureCause(Failure.OOM, "out of memory")
        if code == UNRECORDED:
            return FailureCause(Failure.ERROR, "its process could not use the store any more")
        if code in (DISK_FULL, -signal.SIGXFSZ):
            reason = (
                "its process could not write any more: the disk is full, or a quota or a limit on "
                "the size of files (ulimit -f) is reached"
            )
            return FailureCause(Failure.DISK, reason)
        # The kernel's OOM killer sends SIGKILL, as a user may: only the counter tells them apart.
        if code == -signal.SIGKILL and memory_kills() > self._kernel_kills[0]:
            return FailureCause(Failure.OOM, "killed by the kernel, which had run out of memory")
        if code < 0:
            name = ""
            with contextlib.suppress(ValueError):  # a real-time signal has none
                name = f" ({signal.Signals(-code).name})"
            return FailureCause(Failure.KILLED, f"killed by signal {-code}{name}")
        return FailureCause(Failure.ERROR, f"its process ended with exit status {code}")
