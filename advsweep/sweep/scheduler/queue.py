"""Submits the missing runs of a plan to a queue, and executes its jobs.

All jobs of one submission have the same list of runs. Each claims one after another and trains it
in a worker, so that a job that starts late takes what is left. No command watches a job: it
retries its runs, enforces their limits and records the end of a worker that could not.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from filelock import FileLock

from advsweep.components import Plain
from advsweep.errors import ConfigError, StoreError
from advsweep.local_files import FILE_MODE, make_private_folder, open_private
from advsweep.printable import redacted
from advsweep.store import Owner, Status, open_store
from advsweep.sweep.events import Event, EventKind, RunEvent, SweepResult
from advsweep.sweep.executors.base import (
    STORE_VARIABLE,
    Executor,
    Handle,
    Job,
    QueueExecutor,
    ReusedWorker,
    WorkerPool,
    remote_environment,
)
from advsweep.sweep.retry_policy import Policy, store_patience
from advsweep.sweep.scheduler.runs import ScheduledRun
from advsweep.sweep.scheduler.scheduler import RunSource, Scheduler

if TYPE_CHECKING:
    from advsweep.store import Store

LOOKED_AT = 20
"""Number of runs that a job reads at a time, to find one that it can claim."""

_JOB = re.compile(r"[0-9]+([_+][0-9]+|@[0-9.]+|@None)?")
"""Names of jobs: `123_4` in Slurm, `PID@STARTED` for processes of this machine."""

_log = logging.getLogger(__name__)


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
        ConfigError: the policy counts failures, or the queue cannot be reached, or refuses the
            jobs.
    """
    ids = [scheduled.run_id for scheduled in runs]
    folder = store.runs_directory / executor.name
    make_private_folder(folder)
    with FileLock(folder / "jobs.lock", mode=FILE_MODE):
        submissions = _read(folder / "jobs.json")
        # Asked under the lock: two commands at once would submit the same runs twice.
        alive = executor.queued(name for jobs, _ in submissions for name in jobs)
        submissions = [each for each in submissions if alive.intersection(each[0])]
        queued = {run_id for _, run_ids in submissions for run_id in run_ids}
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
            environment = remote_environment(executor.resources.cpus, store.url)
            if redacted(store.url) != store.url:
                # Jobs are kept in files; the process of one finds the URL in its environment.
                del environment[STORE_VARIABLE]
            works = [
                QueueWork(new, environment, policy, is_first=number == 0)
                for number in range(min(len(new), side_by_side))
            ]
            names = executor.submit(works, folder, store.url)
            run_ids = [run.run_id for run in new]
            listed = [{"jobs": n, "runs": r} for n, r in [*submissions, (names, run_ids)]]
            with open_private(folder / "jobs.json.new", "w", encoding="utf-8") as file:
                json.dump(listed, file)
            # Replaced as a whole: half a file would make the queue's runs look free.
            (folder / "jobs.json.new").replace(folder / "jobs.json")
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


def _read(path: Path) -> list[tuple[list[str], list[int]]]:
    """Read which jobs were submitted together, and the runs that they share.

    Raises:
        StoreError: advsweep did not write the file.
    """
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        found = [(each["jobs"], each["runs"]) for each in known]
        # A store of unknown origin may hold any names, and they go to commands.
        sound = all(
            all(isinstance(name, str) and _JOB.fullmatch(name) for name in jobs)
            and all(isinstance(run_id, int) for run_id in run_ids)
            for jobs, run_ids in found
        )
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, LookupError, RecursionError):
        sound = False
    if not sound:
        raise StoreError(f"{path}: expected the names of jobs and their runs; remove the file")
    return found


@dataclass(frozen=True)
class QueuedRun:
    """A run in the list of a job.

    Attributes:
        finished: time of its last end before it was submitted.
        settings: evaluation settings; those of the run's record when empty.
    """

    run_id: int
    finished: datetime | None
    settings: tuple[Plain, ...] = ()


@dataclass
class QueueWork:
    """The scheduler of a job: it trains one run of its list after another.

    It can be pickled, before it is called and after `interrupt`.

    Attributes:
        environment: variables to set where the job runs.
        is_first: whether it makes the evaluations that completed runs lack, for which there is
            no lease.
    """

    runs: Sequence[QueuedRun]
    environment: Mapping[str, str]
    policy: Policy
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
            source = ListedRuns(store, self.runs, evaluates=self.is_first)
            # The queue's library handles signals and calls `interrupt`.
            scheduler = Scheduler(
                *(store, workers, 1, _log_event, self.policy), source=source, waits=False
            )
            with contextlib.closing(workers):
                scheduler.run()
            result = scheduler.result()
        return f"{result.done} done, {len(result.failed)} failed, {result.unfinished} unfinished"

    def interrupt(self) -> None:
        """Stop the worker and wait for its end; called from a signal handler."""
        if self._workers is not None:
            self._workers.interrupt()
        self._workers = None  # it cannot be pickled


class ListedRuns(RunSource):
    """The runs of a list that no other job of the submission has, or had."""

    def __init__(self, store: Store, runs: Sequence[QueuedRun], *, evaluates: bool) -> None:
        self._store = store
        self._evaluates = evaluates
        self._open = {run.run_id: run for run in runs}

    @property
    def is_exhausted(self) -> bool:
        return not self._open

    def add_runs(self, scheduler: Scheduler) -> bool:
        while some := list(self._open)[:LOOKED_AT]:
            for record in self._store.runs.select(ids=some):
                run = self._open.pop(record.id)
                scheduled = ScheduledRun(run.run_id, [], run.settings, finished=run.finished)
                # A failure since the submission is that of another job, which has retried the
                # run; an interruption is that of a job whose time was up.
                has_failed = record.status is Status.FAILED and scheduled.has_ended(record)
                if record.stop_requested or has_failed:
                    continue
                if record.status is Status.DONE:
                    if not (self._evaluates and run.settings):
                        continue
                elif self._store.leases.claim(run.run_id, Owner.current()):
                    scheduled.claimed = True
                else:
                    continue  # another job, or a worker elsewhere, has it
                scheduler.add(scheduled)
                return True
        return False


class _JobExecutor(Executor):
    """Starts the workers of a job as children of its process."""

    name: ClassVar[str] = "here"

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
        if self._worker is None or self._worker.is_over:
            return
        process = self._worker.process
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
