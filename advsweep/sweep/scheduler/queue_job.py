"""Executes one run in the job of a queue.

No scheduler watches the job from outside. So the job itself retries the run, enforces its limits
and records the end of a worker that could not record it.
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
from advsweep.sweep.events import Event, EventKind, RunEvent
from advsweep.sweep.executors.base import (
    STORE_VARIABLE,
    Executor,
    Handle,
    Job,
    ProcessHandle,
    RemoteJob,
)
from advsweep.sweep.retry_policy import store_patience
from advsweep.sweep.scheduler.scheduled_runs import ScheduledRun
from advsweep.sweep.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    import subprocess

    from advsweep.store import RunRecord, Store
    from advsweep.sweep.retry_policy import Policy

_log = logging.getLogger(__name__)


class QueueJob(Scheduler):
    """The scheduler of a single run, in the job that was submitted for it.

    The queue's library handles signals and calls `interrupt`.

    Args:
        retries: number of retries before the job was interrupted and queued again.
    """

    def __init__(self, job: RemoteJob, policy: Policy, retries: int) -> None:
        # These include the folder of all runs and, unless it has a password, the store's URL.
        os.environ.update(job.environment)
        if STORE_VARIABLE not in os.environ:
            raise ConfigError(
                f"expected the store's URL in the job's environment as ${STORE_VARIABLE}, got "
                "none: the URL holds a password, which no file of a job holds, and the queue does "
                "not pass the environment on (SBATCH_EXPORT, --export); set $PGPASSWORD where "
                "jobs run and leave the password out of the URL"
            )
        store = open_store(create=False, patience=store_patience(), wait=True)
        self._child = _ChildExecutor(job)
        # The run joins the queue directly: `_enqueue` would withdraw a request to stop it.
        super().__init__(store, self._child, 1, _log_event, policy, [])
        own = job.job
        self._run = _JobRun(own.run_id, [], retries=retries, settings=own.evaluations)
        self._queue.append(self._run)
        self._waiting_since: float | None = None

    @property
    def retries(self) -> int:
        """The number of retries of the run."""
        return self._run.retries

    @property
    def end(self) -> EventKind | None:
        """How the run ended; None if it did not."""
        return self._run.end

    def execute(self) -> str:
        """Executes the run and returns how it ended, in a word."""
        self.run()
        return self.end.value if self.end else "elsewhere"

    def interrupt(self) -> None:
        """Stops the worker and waits for its end; called from a signal handler."""
        process = self._child.process
        if process is None:
            return
        process.terminate()
        # The signal may have interrupted `Popen.poll`, whose lock `Popen.wait` would wait for.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    def _has_more(self) -> bool:
        """As of any scheduler, but waits a limited time for a run of another process."""
        if not self._waiting:
            self._waiting_since = None
            return super()._has_more()
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        return now - self._waiting_since < 2 * owners.LEASE.total_seconds()


@dataclass(eq=False)
class _JobRun(ScheduledRun):
    """The run of a job.

    Attributes:
        settings: evaluation settings; those of the run's record when empty.
    """

    settings: tuple[Plain, ...] = field(default=(), kw_only=True)

    def evaluations(self, record: RunRecord) -> tuple[Plain, ...]:
        return self.settings

    def is_done(self, record: RunRecord, store: Store) -> bool:
        """Returns whether the run is trained; a worker checks for missing evaluations."""
        return record.status is Status.DONE and not self.settings


class _ChildExecutor(Executor):
    """Starts the job's worker as a child of this process."""

    name: ClassVar[str] = "here"

    def __init__(self, job: RemoteJob) -> None:
        super().__init__()
        self._job = job
        self.process: subprocess.Popen[bytes] | None = None

    def capacity(self) -> int:
        return 1

    def start(self, job: Job) -> Handle:
        self.process = self._job.start()
        return ProcessHandle(self.process)


def _log_event(event: Event) -> None:
    if isinstance(event, RunEvent):
        level = logging.WARNING if event.message else logging.INFO
        _log.log(level, "run %d %s: %s", event.run.id, event.kind.value, event.message)
