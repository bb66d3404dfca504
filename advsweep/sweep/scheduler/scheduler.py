"""Executes a plan: starts what is missing, supervises it, and survives any death of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from advsweep.errors import StoreError, is_disk_full
from advsweep.store import Failure, Status
from advsweep.store.run_folders import claim_folder
from advsweep.sweep.executors.base import Executor, Job, QueueExecutor
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler import batching, limits
from advsweep.sweep.scheduler.events import Event, EventKind, SweepProgress, SweepResult
from advsweep.sweep.scheduler.limits import FailureCause, Worker, check_limits
from advsweep.sweep.scheduler.outcomes import OutcomeRecorder, recorded_cause
from advsweep.sweep.scheduler.queue import check_policy, submit
from advsweep.sweep.scheduler.scheduled_runs import ScheduledRun, schedule_runs
from advsweep.sweep.stop_request import stop_signals_handled

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.planning.plan import Plan

POLL_SECONDS = 0.05
LOOK_SECONDS = 1.0
"""How often runs of other executions are looked at, and a store that failed is tried again."""


def execute(
    plan: Plan,
    store: Store,
    jobs: int | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    force: bool = False,
    policy: Policy | None = None,
    make: Callable[..., Scheduler] | None = None,
) -> SweepResult:
    """Does what is missing of a plan and returns when all its runs are in a final state.

    Runs that are done are skipped, as are those that the plan's rule has stopped early;
    interrupted ones go on from their last checkpoint, as do those that another rule stopped;
    failed ones are tried again, and those that another process trains are waited for. A
    failing run is tried again, and stops the others, as the policy says. A run that is asked
    to stop through the store is interrupted, or not started, and stays so until the next
    execution. SIGINT, SIGTERM and SIGHUP stop all workers with a checkpoint; a second one
    kills them. With a detached executor the runs are submitted, no more; their jobs see to
    retries and limits, each for its own run.

    Args:
        jobs: workers side by side; the executor's capacity when None.
        on_event: is told what happens, in the calling thread.
        force: train again what is done or was stopped early, as new attempts.
        policy: retries and limits; the default one when None.
        make: makes the execution, where more runs are to follow those of the plan.

    Raises:
        ConfigError: the executor cannot do what the policy asks for, never has room for a run,
            or its cluster cannot be had.
        StoreError: the store cannot be used.
    """
    policy = policy or Policy()
    check_limits(policy, plan.executor)
    plan.check()
    if isinstance(plan.executor, QueueExecutor):
        check_policy(policy, plan.executor)
    runs = schedule_runs(plan, store, force=force)
    slots = jobs or plan.executor.capacity()
    if isinstance(plan.executor, QueueExecutor):
        return submit(runs, store, plan.executor, slots, on_event, policy)
    execution = (make or Scheduler)(store, plan.executor, slots, on_event, policy, runs)
    with stop_signals_handled(execution.ask_to_stop), closing(plan.executor):
        execution.run()
    return execution.result()


class Scheduler(OutcomeRecorder):
    """The state of one `execute`, between one look at the workers and the next."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        slots: int,
        on_event: Callable[[Event], None],
        policy: Policy,
        runs: list[ScheduledRun],
    ) -> None:
        super().__init__(store, on_event, policy, runs)
        self._executor = executor
        self._slots = slots
        self._workers: list[Worker] = []
        self._looked = 0.0
        self._deadline: float | None = None

    def ask_to_stop(self) -> None:
        """Stops all workers; the second time kills them."""
        self._requests += 1
        if self._store.is_away:
            # Without the store there is nothing left to do but to end, which stops the workers.
            self._store.stop_retrying()

    def run(self) -> None:
        """Returns when nothing is left to do, or after a request when all workers are gone."""
        self._admit(self._runs)
        try:
            while self._workers or (not self._over and self._has_more()):
                self._reap()
                if self._stopping:
                    self._press()
                else:
                    self._hold_to_limits()
                if not self._over:
                    self._fill()
                if time.monotonic() - self._looked >= LOOK_SECONDS:
                    self._look()
                self._tell_progress()
                time.sleep(POLL_SECONDS)
            self._record_again()
        finally:
            # None is left but after an error of ours; the workers then save what they have.
            for worker in self._workers:
                worker.handle.stop()

    def _admit(self, runs: Sequence[ScheduledRun]) -> None:
        """Queues runs as far as something is left to do; earlier requests to stop are over."""
        records = {r.id: r for r in self._records(runs)}
        free = [r for r in records.values() if r.status is not Status.RUNNING]
        self._store.leases.withdraw_stops([r.id for r in free if r.stop_requested])
        records.update((r.id, replace(r, stop_requested=False)) for r in free)
        for scheduled in runs:
            scheduled.alone = batching.must_be_alone(records[scheduled.run_id])
            if self._sort(scheduled, records[scheduled.run_id]):
                self._queue.append(scheduled)

    @property
    def _active(self) -> list[ScheduledRun]:
        """Those whose workers are alive, and that have not ended."""
        return [scheduled for worker in self._workers for scheduled in worker.runs]

    @property
    def _free_slots(self) -> int:
        return self._slots - len(self._workers)

    def _has_more(self) -> bool:
        """Whether there is work beside that of the workers that are alive."""
        return bool(self._queue or self._waiting or self._resting)

    def _sort(self, scheduled: ScheduledRun, record: RunRecord) -> bool:
        """Whether a scheduled is to be started; else it is at its end, or waited for."""
        if scheduled.is_done(record, self._store):
            self._end(scheduled, EventKind.SKIPPED, record)
            return False
        if record.status is Status.PRUNED:
            self._end(scheduled, EventKind.PRUNED, record, record.error or "")
            return False
        if record.status is Status.RUNNING:
            self._waiting.append(scheduled)
            self._tell(EventKind.WAITING, record, "another process trains it")
            return False
        if record.stop_requested:
            self._end(scheduled, EventKind.INTERRUPTED, record, "asked to stop")
            return False
        return True

    def _fill(self) -> None:
        """Starts queued runs, and those whose pause is over, while slots are free."""
        now = time.monotonic()
        self._queue.extend(scheduled for due, scheduled in self._resting if due <= now)
        self._resting = [(due, scheduled) for due, scheduled in self._resting if due > now]
        while self._queue and self._free_slots > 0:
            scheduled = self._queue.popleft()
            record = self._record(scheduled)
            # Another execution may have taken or finished it since it was queued.
            if not self._sort(scheduled, record) or not self._claim_folder(scheduled, record):
                continue
            together = [(scheduled, record), *self._companions(scheduled, record)]
            if not self._start(together):
                self._queue.extendleft(scheduled for scheduled, _ in reversed(together))
                return

    def _companions(
        self, scheduled: ScheduledRun, record: RunRecord
    ) -> list[tuple[ScheduledRun, RunRecord]]:
        """Takes runs out of the queue to be trained together with one that is to be started."""
        # The limits are those of a run's own process.
        if not self._executor.stacks or self._policy.limits or batching.must_be_alone(record):
            return []
        chosen = batching.companions(scheduled, self._queue, self._free_slots)
        taken = []
        for other, its in zip(chosen, self._records(chosen), strict=True):
            if not self._sort(other, its):
                self._queue.remove(other)
            elif batching.are_alike((scheduled, record), (other, its)):
                self._queue.remove(other)
                if self._claim_folder(other, its):
                    taken.append((other, its))
        return taken

    def _claim_folder(self, scheduled: ScheduledRun, record: RunRecord) -> bool:
        """Whether a run's folder is its own, made if need be; else the run has failed."""
        try:
            claim_folder(record.directory, record.identity)
        except (OSError, StoreError) as error:
            self._end_unrecorded(scheduled, _not_started(error))
            return False
        return True

    def _start(self, together: Sequence[tuple[ScheduledRun, RunRecord]]) -> bool:
        """Starts a worker; false where the executor has no room for it at the moment."""
        (first, record), *rest = together
        job = Job(
            run_id=first.run_id,
            store_url=self._store.url,
            directory=record.directory,
            evaluations=first.evaluations(record),
            others=tuple(scheduled.run_id for scheduled, _ in rest),
        )
        runs = [scheduled for scheduled, _ in together]
        try:
            handle = self._executor.start(job)
        except OSError as error:
            for scheduled in runs:
                self._end_unrecorded(scheduled, _not_started(error))
            return True
        if handle is None:
            return False
        self._workers.append(Worker(handle, self._policy, runs))
        for scheduled, record in together:
            scheduled.finished = record.finished
            self._tell(EventKind.STARTED, record)
        return True

    def _reap(self) -> None:
        """Takes notice of workers that have ended."""
        for worker in list(self._workers):
            code = worker.handle.poll()
            if code is not None:
                self._workers.remove(worker)
                if worker.trains_together:
                    self._settle_all(worker, code)
                else:
                    [scheduled] = worker.runs
                    self._settle(scheduled, code, worker.cause)

    def _hold_to_limits(self) -> None:
        for worker in self._workers:
            worker.check()

    def _look(self) -> None:
        """Looks at what is trained here and elsewhere; tries again what the store did not take."""
        self._looked = time.monotonic()
        self._coroner.look()
        self._record_again()
        active = {record.id: record for record in self._records(self._active)}
        if silent := [i for i, record in active.items() if record.status is Status.LOST]:
            # Whoever keeps the store locked keeps them from renewing their leases.
            self._store.leases.await_writable(silent)
        for worker in self._workers:
            records = [active[scheduled.run_id] for scheduled in worker.runs]
            worker.look({record.status for record in records})
            for scheduled, record in zip(list(worker.runs), records, strict=True):
                if worker.trains_together and batching.is_settled(scheduled, record):
                    worker.runs.remove(scheduled)
                    self._settle(scheduled, batching.CODES[record.status], None)
        waiting, self._waiting = self._waiting, []
        for record, scheduled in zip(self._records(waiting), waiting, strict=True):
            if scheduled.is_done(record, self._store):
                self._end(scheduled, EventKind.DONE, record)
            elif record.status is Status.FAILED:
                self._fail(scheduled, record, recorded_cause(record))
            elif record.status is Status.PRUNED:
                self._end(scheduled, EventKind.PRUNED, record, record.error or "")
            elif record.status is Status.RUNNING:
                self._waiting.append(scheduled)
            else:
                self._queue.append(scheduled)

    def _press(self) -> None:
        """Passes on a request to stop; kills on the second one, or when the time is up."""
        now = time.monotonic()
        first = self._deadline is None
        if self._deadline is None:
            self._deadline = now + limits.STOP_SECONDS
        for worker in self._workers:
            if self._requests > 1 or now > self._deadline:
                worker.handle.kill()
            elif first:
                worker.handle.stop()

    def _tell_progress(self) -> None:
        self._on_event(
            SweepProgress(
                active=[scheduled.run_id for scheduled in self._active],
                waiting=[scheduled.run_id for scheduled in self._waiting],
                queued=len(self._queue) + len(self._resting),
                stopping=self._stopping,
            )
        )


def _not_started(error: Exception) -> FailureCause:
    failure = Failure.DISK if is_disk_full(error) else Failure.ERROR
    return FailureCause(failure, f"its process could not be started: {error}")
