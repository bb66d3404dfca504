"""A worker under watch: it is asked to stop, and killed if it does not."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from advsweep.store import Failure, Status, lease_guard
from advsweep.sweep.executors.memory import MEASURE_SECONDS, end_beyond
from advsweep.sweep.scheduler.causes import FailureCause

if TYPE_CHECKING:
    from advsweep.sweep.executors.base import Handle
    from advsweep.sweep.retry_policy import Policy

# Time that a worker has to write a checkpoint before it is killed.
STOP_SECONDS = 20.0

# Time that a lease stays expired before its living worker is killed. After the machine slept, or
# its clock was set, every lease looks expired until the next heartbeat.
SILENT_SECONDS = 10.0


@dataclass(eq=False)
class Worker:
    """A worker process under watch.

    Attributes:
        memory_limit: bytes of its process and the descendants; None: no limit.
        is_stack: whether it was started with several runs.
        cause: why this process ended the worker; None while it did not.
    """

    handle: Handle
    policy: Policy
    memory_limit: int | None = None
    is_stack: bool = False
    cause: FailureCause | None = None
    _started: float = field(default_factory=time.monotonic)
    _deadline: float | None = None
    _silent_since: float | None = None
    _measured: float = -math.inf

    def stop(self, *, kill: bool = False) -> None:
        """Stop the worker, which may write a checkpoint; kill it if its time for that is over."""
        now = time.monotonic()
        if kill or (self._deadline is not None and now > self._deadline):
            # Nothing else ends a process that hangs.
            self.handle.kill()
        elif self._deadline is None:
            # Counted from the first request: later ones must not give it more time.
            self._deadline = now + STOP_SECONDS
            self.handle.stop()

    def check_time(self) -> None:
        """Stop the worker, which may write a checkpoint, if it exceeds its time limit."""
        limit = self.policy.time_limit
        if self.handle.is_waiting():
            self._started = time.monotonic()
        if self.cause is not None:
            if self._deadline is not None:
                self.stop()
        elif limit is not None and time.monotonic() - self._started > limit:
            reason = f"took longer than its time limit of {limit:g} s"
            self.cause = FailureCause(Failure.TIMEOUT, reason)
            self.stop()

    def check_memory(self) -> None:
        """Kill the worker and its descendants if they hold more memory than allowed."""
        pid = self.handle.pid()
        now = time.monotonic()
        if self.memory_limit is None or pid is None or self.cause is not None:
            return
        if now - self._measured < MEASURE_SECONDS:
            return
        self._measured = now
        reason = end_beyond(pid, self.memory_limit)
        if reason:
            self.cause = FailureCause(Failure.OOM, reason)
            self.handle.kill()

    def check_heartbeat(self, statuses: Iterable[Status]) -> None:
        """Kill the worker if it lives but has sent no heartbeat for longer than a lease.

        Args:
            statuses: of its runs.
        """
        # A lease that is over may be taken over elsewhere: two processes would train the run.
        if Status.LOST not in statuses or self.cause is not None:
            self._silent_since = None
            return
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
        if now - self._silent_since > SILENT_SECONDS:
            reason = (
                f"gave no sign of life for {lease_guard.LEASE.total_seconds():g} s and was killed"
            )
            self.cause = FailureCause(Failure.KILLED, reason)
            self.handle.kill()
