"""Holds workers to the limits of a policy, and ends those that fall silent."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from advsweep.errors import ConfigError
from advsweep.store import Failure, Status, owners
from advsweep.sweep import exit_codes
from advsweep.sweep.executors.base import Executor, Handle
from advsweep.sweep.retry_policy import Policy, spell_duration, spell_size

if TYPE_CHECKING:
    from advsweep.sweep.scheduler.scheduled_runs import ScheduledRun

STOP_SECONDS = 20.0
"""What a worker that is asked to end has to write a checkpoint before it is killed."""
MEASURE_SECONDS = 0.25
"""How often a worker's memory is measured, where it is limited."""
SILENT_SECONDS = 10.0
"""How long a lease stays lapsed before its living process is given up: after the machine
slept, or its clock was set, all leases look lapsed until the next heartbeat."""


class FailureCause(NamedTuple):
    """What a run failed of."""

    failure: Failure
    reason: str


def check_limits(policy: Policy, executor: Executor) -> None:
    """Refuses limits that nobody would hold the workers to.

    Raises:
        ConfigError: the executor cannot, or this system does not tell how much they hold.
    """
    if beyond := sorted(policy.limits - executor.limits):
        raise ConfigError(
            f"--{beyond[0]}-limit: executor '{executor.name}' cannot hold its runs to it; leave it "
            "out, or choose another executor"
        )
    if policy.memory_limit is not None and not is_measurable():
        raise ConfigError(
            "--memory-limit: this system does not tell how much memory a process holds (it has no "
            "/proc); leave it out"
        )


@dataclass(eq=False)
class Worker:
    """A worker process, watched from its start.

    Attributes:
        runs: the runs that it has, of which it is not yet known how they ended.
        cause: why it was ended by this very process; None while it was not.
        trains_together: whether it was given several.
    """

    handle: Handle
    policy: Policy
    runs: list[ScheduledRun]
    cause: FailureCause | None = None
    _started: float = field(default_factory=time.monotonic)
    _deadline: float | None = None
    _silent: float | None = None
    _measured: float = -math.inf

    def __post_init__(self) -> None:
        self.trains_together = len(self.runs) > 1

    def check(self) -> None:
        """Ends the worker if it takes more than it may."""
        now = time.monotonic()
        if self.cause is not None:
            if self._deadline is not None and now > self._deadline:
                self.handle.kill()
            return
        limit = self.policy.time_limit
        if limit is not None and now - self._started > limit:
            reason = f"took longer than its time limit of {spell_duration(limit)}"
            self.cause = FailureCause(Failure.TIMEOUT, reason)
            self._deadline = now + STOP_SECONDS
            self.handle.stop()
            return
        most, pid = self.policy.memory_limit, self.handle.pid()
        if most is not None and pid is not None and now - self._measured >= MEASURE_SECONDS:
            self._measured = now
            held = held_bytes(pid, most)
            if held > most:
                reason = f"held {spell_size(held)}, above its memory limit of {spell_size(most)}"
                self._kill(FailureCause(Failure.OOM, reason))

    def look(self, statuses: Iterable[Status]) -> None:
        """Ends the worker if it lives but has given no sign of life for longer than a lease.

        Args:
            statuses: of its runs.
        """
        now = time.monotonic()
        if Status.LOST not in statuses or self.cause is not None:
            self._silent = None
            return
        self._silent = now if self._silent is None else self._silent
        if now - self._silent > SILENT_SECONDS:
            reason = f"gave no sign of life for {owners.LEASE.total_seconds():g} s and was killed"
            self._kill(FailureCause(Failure.KILLED, reason))

    def _kill(self, cause: FailureCause) -> None:
        self.cause = cause
        self.handle.kill()


class ExitClassifier:
    """Tells from an exit code what a worker died of that left no word."""

    def __init__(self) -> None:
        self._kernel_kills = deque([kernel_kills()], maxlen=3)

    def look(self) -> None:
        """To be called now and then: what the kernel did before cannot be why."""
        self._kernel_kills.append(kernel_kills())

    def cause(self, code: int) -> FailureCause:
        """The class of a failure, and in words what happened."""
        if code == exit_codes.OUT_OF_MEMORY:
            return FailureCause(Failure.OOM, "out of memory")
        if code == exit_codes.UNRECORDED:
            return FailureCause(Failure.ERROR, "its process could not use the store any more")
        if code in (exit_codes.DISK_FULL, -signal.SIGXFSZ):
            reason = (
                "its process could not write any more: the disk is full, or a quota or a limit on "
                "the size of files (ulimit -f) is reached"
            )
            return FailureCause(Failure.DISK, reason)
        if code == -signal.SIGKILL and kernel_kills() > self._kernel_kills[0]:
            return FailureCause(Failure.OOM, "killed by the kernel, which had run out of memory")
        if code < 0:
            return FailureCause(Failure.KILLED, f"killed by signal {-code}{_name(-code)}")
        return FailureCause(Failure.ERROR, f"its process ended with exit status {code}")


def _name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""  # a real-time signal


_PROC = Path("/proc")


def is_measurable() -> bool:
    """Whether this system tells how much memory a process holds."""
    return (_PROC / "self" / "statm").exists()


def held_bytes(pid: int, enough: float) -> int:
    """What a process of this machine and its descendants hold in memory; 0 after its end.

    Pages that several processes share, as after a fork, count once, in parts. Finding out takes
    milliseconds for each GB, so that where the processes' sizes do not add up to more than
    `enough`, that sum is returned, in which such pages count for each of them.

    Departures: pages that no longer have a process of the run, such as files in /dev/shm, are
    left out, and so are processes whose own parent has ended.
    """
    pids = [pid, *_descendants(pid)]
    sizes = sum(map(_resident_bytes, pids))
    return sizes if sizes <= enough else sum(map(_proportional_bytes, pids))


def _descendants(pid: int) -> Iterator[int]:
    for task in (_PROC / str(pid) / "task").glob("*/children"):
        for child in map(int, (_read(task) or "").split()):
            yield child
            yield from _descendants(child)


def _resident_bytes(pid: int) -> int:
    statm = _read(_PROC / str(pid) / "statm")
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm else 0


def _proportional_bytes(pid: int) -> int:
    """Its part of what it holds; all of it where the system does not tell parts."""
    rollup = _read(_PROC / str(pid) / "smaps_rollup")
    parts = (line.split() for line in (rollup or "").splitlines())
    found = next((int(part[1]) * 1024 for part in parts if part[0] == "Pss:"), None)
    return _resident_bytes(pid) if found is None else found


def _read(path: Path) -> str | None:
    """A file of /proc; None after the end of its process, or where it is another user's."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def kernel_kills() -> int:
    """How many processes the kernel has ended for want of memory since the machine started.

    Those that a container's limit ended count as well. 0 where the system does not tell.
    """
    try:
        lines = (_PROC / "vmstat").read_text().splitlines()
    except OSError:
        return 0
    counts = (line.partition(" ") for line in lines)
    return next((int(count) for name, _, count in counts if name == "oom_kill"), 0)
