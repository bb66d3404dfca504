"""The scheduler: starts missing runs, watches their workers and survives their crashes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from advsweep.errors import StoreError, is_disk_full
from advsweep.store import Failure, Status
from advsweep.store.run_folders import claim_folder
from advsweep.sweep import exit_codes
from advsweep.sweep.events import Event, EventKind, SweepProgress
from advsweep.sweep.executors.base import Executor, Job
from advsweep.sweep.exit_codes import FailureCause
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler import batching, limits
from advsweep.sweep.scheduler.limits import Worker
from advsweep.sweep.scheduler.outcomes import OutcomeRecorder, recorded_cause
from advsweep.sweep.scheduler.scheduled_runs import ScheduledRun

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store

POLL_SECONDS = 0.05
STORE_SECONDS = 1.0
"""Interval at which the scheduler reads the store: runs of other processes, lost leases."""


class Scheduler(OutcomeRecorder):
    """Starts runs in free slots and watches their workers until nothing is left to do."""

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
        self._store_read = 0.0
        self._deadline: float | None = None

    def request_stop(self) -> None:
        """Stops all workers; the second request kills them."""
        self._stop_requests += 1
        if self._store.is_away:
            # Without a store the scheduler can only end, which stops its workers.
            self._store.stop_retrying()

    def run(self) -> None:
        """Returns when nothing is left to do; after a stop request, when all workers are gone."""
        self._enqueue(self._runs)
        try:
            while self._workers or (not self._over and self._has_more()):
                self._handle_exits()
                if self._stopping:
                    self._forward_stop()
                else:
                    for worker in self._workers:
                        worker.check_limits()
                if not self._over:
                    self._fill_slots()
                if time.monotonic() - self._store_read >= STORE_SECONDS:
                    self._read_store()
                self._emit_progress()
                time.sleep(POLL_SECONDS)
            self._retry_recording()
        finally:
            # Workers remain only if the scheduler failed; they write a checkpoint.
            for worker in self._workers:
                worker.handle.stop()

    def _enqueue(self, runs: Sequence[ScheduledRun]) -> None:
        """Queues runs that are not complete; withdraws earlier stop requests."""
        records = {record.id: record for record in self._records(runs)}
        idle = [r for r in records.values() if r.status is not Status.RUNNING]
        self._store.leases.withdraw_stops([r.id for r in idle if r.stop_requested])
        records.update((r.id, replace(r, stop_requested=False)) for r in idle)
        for scheduled in runs:
            scheduled.alone = batching.must_be_alone(records[scheduled.run_id])
            if self._should_start(scheduled, records[scheduled.run_id]):
                self._queue.append(scheduled)

    @property
    def _active(self) -> list[ScheduledRun]:
        """The runs of living workers that have not ended."""
        return [scheduled for worker in self._workers for scheduled in worker.runs]

    @property
    def _free_slots(self) -> int:
        return self._slots - len(self._workers)

    def _has_more(self) -> bool:
        """Returns whether work is left besides that of the living workers."""
        return bool(self._queue or self._waiting or self._paused)

    def _should_start(self, scheduled: ScheduledRun, record: RunRecord) -> bool:
        """Returns whether a run should start; ends it, or waits for it, if it should not."""
        if scheduled.is_done(record, self._store):
            self._end(scheduled, EventKind.SKIPPED, record)
        elif record.status is Status.PRUNED:
            self._end(scheduled, EventKind.PRUNED, record, record.error or "")
        elif record.status is Status.RUNNING:
            self._wait_for(scheduled, record)
        elif record.stop_requested:
            self._end(scheduled, EventKind.INTERRUPTED, record, "asked to stop")
        else:
            return True
        return False

    def _fill_slots(self) -> None:
        """Starts queued runs, and runs whose pause is over, while slots are free."""
        now = time.monotonic()
        self._queue.extend(scheduled for due, scheduled in self._paused if due <= now)
        self._paused = [(due, scheduled) for due, scheduled in self._paused if due > now]
        while self._queue and self._free_slots > 0:
            scheduled = self._queue.popleft()
            record = self._record(scheduled)
            # Another process may have claimed or completed it since it was queued.
            if not self._should_start(scheduled, record) or not self._claim_folder(
                scheduled, record
            ):
                continue
            batch = [(scheduled, record), *self._take_companions(scheduled, record)]
            if not self._start(batch):
                self._queue.extendleft(scheduled for scheduled, _ in reversed(batch))
                return

    def _take_companions(
        self, scheduled: ScheduledRun, record: RunRecord
    ) -> list[tuple[ScheduledRun, RunRecord]]:
        """Takes the runs out of the queue that are trained together with one about to start."""
        # A policy's limits apply to the process of a single run.
        if not self._executor.stacks or self._policy.limits or batching.must_be_alone(record):
            return []
        chosen = batching.companions(scheduled, self._queue, self._free_slots)
        taken = []
        for other, its in zip(chosen, self._records(chosen), strict=True):
            if not self._should_start(other, its):
                self._queue.remove(other)
            elif batching.can_share_worker((scheduled, record), (other, its)):
                self._queue.remove(other)
                if self._claim_folder(other, its):
                    taken.append((other, its))
        return taken

    def _claim_folder(self, scheduled: ScheduledRun, record: RunRecord) -> bool:
        """Makes the run's folder; ends the run if the folder belongs to another one."""
        try:
            claim_folder(record.directory, record.identity)
        except (OSError, StoreError) as error:
            self._end_unrecorded(scheduled, _start_failure(error))
            return False
        return True

    def _start(self, batch: Sequence[tuple[ScheduledRun, RunRecord]]) -> bool:
        """Starts a worker; returns False if the executor has no room for it now."""
        (first, record), *rest = batch
        job = Job(
            run_id=first.run_id,
            store_url=self._store.url,
            directory=record.directory,
            evaluations=first.evaluations(record),
            others=tuple(scheduled.run_id for scheduled, _ in rest),
        )
        runs = [scheduled for scheduled, _ in batch]
        try:
            handle = self._executor.start(job)
        except OSError as error:
            for scheduled in runs:
                self._end_unrecorded(scheduled, _start_failure(error))
            return True
        if handle is None:
            return False
        self._workers.append(Worker(handle, self._policy, runs))
        for scheduled, record in batch:
            scheduled.finished = record.finished
            self._emit(EventKind.STARTED, record)
        return True

    def _handle_exits(self) -> None:
        """Handles the workers that have ended."""
        for worker in list(self._workers):
            code = worker.handle.poll()
            if code is not None:
                self._workers.remove(worker)
                if worker.is_stacked:
                    self._handle_stacked_exit(worker, code)
                else:
                    [scheduled] = worker.runs
                    self._handle_exit(scheduled, code, worker.cause)

    def _read_store(self) -> None:
        """Reads the state of active and waiting runs from the store, and acts on it."""
        self._store_read = time.monotonic()
        self._exits.sample()
        self._retry_recording()
        active = {record.id: record for record in self._records(self._active)}
        if silent := [i for i, record in active.items() if record.status is Status.LOST]:
            # A process that locks the store keeps workers from renewing their leases: their
            # silence counts only once the store can be written again.
            self._store.leases.await_writable(silent)
        for worker in self._workers:
            records = [active[scheduled.run_id] for scheduled in worker.runs]
            worker.check_heartbeat({record.status for record in records})
            for scheduled, record in zip(list(worker.runs), records, strict=True):
                if worker.is_stacked and batching.has_final_end(scheduled, record):
                    worker.runs.remove(scheduled)
                    self._handle_exit(scheduled, exit_codes.OF_STATUS[record.status], None)
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

    def _forward_stop(self) -> None:
        """Stops the workers; kills them at the second request or after the time limit."""
        now = time.monotonic()
        first = self._deadline is None
        if self._deadline is None:
            self._deadline = now + limits.STOP_SECONDS
        for worker in self._workers:
            if self._stop_requests > 1 or now > self._deadline:
                worker.handle.kill()
            elif first:
                worker.handle.stop()

    def _emit_progress(self) -> None:
        self._on_event(
            SweepProgress(
                active=[scheduled.run_id for scheduled in self._active],
                waiting=[scheduled.run_id for scheduled in self._waiting],
                queued=len(self._queue) + len(self._paused),
                stopping=self._stopping,
            )
        )


def _start_failure(error: Exception) -> FailureCause:
    failure = Failure.DISK if is_disk_full(error) else Failure.ERROR
    return FailureCause(failure, f"its process could not be started: {error}")
