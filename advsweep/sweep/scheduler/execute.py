"""Executes runs: those of a plan, open runs of a store (`advsweep worker`), and jobs of a queue.

All jobs of one submission to a queue have the same list of runs. Each claims one after another and
trains it in a worker, so that a job that starts late takes what is left. No command watches a job:
it retries its runs, enforces their limits and records the end of a worker that could not.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from filelock import FileLock

from advsweep.backends import BACKENDS
from advsweep.backends.base import Backend
from advsweep.errors import ConfigError, StoreError
from advsweep.local_files import FILE_MODE, make_private_folder, replace_file
from advsweep.printable import redacted
from advsweep.store import Owner, Status, open_store
from advsweep.sweep.events import Event, EventKind, RunEvent, SweepResult
from advsweep.sweep.executors import base
from advsweep.sweep.planning.resume import DEFAULTS, changed_settings, recorded_setting
from advsweep.sweep.retry_policy import Policy, store_patience
from advsweep.sweep.scheduler.runs import ScheduledRun, check_policy, give_back, schedule_runs
from advsweep.sweep.scheduler.scheduler import STORE_SECONDS, Scheduler
from advsweep.sweep.stop_request import handle_stop_signals
from advsweep.tasks import TASKS

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.registry import Registry
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.planning.plan import Plan

# Number of runs that a job reads at a time, to find one that it can claim.
LOOKED_AT = 20

# Names of jobs: `123_4` in Slurm, `PID@STARTED` for processes of this machine.
_JOB = re.compile(r"[0-9]+([_+][0-9]+|@[0-9.]+|@None)?")

_log = logging.getLogger(__name__)


def execute(
    plan: Plan,
    store: Store,
    jobs: int | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    force: bool = False,
    policy: Policy | None = None,
) -> SweepResult:
    """Execute what is missing of a plan and return when all its runs are in a final state.

    Completed runs are skipped, and so are runs that the plan's rule has stopped early.
    Interrupted runs resume from their last checkpoint, as do runs that another rule stopped.
    Failed runs are tried again; runs that another process trains are waited for. A run with a
    stop request in the store is interrupted, or not started, until the next execution.

    SIGINT, SIGTERM and SIGHUP stop all workers with a checkpoint; a second signal kills them.
    With a queue executor the runs are only submitted; their jobs apply retries and limits.

    Args:
        jobs: number of workers side by side; the executor's capacity when None.
        on_event: receives events, in the calling thread.
        force: train completed and pruned runs again, as new attempts.
        policy: retries and limits; the default policy when None.

    Raises:
        ConfigError: the executor does not support the policy, never has room for a run, or
            cannot reach its cluster.
        StoreError: the store cannot be used.
    """
    policy = policy or Policy()
    check_policy(policy, plan.executor)
    plan.check()
    runs = schedule_runs(plan, store, force=force)
    slots = jobs or plan.executor.capacity()
    if isinstance(plan.executor, base.QueueExecutor):
        return submit(runs, store, plan.executor, slots, on_event, policy)
    scheduler = Scheduler(store, plan.executor, slots, on_event, policy, runs)
    with handle_stop_signals(scheduler.request_stop), closing(plan.executor):
        scheduler.run()
    return scheduler.result()


def pull_runs(
    store: Store,
    sweep: str | None,
    executor: base.Executor,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    idle_seconds: float = 0.0,
    overrides: Sequence[str] = (),
) -> SweepResult:
    """Train pending, interrupted and lost runs until none is left.

    Any number of processes, on any machines that reach the store, may pull at once. Each claims
    a run before it starts a worker for it, so that no run gets two workers. Configs and resources
    are read from the store alone. Runs that failed before are left alone, and runs of other
    processes are not waited for. Signals act as in `execute`.

    Args:
        sweep: pull runs of this sweep alone.
        on_event: receives events, in the calling thread.
        idle_seconds: time to wait for more runs when there are none.
        overrides: changes to the sweeps' resources, such as `resources.cpus=2`.

    Raises:
        ConfigError: the executor never has room for a run, an override does not fit, or a run
            needs the user's consent to run programs.
        NotFoundError: there is no such sweep.
        StoreError: the store cannot be used.
    """
    pulled = PulledRuns(store, sweep, idle_seconds, overrides)
    results: list[SweepResult] = []
    try:
        # One scheduler after another, each for runs with the same resources: an executor gives
        # all of its workers the same.
        while not results or (pulled.claimed and not results[-1].stopped):
            executor.prepare(pulled.begin(), ())
            executor.check()
            scheduler = pulled.scheduler = Scheduler(
                *(store, executor, executor.capacity(), on_event, Policy()),
                source=pulled.runs(),
            )
            with handle_stop_signals(scheduler.request_stop), closing(executor):
                scheduler.run()
            results.append(scheduler.result())
    finally:
        if pulled.claimed is not None:
            give_back(store, pulled.claimed[0].id)
    return SweepResult.of_stages(results)


class PulledRuns:
    """Open runs of a store, each claimed by this process when there is a slot for it.

    Attributes:
        scheduler: the one that takes the runs.
        claimed: a claimed run that no scheduler has yet, and what it needs.
    """

    scheduler: Scheduler

    def __init__(
        self, store: Store, sweep: str | None, idle_seconds: float, overrides: Sequence[str]
    ) -> None:
        self._store = store
        self._sweep = sweep
        self._idle_seconds = idle_seconds
        self._overrides = overrides
        self._next_claim = 0.0
        self.claimed: tuple[RunRecord, base.Resources] | None = None
        # Wrong overrides, runs without consent and programs that this machine lacks are refused
        # before a run is claimed, so that none is blamed for them.
        self._resources = self._build(DEFAULTS["resources"])
        # Many runs of a sweep have the same task and backend.
        parts = {}
        for status in (Status.PENDING, Status.INTERRUPTED, Status.LOST):
            for record in store.runs.select(sweep=sweep, status=status):
                config = record.config
                parts[json.dumps([config.get("task"), config.get("backend")])] = record
        for record in parts.values():
            _check_fit(record)

    def begin(self) -> base.Resources:
        """Return the resources of the runs for the next scheduler."""
        if claimed := self._claim():
            _, self._resources = claimed
        return self._resources

    def runs(self) -> Iterator[ScheduledRun | None]:
        """Give one scheduler its runs, which all need the same resources."""
        idle_since: float | None = None
        while True:
            claimed, idle = self._claim(), self.scheduler.is_idle
            if claimed is None:
                now = time.monotonic()
                if idle_since is None and idle:
                    idle_since = now
                if idle_since is not None and now - idle_since >= self._idle_seconds:
                    return
                yield None
            elif claimed[1] == self._resources:
                self.claimed, idle_since, self._next_claim = None, None, 0.0
                # Claimed before it is started: of several machines, only one starts a worker.
                yield ScheduledRun(claimed[0].id, [], claimed=True)
            elif idle:
                return
            else:
                # It stays claimed: given back, another worker and this one could pass it to and
                # fro.
                yield None

    def _claim(self) -> tuple[RunRecord, base.Resources] | None:
        """Return the claimed run; claim one if there is none."""
        now, leases = time.monotonic(), self._store.leases
        if now < self._next_claim:
            return self.claimed
        # Other processes may add, lose or interrupt runs until the next attempt.
        self._next_claim = now + STORE_SECONDS
        if self.claimed is not None:
            # It waits until the runs with other resources have ended.
            if leases.renew([self.claimed[0].id]):
                self.claimed = None
        elif (run_id := leases.claim_next(Owner.current(), self._sweep)) is not None:
            [record] = self._store.runs.select(ids=[run_id])
            # It is given back if this fails.
            self.claimed = record, self._resources
            _check_fit(record)
            sweeps = [s for s in self._store.sweeps.select() if self._sweep in (None, s.name)]
            node = recorded_setting(record, sweeps, "resources")
            self.claimed = record, self._build(node)
        return self.claimed

    def _build(self, node: Plain | None) -> base.Resources:
        """Build the resources of a node, with the user's overrides."""
        changed = changed_settings({"resources": node}, self._overrides)["resources"]
        return base.Resources.build(changed, where="resources")


def _check_fit(record: RunRecord) -> None:
    """Refuse a run here that its own process would refuse and record as failed."""
    registries: Mapping[str, Registry[Any]] = {"task": TASKS, "backend": BACKENDS}
    for key, registry in registries.items():
        try:
            part = registry.build(record.config[key], where=key)
        except (ConfigError, KeyError):
            continue  # it cannot be built, which its own process records
        try:
            part.check_consent()
            if isinstance(part, Backend):
                part.check_machine()
        except ConfigError as error:
            raise ConfigError(f"run {record.id}: {error}") from error


def submit(
    runs: Sequence[ScheduledRun],
    store: Store,
    executor: base.QueueExecutor,
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
    folder = store.runs_directory / executor.name
    make_private_folder(folder)
    with FileLock(folder / "jobs.lock", mode=FILE_MODE):
        submissions = _read(folder / "jobs.json")
        # Asked under the lock: two commands at once would submit the same runs twice.
        alive = executor.queued(name for jobs, _ in submissions for name in jobs)
        submissions = [each for each in submissions if alive.intersection(each[0])]
        queued = {run_id for _, run_ids in submissions for run_id in run_ids}
        # It starts nothing here: it tells which runs are missing.
        scheduler = Scheduler(store, executor, 0, on_event, policy, runs)
        new, records = [], []
        for scheduled, record in scheduler.enqueue():
            if record.id in queued:
                on_event(RunEvent(EventKind.WAITING, record, "a queued job has it"))
            else:
                settings = scheduled.evaluations(record)
                new.append(ScheduledRun(record.id, [], settings, finished=record.finished))
                records.append(record)
        if new:
            environment = base.remote_environment(executor.resources.cpus, store.url)
            if redacted(store.url) != store.url:
                # Jobs are kept in files; the process of one finds the URL in its environment.
                del environment[base.STORE_VARIABLE]
            works = [
                QueueWork(new, environment, policy, is_first=number == 0)
                for number in range(min(len(new), side_by_side))
            ]
            names = executor.submit(works, folder, store.url)
            run_ids = [run.run_id for run in new]
            listed = [{"jobs": n, "runs": r} for n, r in [*submissions, (names, run_ids)]]
            # Replaced as a whole: half a file would make the queue's runs look free.
            replace_file(folder / "jobs.json", json.dumps(listed))
            jobs = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            for record in records:
                on_event(RunEvent(EventKind.SUBMITTED, record, f"as {jobs}"))
    result = scheduler.result()
    waiting = result.unfinished - len(new)
    return replace(result, unfinished=0, submitted=len(new), queued=waiting)


def _read(path: Path) -> list[tuple[list[str], list[int]]]:
    """Read which jobs were submitted together, and the runs that they share.

    Raises:
        StoreError: advsweep did not write the file.
    """
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        found = [(each["jobs"], each["runs"]) for each in known]
        # A store of unknown origin may hold any names, and they go to commands.
        sound = all(_JOB.fullmatch(name) for jobs, _ in found for name in jobs)
        sound = sound and all(isinstance(run_id, int) for _, ids in found for run_id in ids)
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, LookupError, RecursionError):
        sound = False
    if not sound:
        raise StoreError(f"{path}: expected the names of jobs and their runs; remove the file")
    return found


@dataclass
class QueueWork:
    """The scheduler of a job: it trains one run of its list after another.

    It can be pickled, before it is called and after `interrupt`.

    Attributes:
        runs: its list; `finished` is the time of the last end before the submission.
        environment: variables to set where the job runs.
        is_first: whether it makes the evaluations that completed runs lack, for which there is
            no lease.
    """

    runs: Sequence[ScheduledRun]
    environment: Mapping[str, str]
    policy: Policy
    is_first: bool = True
    _workers: _JobExecutor | None = field(default=None, compare=False)

    def __call__(self) -> str:
        """Train runs until none is left; return how many there were, in words."""
        os.environ.update(self.environment)
        if base.STORE_VARIABLE not in os.environ:
            raise ConfigError(
                f"expected the store's URL in the job's environment as ${base.STORE_VARIABLE}, got "
                "none: the URL holds a password, which no file of a job holds, and the queue does "
                "not pass the environment on (SBATCH_EXPORT, --export); set $PGPASSWORD where "
                "jobs run and leave the password out of the URL"
            )
        with open_store(create=False, patience=store_patience(), wait=True) as store:
            workers = self._workers = _JobExecutor()

            def log_event(event: Event) -> None:
                if isinstance(event, RunEvent):
                    level = logging.WARNING if event.message else logging.INFO
                    what = event.run.id, event.kind.value, event.message
                    _log.log(level, "run %d %s: %s", *what)

            source = listed_runs(store, self.runs, evaluates=self.is_first)
            # The queue's library handles signals and calls `interrupt`.
            scheduler = Scheduler(*(store, workers, 1, log_event, self.policy), source=source)
            with closing(workers):
                scheduler.run()
            result = scheduler.result()
        return f"{result.done} done, {len(result.failed)} failed, {result.unfinished} unfinished"

    def interrupt(self) -> None:
        """Stop the worker and wait for its end; called from a signal handler."""
        if self._workers is not None:
            self._workers.interrupt()
        self._workers = None  # it cannot be pickled


def listed_runs(
    store: Store, runs: Sequence[ScheduledRun], *, evaluates: bool
) -> Iterator[ScheduledRun]:
    """Claim and give the runs of a list that no other job of the submission has, or had."""
    # Copies: the list goes into a file when the job is queued again.
    left = {run.run_id: copy.copy(run) for run in runs}
    while some := list(left)[:LOOKED_AT]:
        for record in store.runs.select(ids=some):
            scheduled = left.pop(record.id)
            # A failure since the submission is that of another job, which has retried the run; an
            # interruption is that of a job whose time was up.
            has_failed = record.status is Status.FAILED and scheduled.has_ended(record)
            if record.stop_requested or has_failed:
                continue
            if record.status is not Status.DONE:
                # Otherwise another job, or a worker elsewhere, has it.
                scheduled.claimed = store.leases.claim(record.id, Owner.current())
            if scheduled.claimed or (
                record.status is Status.DONE and evaluates and scheduled.settings
            ):
                yield scheduled
                break  # the other records are old by now


class _JobExecutor(base.Executor):
    """Starts the workers of a job as children of its process."""

    name: ClassVar[str] = "here"

    def __init__(self) -> None:
        super().__init__()
        self._workers = base.WorkerPool()
        self._worker: base.ReusedWorker | None = None

    def capacity(self) -> int:
        return 1

    def start(self, job: base.Job) -> base.Handle:
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
