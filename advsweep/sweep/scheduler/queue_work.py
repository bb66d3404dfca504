"""What a job of a queue does: it takes one run of its list after another and trains it."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from advsweep.errors import ConfigError
from advsweep.store import Owner, Status, open_store
from advsweep.sweep.events import Event, RunEvent
from advsweep.sweep.executors.base import Executor, Handle, Job, Resources
from advsweep.sweep.executors.processes import STORE_VARIABLE, ReusedWorker, WorkerPool
from advsweep.sweep.retry_policy import Policy, store_patience
from advsweep.sweep.scheduler.machine_check import MachineCheck
from advsweep.sweep.scheduler.runs import ScheduledRun
from advsweep.sweep.scheduler.scheduler import Scheduler, Source
from advsweep.sweep.scheduler.states import Queued

if TYPE_CHECKING:
    from advsweep.store import Store

# Number of runs that a job reads at a time, to find one that it can claim.
LOOKED_AT = 20

_log = logging.getLogger(__name__)


@dataclass
class QueueWork:
    """The scheduler of a job: it trains one run of its list after another (`executors.base.Work`).

    Attributes:
        runs: its list; `finished` is the time of the last end before the submission.
        environment: variables to set where the job runs.
        resources: what each run occupies.
        is_first: whether it makes the evaluations that completed runs lack, for which there is
            no lease.
    """

    runs: Sequence[ScheduledRun]
    environment: Mapping[str, str]
    policy: Policy
    resources: Resources = field(default_factory=Resources)
    is_first: bool = True
    _workers: _JobExecutor | None = field(default=None, compare=False)

    def __call__(self) -> str:
        """Train runs until none is left; return how many there were, in words."""
        os.environ.update(self.environment)
        if STORE_VARIABLE not in os.environ:
            raise ConfigError(
                f"expected the store's URL in the job's environment as ${STORE_VARIABLE}, got "
                "none: the URL holds a password, which no file of a job holds, and the queue does "
                "not pass the environment on (SBATCH_EXPORT, --export); set $PGPASSWORD where "
                "jobs run and leave the password out of the URL"
            )
        with open_store(create=False, patience=store_patience(), wait=True) as store:
            workers = self._workers = _JobExecutor()
            workers.prepare(self.resources, ())
            # The queue's library handles signals and calls `interrupt`.
            scheduler = Scheduler(
                store=store,
                executor=workers,
                slots=1,
                on_event=_log_event,
                policy=self.policy,
                source=listed_runs(store, self.runs, evaluates=self.is_first),
            )
            with closing(workers):
                scheduler.run()
            result = scheduler.result()
        if scheduler.refusal:
            raise ConfigError(f"{scheduler.refusal}; the job ends, and leaves its runs to others")
        return f"{result.done} done, {len(result.failed)} failed, {result.unfinished} unfinished"

    def interrupt(self) -> None:
        """Stop the worker and wait for its end; called from a signal handler."""
        if self._workers is not None:
            self._workers.interrupt()
        self._workers = None  # it cannot be pickled


def _log_event(event: Event) -> None:
    if isinstance(event, RunEvent):
        level = logging.WARNING if event.message else logging.INFO
        _log.log(level, "run %d %s: %s", event.run.id, event.kind.value, event.message)


def listed_runs(store: Store, runs: Sequence[ScheduledRun], *, evaluates: bool) -> Source:
    """Claim and give the runs of a list that no other job of the submission has, or had.

    Args:
        evaluates: whether completed runs are given, to be evaluated; they are not claimed.

    Raises:
        ConfigError: this machine lacks what a run needs, which is left to other jobs.
    """
    machine = MachineCheck()
    # Copies: the list goes into a file when the job is queued again.
    left = {run.run_id: copy.copy(run) for run in runs}
    while left:
        for record in store.runs.select(ids=list(left)[:LOOKED_AT]):
            scheduled = left.pop(record.id)
            # Another job retried a run that has failed since the submission; an interrupted run
            # was left by a job whose time was up.
            has_failed = record.status is Status.FAILED and scheduled.has_ended(record)
            if record.stop_requested or has_failed:
                continue
            if record.status is Status.DONE:
                if evaluates and scheduled.settings:
                    yield scheduled, Queued()
                    break  # the other records are old by now
                continue
            machine.check(record)
            # Otherwise another job, or a worker elsewhere, has it.
            if store.leases.claim(record.id, Owner.current()):
                yield scheduled, Queued(is_claimed=True)
                break


class _JobExecutor(Executor):
    """Starts the workers of a job as children of its process."""

    name: ClassVar[str] = "here"
    limits_memory: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._workers = WorkerPool()
        self._worker: ReusedWorker | None = None

    def capacity(self) -> int:
        return 1

    def start(self, job: Job) -> Handle:
        self._worker = self._workers.start(job, os.environ)
        return self._worker

    def interrupt(self) -> None:
        """Stop the worker and wait for its end; called from a signal handler."""
        if self._worker is None or self._worker.is_idle:
            return
        process = self._worker.process
        os.kill(process.pid, signal.SIGTERM)
        # The signal may have interrupted `Popen.poll`, whose lock `Popen.wait` would wait for.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        self._workers.close()
