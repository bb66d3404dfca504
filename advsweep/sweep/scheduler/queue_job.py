"""What a queue's job does where it runs: it executes one run, as a sweep does its many.

Nobody watches the job. So it tries its run again itself, holds it to its limits, and records
the end of a worker that could not do so.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import Plain
from advsweep.errors import ConfigError
from advsweep.store import Status, open_store, owners
from advsweep.sweep.executors.base import Executor, Handle, Job
from advsweep.sweep.executors.remote import STORE_VARIABLE, ProcessHandle, RemoteJob
from advsweep.sweep.retry_policy import store_patience
from advsweep.sweep.scheduler.events import Event, EventKind, RunEvent
from advsweep.sweep.scheduler.scheduled_runs import ScheduledRun
from advsweep.sweep.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    import subprocess

    from advsweep.store import RunRecord, Store
    from advsweep.sweep.retry_policy import Policy

_log = logging.getLogger(__name__)


class QueueJob(Scheduler):
    """The execution of a single run, by the job that was submitted for it.

    Signals are the queue's: `interrupt` is for whoever handles them.

    Args:
        retries: how often this job has tried the run again before it was interrupted.
    """

    def __init__(self, order: RemoteJob, policy: Policy, retries: int) -> None:
        # The store's URL, unless it holds a password, and the folder of its runs are among them.
        os.environ.update(order.environment)
        if STORE_VARIABLE not in os.environ:
            raise ConfigError(
                f"expected the store's URL in the job's environment as ${STORE_VARIABLE}, got "
                "none: the URL holds a password, which no file of a job holds, and the queue does "
                "not pass the environment on (SBATCH_EXPORT, --export); set $PGPASSWORD where "
                "jobs run and leave the password out of the URL"
            )
        store = open_store(create=False, patience=store_patience(), wait=True)
        self._here = _Here(order)
        # It is no scheduled from the start: those that were asked to stop would be started.
        super().__init__(store, self._here, 1, _tell, policy, [])
        self._unit = _Ordered(order.run_id, [], retries=retries, asked=order.evaluation_settings())
        self._queue.append(self._unit)
        self._waits_since: float | None = None

    @property
    def retries(self) -> int:
        """How often the run was tried again."""
        return self._unit.retries

    @property
    def end(self) -> EventKind | None:
        """How the run ended; None where it did not."""
        return self._unit.end

    def interrupt(self) -> None:
        """Stops the worker and waits for its end, in the handler of a signal."""
        process = self._here.process
        if process is None:
            return
        process.terminate()
        # A `poll` may have been interrupted, with a lock that another one would want.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    def _has_more(self) -> bool:
        """As of any execution, but a run that another process has is not waited for long."""
        if not self._waiting:
            self._waits_since = None
            return super()._has_more()
        now = time.monotonic()
        self._waits_since = self._waits_since or now
        return now - self._waits_since < 2 * owners.LEASE.total_seconds()


@dataclass(eq=False)
class _Ordered(ScheduledRun):
    """The run of an order.

    Attributes:
        asked: settings to evaluate by; those of the run's record when empty.
    """

    asked: tuple[Plain, ...] = field(default=(), kw_only=True)

    def evaluations(self, record: RunRecord) -> tuple[Plain, ...]:
        return self.asked

    def is_done(self, record: RunRecord, store: Store) -> bool:
        """True when it is trained; which evaluations are missing only a worker can tell."""
        return record.status is Status.DONE and not self.asked


class _Here(Executor):
    """Starts the ordered worker as a child of this process."""

    name: ClassVar[str] = "here"

    def __init__(self, order: RemoteJob) -> None:
        super().__init__()
        self._order = order
        self.process: subprocess.Popen[bytes] | None = None

    def capacity(self) -> int:
        return 1

    def start(self, job: Job) -> Handle:
        self.process = self._order.start()
        return ProcessHandle(self.process)


def _tell(event: Event) -> None:
    if isinstance(event, RunEvent):
        level = logging.WARNING if event.message else logging.INFO
        _log.log(level, "run %d %s: %s", event.run.id, event.kind.value, event.message)
