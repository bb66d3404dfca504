"""Watches the workers of a scheduler: limits of time and memory, and lost heartbeats."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from advsweep.errors import ConfigError
from advsweep.store import Failure, Status, owners
from advsweep.sweep.executors.base import Executor, Handle, QueueExecutor
from advsweep.sweep.exit_codes import FailureCause
from advsweep.sweep.retry_policy import Policy

if TYPE_CHECKING:
    from advsweep.sweep.scheduler.runs import ScheduledRun

STOP_SECONDS = 20.0
"""Time that a worker has to write a checkpoint before it is killed."""
MEASURE_SECONDS = 0.25
"""Interval between two measurements of a limited worker's memory."""
SILENT_SECONDS = 10.0
"""Time that a lease stays expired before its living worker is killed. After the machine slept,
or its clock was set, every lease looks expired until the next heartbeat."""


def check_policy(policy: Policy, executor: Executor) -> None:
    """Refuse a policy that cannot be enforced.

    Raises:
        ConfigError: the executor cannot enforce a limit, or counts no failures.
    """
    beyond = [f"--{limit}-limit" for limit in sorted(policy.limits - executor.limits)]
    if policy.max_failures is not None and isinstance(executor, QueueExecutor):
        beyond.append("--max-failures")
    if beyond:
        raise ConfigError(
            f"{beyond[0]}: executor '{executor.name}' cannot hold its runs to it; leave it out, or "
            "choose another executor"
        )


@dataclass(eq=False)
class Worker:
    """A worker process under watch.

    Attributes:
        runs: its runs that have not ended yet.
        cause: why this process ended the worker; None while it did not.
        is_stacked: whether the worker was started with several runs.
    """

    handle: Handle
    policy: Policy
    runs: list[ScheduledRun]
    cause: FailureCause | None = None
    _started: float = field(default_factory=time.monotonic)
    _deadline: float | None = None
    _silent_since: float | None = None
    _measured: float = -math.inf

    def __post_init__(self) -> None:
        self.is_stacked = len(self.runs) > 1

    def check_limits(self) -> None:
        """Ends the worker if it exceeds a limit: beyond its time it may write a checkpoint."""
        now = time.monotonic()
        if self.cause is not None:
            # It had its time for a checkpoint; nothing else ends a process that hangs.
            if self._deadline is not None and now > self._deadline:
                self.handle.kill()
            return
        limit = self.policy.time_limit
        if limit is not None and now - self._started > limit:
            reason = f"took longer than its time limit of {limit:g} s"
            self.cause = FailureCause(Failure.TIMEOUT, reason)
            self._deadline = now + STOP_SECONDS
            self.handle.stop()
            return
        limit, pid = self.policy.memory_limit, self.handle.pid()
        if limit is not None and pid is not None and now - self._measured >= MEASURE_SECONDS:
            # Not at every poll: walking the processes of many workers takes milliseconds.
            self._measured = now
            held = held_bytes(pid, limit)
            if held > limit:
                sizes = f"{held >> 20}M, above its memory limit of {limit >> 20}M"
                self._kill(FailureCause(Failure.OOM, f"held {sizes}"))

    def check_heartbeat(self, statuses: Iterable[Status]) -> None:
        """Kills the worker if it lives but has sent no heartbeat for longer than a lease.

        Args:
            statuses: of its runs.
        """
        now = time.monotonic()
        # A lease that is over may be taken over elsewhere: two processes would train the run.
        if Status.LOST not in statuses or self.cause is not None:
            self._silent_since = None
            return
        self._silent_since = now if self._silent_since is None else self._silent_since
        if now - self._silent_since > SILENT_SECONDS:
            reason = f"gave no sign of life for {owners.LEASE.total_seconds():g} s and was killed"
            self._kill(FailureCause(Failure.KILLED, reason))

    def _kill(self, cause: FailureCause) -> None:
        self.cause = cause
        self.handle.kill()


def held_bytes(pid: int, enough: float) -> int:
    """Return the memory of a local process and its descendants; 0 after its end.

    Pages that several processes share, as after a fork, count once, in proportion. Reading the
    proportions takes milliseconds per GB, so they are skipped while the plain sum of the
    processes' sizes, in which shared pages count repeatedly, stays below `enough`.

    Departures: pages without a process, such as files in /dev/shm, are not counted, nor are
    processes whose own parent has ended.
    """
    try:
        process = psutil.Process(pid)
        processes = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    resident = proportional = 0
    for each in processes:
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            resident += each.memory_info().rss
    if resident <= enough:
        return resident
    for each in processes:
        with contextlib.suppress(psutil.Error):
            # Kernels other than Linux give no proportions.
            proportional += getattr(each.memory_full_info(), "pss", each.memory_info().rss)
    return proportional
