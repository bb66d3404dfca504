"""Handles the end of workers: records what they could not, and retries failed runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from advsweep.errors import StoreError
from advsweep.store import Failure, Owner, Status
from advsweep.sweep import exit_codes
from advsweep.sweep.events import Event, EventKind, RunEvent, SweepResult
from advsweep.sweep.exit_codes import ExitClassifier, FailureCause

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.retry_policy import Policy
    from advsweep.sweep.scheduler.limits import Worker
    from advsweep.sweep.scheduler.scheduled_runs import ScheduledRun


class OutcomeRecorder:
    """The part of a scheduler that handles the ends of its runs.

    Each run is in exactly one place: in `_queue`, with a worker, in `_waiting` (another process
    trains it), in `_paused` (before a retry), or at its end.
    """

    def __init__(
        self,
        store: Store,
        on_event: Callable[[Event], None],
        policy: Policy,
        runs: list[ScheduledRun],
    ) -> None:
        self._store = store
        self._on_event = on_event
        self._policy = policy
        self._exits = ExitClassifier()
        self._runs = runs
        self._queue: deque[ScheduledRun] = deque()
        self._waiting: list[ScheduledRun] = []
        self._paused: list[tuple[float, ScheduledRun]] = []
        self._unrecorded: list[tuple[ScheduledRun, Status, Failure | None]] = []
        self._failures = 0
        self._stop_requests = 0

    def result(self) -> SweepResult:
        """Returns the result so far."""
        ends = [run.end for run in self._runs]
        return SweepResult(
            run_ids=[run.run_id for run in self._runs],
            done=ends.count(EventKind.DONE),
            skipped=ends.count(EventKind.SKIPPED),
            failed={run.run_id: run.message for run in self._runs if run.end is EventKind.FAILED},
            pruned={run.run_id: run.message for run in self._runs if run.end is EventKind.PRUNED},
            unfinished=ends.count(EventKind.INTERRUPTED) + ends.count(None),
            stopped=self._stop_requests > 0,
            halted=self._halted,
        )

    @property
    def _halted(self) -> bool:
        """Whether the policy's limit of failures is reached."""
        most = 1 if self._policy.fail_fast else self._policy.max_failures
        return most is not None and self._failures >= most

    @property
    def _over(self) -> bool:
        """Whether no more runs are started."""
        return self._stop_requests > 0 or self._halted

    @property
    def _stopping(self) -> bool:
        """Whether active runs are being stopped."""
        return self._stop_requests > 0 or (self._halted and self._policy.fail_fast)

    def _handle_exit(self, scheduled: ScheduledRun, code: int, ours: FailureCause | None) -> None:
        """Handles the end of a run's worker.

        Args:
            ours: why this process ended the worker; None if it did not.
        """
        record = self._record(scheduled)
        # An outcome in the store counts, however the process ended after that.
        has_ended = scheduled.has_ended(record)
        has_stopped = has_ended and record.status is Status.INTERRUPTED
        has_failed = has_ended and record.status is Status.FAILED
        if code == exit_codes.ELSEWHERE:
            self._wait_for(scheduled, record)
        elif code == exit_codes.DONE or scheduled.is_done(record, self._store):
            self._end(scheduled, EventKind.DONE, record)
        elif (ours is None or self._stopping) and (code == exit_codes.STOPPED or has_stopped):
            self._end(scheduled, EventKind.INTERRUPTED, record, record.error or "")
        elif code == exit_codes.PRUNED:
            self._end(scheduled, EventKind.PRUNED, record, record.error or "")
        elif has_failed:
            self._fail(scheduled, record, recorded_cause(record))
        elif record.status is Status.DONE:
            # The training was complete before; only its evaluation failed.
            failure, reason = ours or self._exits.cause(code)
            cause = FailureCause(failure, f"evaluation: {reason}, see its log")
            self._fail(scheduled, record, cause)
        else:
            cause = ours or self._exits.cause(code)
            self._end_unrecorded(scheduled, cause, requested=record.stop_requested)

    def _handle_stacked_exit(self, worker: Worker, code: int) -> None:
        """Handles the end of a worker with several runs, by the record of each.

        Runs without an end of their own are trained one by one.
        """
        orderly = code in (exit_codes.STACKED, exit_codes.STOPPED)
        cause = worker.cause or self._exits.cause(code)
        for scheduled, record in zip(worker.runs, self._records(worker.runs), strict=True):
            interrupted = record.status is Status.INTERRUPTED
            requested = self._stopping or record.stop_requested
            if scheduled.has_ended(record) and (orderly or requested or not interrupted):
                self._handle_exit(scheduled, exit_codes.OF_STATUS[record.status], None)
            elif requested or code in (exit_codes.UNRECORDED, exit_codes.DISK_FULL):
                self._end_unrecorded(scheduled, cause, requested=record.stop_requested)
            elif record.status is Status.RUNNING:
                self._handle_exit(scheduled, exit_codes.ELSEWHERE, None)
            else:
                scheduled.alone = True
                self._queue.append(scheduled)
                reason = record.error if interrupted and record.error else cause.reason
                self._emit(EventKind.RETRYING, record, f"{reason}; it is trained alone now")

    def _fail(self, scheduled: ScheduledRun, record: RunRecord, cause: FailureCause) -> None:
        """Retries a failed run after a pause, or ends it."""
        allowed = self._policy.retries if cause.failure in self._policy.retry_on else 0
        if self._over or scheduled.retries >= allowed:
            self._failures += 1
            self._end(scheduled, EventKind.FAILED, record, cause.reason)
            return
        scheduled.retry(record.step)
        pause = self._policy.backoff(scheduled.stalled)
        self._paused.append((time.monotonic() + pause, scheduled))
        again = f"retry {scheduled.retries} of {allowed} in {pause:g} s"
        self._emit(EventKind.RETRYING, record, f"{cause.reason}; {again}")

    def _end_unrecorded(
        self, scheduled: ScheduledRun, cause: FailureCause, *, requested: bool = False
    ) -> None:
        """Records the end of a worker that could not record it.

        Args:
            requested: whether the store has a request to stop the run.
        """
        stopping = self._stopping or requested
        status = Status.INTERRUPTED if stopping else Status.FAILED
        failure = None if stopping else cause.failure
        scheduled.message = f"{cause.reason} while stopping" if stopping else cause.reason
        try:
            recorded = self._record_end(scheduled, status, failure)
        except StoreError:
            # The disk is full, most likely. The run counts as lost until there is room.
            self._unrecorded.append((scheduled, status, failure))
            self._failures += status is Status.FAILED
            kind = EventKind.INTERRUPTED if stopping else EventKind.FAILED
            self._end(scheduled, kind, self._record(scheduled), scheduled.message)
            return
        if not recorded:
            self._waiting.append(scheduled)
        elif stopping:
            record = self._record(scheduled)
            self._end(scheduled, EventKind.INTERRUPTED, record, scheduled.message)
        else:
            self._fail(scheduled, self._record(scheduled), cause)

    def _record_end(self, scheduled: ScheduledRun, status: Status, failure: Failure | None) -> bool:
        """Records an end in the store; False if another process has claimed the run meanwhile."""
        if status is Status.INTERRUPTED and self._record(scheduled).status is not Status.LOST:
            return True  # the worker ended before it claimed the run
        me, run_id = Owner.current(), scheduled.run_id
        # Ends are recorded under a lease alone, and the dead worker's may be taken over.
        if not scheduled.claimed:
            scheduled.claimed = self._store.leases.claim(run_id, me, holder=me)
        if not scheduled.claimed:
            return False
        self._store.leases.finish(run_id, status, failure=failure, error=scheduled.message)
        scheduled.claimed = False
        return True

    def _retry_recording(self) -> None:
        """Tries again to record the ends that the store refused."""
        unrecorded, self._unrecorded = self._unrecorded, []
        for scheduled, status, failure in unrecorded:
            try:
                self._record_end(scheduled, status, failure)
            except StoreError:
                self._unrecorded.append((scheduled, status, failure))

    def _wait_for(self, scheduled: ScheduledRun, record: RunRecord) -> None:
        self._waiting.append(scheduled)
        self._emit(EventKind.WAITING, record, "another process trains it")

    def _record(self, scheduled: ScheduledRun) -> RunRecord:
        [record] = self._records([scheduled])
        return record

    def _records(self, runs: Sequence[ScheduledRun]) -> list[RunRecord]:
        return self._store.runs.select(ids=[run.run_id for run in runs])

    def _end(
        self, scheduled: ScheduledRun, kind: EventKind, record: RunRecord, message: str = ""
    ) -> None:
        scheduled.end, scheduled.message = kind, message
        self._emit(kind, record, message)

    def _emit(self, kind: EventKind, record: RunRecord, message: str = "") -> None:
        self._on_event(RunEvent(kind, record, message))


def recorded_cause(record: RunRecord) -> FailureCause:
    """Returns why a run failed, by its record."""
    return FailureCause(record.failure or Failure.ERROR, record.error or "")
