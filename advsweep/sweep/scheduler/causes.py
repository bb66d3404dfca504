"""Why a worker failed, in a class and a sentence."""

from __future__ import annotations

import contextlib
import signal
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from advsweep.errors import AdvsweepError
from advsweep.failures import Failure, classify, classify_exit
from advsweep.local_files import open_regular
from advsweep.machine import memory_kills
from advsweep.names import STORE_ERROR
from advsweep.printable import printable_line
from advsweep.sweep import events

if TYPE_CHECKING:
    from advsweep.store import RunRecord


class FailureCause(NamedTuple):
    """Why a run failed: the class of failure, and a sentence for the user."""

    failure: Failure
    reason: str


# The most bytes of a reason that are read.
_LONGEST_ERROR = 4000

_NO_ROOM = FailureCause(
    Failure.DISK,
    "its process could not write any more: the disk is full, or a quota or a limit on the size of "
    "files (ulimit -f) is reached",
)

# Exit codes by which a worker itself says why it failed.
_WORKER_EXITS = {
    events.OUT_OF_MEMORY: FailureCause(Failure.OOM, "out of memory"),
    # Retried: the store may be back, or a full server have room again.
    events.UNRECORDED: FailureCause(Failure.KILLED, "its process could not use the store any more"),
    events.DISK_FULL: _NO_ROOM,
}


def cause_of_exit(
    code: int, *, killed_by_kernel: bool, excess: str = "", store_error: str = ""
) -> FailureCause:
    """Return why a worker ended that recorded no end.

    Args:
        code: its exit code, negative for the signal that ended it.
        killed_by_kernel: whether the kernel has killed processes for lack of memory lately.
        excess: why its executor killed it for its memory; empty if it did not.
        store_error: why it could not use the store; empty if that is unknown.
    """
    if excess:
        return FailureCause(Failure.OOM, excess)
    if code in _WORKER_EXITS:
        cause = _WORKER_EXITS[code]
        if code == events.UNRECORDED and store_error:
            return cause._replace(reason=f"{cause.reason}: {store_error}")
        return cause
    failure = classify_exit(code, killed_by_kernel=killed_by_kernel)
    match failure:
        case Failure.OOM:
            return FailureCause(failure, "killed by the kernel, which had run out of memory")
        case Failure.DISK:
            return _NO_ROOM
        case Failure.KILLED:
            return FailureCause(failure, f"killed by signal {_describe_signal(-code)}")
    return FailureCause(failure, f"its process ended with exit status {code}")


def cause_of_start_failure(error: Exception) -> FailureCause:
    """Return why the process of a run could not be started."""
    return FailureCause(classify(error), f"its process could not be started: {error}")


def take_store_error(directory: Path) -> str:
    """Return why the last process of a run could not use the store, once; empty if none left it.

    Args:
        directory: the folder of the run, where its process has left the reason.
    """
    path = directory / STORE_ERROR
    try:
        with open_regular(path) as file:
            text = file.read(_LONGEST_ERROR).decode(errors="replace")
        path.unlink()
    except (OSError, AdvsweepError):
        return ""
    return printable_line(text)


def recorded_cause(record: RunRecord) -> FailureCause:
    """Return why a run failed, by its record."""
    return FailureCause(record.failure or Failure.ERROR, record.error or "")


class KernelKills:
    """Whether the kernel has killed processes for lack of memory in the last seconds.

    Its counter is compared with an older sample, so that earlier kills are not blamed.
    """

    def __init__(self) -> None:
        self._samples = deque([memory_kills()], maxlen=3)

    def sample(self) -> None:
        """Sample the counter; call it about once a second."""
        self._samples.append(memory_kills())

    def have_happened(self) -> bool:
        """Return whether there were any since the oldest sample."""
        return memory_kills() > self._samples[0]


def _describe_signal(number: int) -> str:
    """Return a signal's number and its name: `9 (SIGKILL)`."""
    with contextlib.suppress(ValueError):  # a real-time signal has no name
        return f"{number} ({signal.Signals(number).name})"
    return str(number)
