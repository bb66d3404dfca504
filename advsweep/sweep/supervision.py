"""Holds workers to the limits of a policy, and ends those that fall silent."""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from advsweep.errors import ConfigError
from advsweep.store import Failure, Status, lease
from advsweep.sweep import exits
from advsweep.sweep.executors.base import Executor, Handle
from advsweep.sweep.memory import held_bytes, is_measurable, kernel_kills
from advsweep.sweep.policy import Policy, spell_duration, spell_size

if TYPE_CHECKING:
    from advsweep.sweep.units import Unit

STOP_SECONDS = 20.0
"""What a worker that is asked to end has to write a checkpoint before it is killed."""
MEASURE_SECONDS = 0.25
"""How often a worker's memory is measured, where it is limited."""
SILENT_SECONDS = 10.0
"""How long a lease stays lapsed before its living process is given up: after the machine
slept, or its clock was set, all leases look lapsed until the next heartbeat."""


class Cause(NamedTuple):
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
        units: the runs that it has, of which it is not yet known how they ended.
        cause: why it was ended by this very process; None while it was not.
        trains_together: whether it was given several.
    """

    handle: Handle
    policy: Policy
    units: list[Unit]
    cause: Cause | None = None
    _started: float = field(default_factory=time.monotonic)
    _deadline: float | None = None
    _silent: float | None = None
    _measured: float = -math.inf

    def __post_init__(self) -> None:
        self.trains_together = len(self.units) > 1

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
            self.cause = Cause(Failure.TIMEOUT, reason)
            self._deadline = now + STOP_SECONDS
            self.handle.stop()
            return
        most, pid = self.policy.memory_limit, self.handle.pid()
        if most is not None and pid is not None and now - self._measured >= MEASURE_SECONDS:
            self._measured = now
            held = held_bytes(pid, most)
            if held > most:
                reason = f"held {spell_size(held)}, above its memory limit of {spell_size(most)}"
                self._kill(Cause(Failure.OOM, reason))

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
            reason = f"gave no sign of life for {lease.LEASE.total_seconds():g} s and was killed"
            self._kill(Cause(Failure.KILLED, reason))

    def _kill(self, cause: Cause) -> None:
        self.cause = cause
        self.handle.kill()


class Coroner:
    """Tells from an exit code what a worker died of that left no word."""

    def __init__(self) -> None:
        self._kernel_kills = deque([kernel_kills()], maxlen=3)

    def look(self) -> None:
        """To be called now and then: what the kernel did before cannot be why."""
        self._kernel_kills.append(kernel_kills())

    def cause(self, code: int) -> Cause:
        """The class of a failure, and in words what happened."""
        if code == exits.OUT_OF_MEMORY:
            return Cause(Failure.OOM, "out of memory")
        if code == exits.UNRECORDED:
            return Cause(Failure.ERROR, "its process could not use the store any more")
        if code in (exits.DISK_FULL, -signal.SIGXFSZ):
            reason = (
                "its process could not write any more: the disk is full, or a quota or a limit on "
                "the size of files (ulimit -f) is reached"
            )
            return Cause(Failure.DISK, reason)
        if code == -signal.SIGKILL and kernel_kills() > self._kernel_kills[0]:
            return Cause(Failure.OOM, "killed by the kernel, which had run out of memory")
        if code < 0:
            return Cause(Failure.KILLED, f"killed by signal {-code}{_name(-code)}")
        return Cause(Failure.ERROR, f"its process ended with exit status {code}")


def _name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""  # a real-time signal
