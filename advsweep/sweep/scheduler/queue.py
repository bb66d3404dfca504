"""Submits the missing runs of a plan to a queue, lists what the queue has, and executes its jobs.

All jobs of one submission have the same list of runs. Each claims one after another and trains it
in a worker, so that a job that starts late takes what is left. No command watches a job: it
retries its runs, enforces their limits and records the end of a worker that could not.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from filelock import FileLock

from advsweep.components import Plain
from advsweep.errors import ConfigError
from advsweep.local_files import FILE_MODE, make_private_folder, open_private
from advsweep.printable import redacted
from advsweep.store import Owner, Status, open_store
from advsweep.sweep.events import Event, EventKind, RunEvent, SweepResult
from advsweep.sweep.executors.base import (
    STORE_VARIABLE,
    Executor,
    Handle,
    Job,
    PooledHandle,
    QueuedWork,
    QueueExecutor,
    WorkerPool,
    remote_environment,
)
from advsweep.sweep.retry_policy import Policy, store_patience
from advsweep.sweep.scheduler.runs import ScheduledRun
from advsweep.sweep.scheduler.scheduler import RunSource, Scheduler
from advsweep.sweep.status import Submission, read_submissions

if TYPE_CHECKING:
    from advsweep.store import Store

LOOKED_AT = 20
"""Number of runs that a job reads at a time, to find one that it can claim."""

_log = logging.getLogger(__name__)


def check_policy(policy: Policy, executor: QueueExecutor) -> None:
    """Refuse a policy that only a process that sees all runs can apply.

    Raises:
        ConfigError: the policy counts failures.
    """
    if policy.max_failures is not None:
        raise ConfigError(
            f"--max-failures: executor '{executor.name}' hands its runs to a queue and does not "
            "see them fail; leave it out, or choose another executor"
        )


def submit(
    runs: Sequence[ScheduledRun],
    store: Store,
    executor: QueueExecutor,
    side_by_side: int,
    on_event: Callable[[Event], None],
    policy: Policy,
) -> SweepResult:
    """Submit jobs for the runs that are not completed, being trained or queued already.

    Stop requests of runs that are queued, now or before, are withdrawn. The names of the jobs
    are kept in `jobs.json`, in the executor's folder beside the runs' folders, so that the next
    call can look them up in the queue.

    Raises:
        ConfigError: the queue cannot be reached, or refuses the jobs.
    """
    ids = [scheduled.run_id for scheduled in runs]
    folder = store.runs_directory / executor.name
    make_private_folder(folder)
    with FileLock(folder / "jobs.lock", mode=FILE_MODE):
        submissions = read_submissions(folder)
        alive = executor.queued(name for each in submissions for name in each.jobs)
        submissions = [each for each in submissions if alive.keys() & set(each.jobs)]
        queued = {run_id for each in submissions for run_id in each.runs}
        records = {record.id: record for record in store.runs.select(ids=ids)}
        free = [r for r in records.values() if r.status is not Status.RUNNING]
        store.leases.withdraw_stops([record.id for record in free if record.stop_requested])
        skipped, pruned, new = 0, {}, []
        for scheduled in runs:
            record = records[scheduled.run_id]
            if scheduled.is_done(record, store):
                skipped += 1
                on_event(RunEvent(EventKind.SKIPPED, record))
            elif record.status is Status.PRUNED:
                pruned[record.id] = record.error or ""
                on_event(RunEvent(EventKind.PRUNED, record, pruned[record.id]))
            elif record.status is Status.RUNNING:
                on_event(RunEvent(EventKind.WAITING, record, "another process trains it"))
            elif record.id in queued:
                on_event(RunEvent(EventKind.WAITING, record, "a queued job has it"))
            else:
                settings = scheduled.evaluations(record)
                new.append(QueuedRun(record.id, record.finished, settings))
        if new:
            works = _works(new, min(len(new), side_by_side), store.url, executor, policy)
            names = executor.submit(works, folder, store.url)
            run_ids = [run.run_id for run in new]
            _write(folder, [*submissions, Submission(names, run_ids)])
            jobs = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            for run_id in run_ids:
                on_event(RunEvent(EventKind.SUBMITTED, records[run_id], f"as {jobs}"))
    return SweepResult(
        run_ids=ids,
        done=0,
        skipped=skipped,
        failed={},
        unfinished=0,
        stopped=False,
        submitted=len(new),
        queued=len(runs) - skipped - len(pruned) - len(new),
        pruned=pruned,
    )


def _works(
    runs: Sequence[QueuedRun], number: int, url: str, executor: Executor, policy: Policy
) -> list[QueueWork]:
    environment = remote_environment(executor.resources.cpus, url)
    if redacted(url) != url:
        # Jobs are kept in files; the process that runs one finds the URL in its environment.
        del environment[STORE_VARIABLE]
    return [QueueWork(runs, (job, number), environment, policy) for job in range(number)]


def _write(folder: Path, submissions: Sequence[Submission]) -> None:
    new = folder / "jobs.json.new"
    with open_private(new, "w", encoding="utf-8") as file:
        json.dump([{"jobs": each.jobs, "runs": each.runs} for each in submissions], file)
    new.replace(folder / "jobs.json")


@dataclass(frozen=True)
class QueuedRun:
    """A run in the list of a job.

    Attributes:
        finished: time of its last end before it was submitted.
        settings: evaluation settings; those of the run's record when empty.
        retries: number of retries before its job was interrupted.
        resumed: true if it was interrupted with its job, so that an end is none.
    """

    run_id: int
    finished: datetime | None
    settings: tuple[Plain, ...] = ()
    retries: int = 0
    resumed: bool = False


@dataclass
class QueueWork(QueuedWork):
    """The scheduler of a job: it trains one run of its list after another.

    Attributes:
        share: the number of this job, from 0, and that of all jobs.
        environment: variables to set where the job runs.
    """

    runs: Sequence[QueuedRun]
    share: tuple[int, int]
    environment: Mapping[str, str]
    policy: Policy
    _workers: _JobExecutor | None = field(default=None, compare=False)
    _listed: ListedRuns | None = field(default=None, compare=False)

    def __call__(self) -> str:
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
            listed = self._listed = ListedRuns(store, self.runs, self.share)
            # The queue's library handles signals and calls `interrupt`.
            scheduler = Scheduler(
                *(store, workers, 1, _log_event, self.policy), source=listed, waits=False
            )
            with contextlib.closing(workers):
                scheduler.run()
            result = scheduler.result()
        return f"{result.done} done, {len(result.failed)} failed, {result.unfinished} unfinished"

    def interrupt(self) -> None:
        if self._workers is not None and self._listed is not None:
            self._workers.interrupt()
            self.runs = self._listed.left()
        self._workers = self._listed = None


class ListedRuns(RunSource):
    """The runs of a list that no other job of the submission has, or had."""

    def __init__(self, store: Store, runs: Sequence[QueuedRun], share: tuple[int, int]) -> None:
        self._store = store
        self._job, self._jobs = share
        self._open = {run.run_id: run for run in runs}
        self._numbers = {run.run_id: number for number, run in enumerate(runs)}
        self._own: list[ScheduledRun] = []

    @property
    def is_exhausted(self) -> bool:
        return not self._open

    def add_runs(self, scheduler: Scheduler) -> bool:
        while some := list(self._open)[:LOOKED_AT]:
            for record in self._store.runs.select(ids=some):
                run = self._open.pop(record.id)
                scheduled = ScheduledRun(
                    run.run_id, [], run.settings, finished=run.finished, retries=run.retries
                )
                # An end since the submission is that of another job's work on the run, which is
                # not repeated; an interruption is resumed by that job, once it is queued again.
                if record.stop_requested or (scheduled.has_ended(record) and not run.resumed):
                    continue
                if record.status is Status.DONE:
                    # There is no lease on evaluations: every job makes its share of them.
                    if not run.settings or self._numbers[run.run_id] % self._jobs != self._job:
                        continue
                elif not self._store.leases.claim(run.run_id, Owner.current()):
                    continue  # another job, or a worker elsewhere, has it
                self._own.append(scheduled)
                scheduler.add([scheduled], claimed=record.status is not Status.DONE)
                return True
        return False

    def left(self) -> list[QueuedRun]:
        """Return the runs to go on with after an interruption: this job's own come first."""
        own = [
            QueuedRun(run.run_id, run.finished, run.settings, run.retries, resumed=True)
            for run in self._own
            if run.end in (None, EventKind.INTERRUPTED)
        ]
        return own + list(self._open.values())


class _JobExecutor(Executor):
    """Starts the workers of a job as children of its process."""

    name: ClassVar[str] = "here"

    def __init__(self) -> None:
        super().__init__()
        self._workers = WorkerPool()
        self._handle: PooledHandle | None = None

    def capacity(self) -> int:
        return 1

    def start(self, job: Job) -> Handle:
        self._handle = self._workers.start(job, os.environ)
        return self._handle

    def interrupt(self) -> None:
        """Stop the worker and wait for its end; called from a signal handler."""
        if self._handle is None or self._handle.is_over:
            return
        process = self._handle.process
        os.kill(process.pid, signal.SIGTERM)
        # The signal may have interrupted `Popen.poll`, whose lock `Popen.wait` would wait for.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        self._workers.close()


def _log_event(event: Event) -> None:
    if isinstance(event, RunEvent):
        level = logging.WARNING if event.message else logging.INFO
        _log.log(level, "run %d %s: %s", event.run.id, event.kind.value, event.message)
