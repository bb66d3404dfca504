"""What becomes of runs whose workers have ended: it is recorded, told, and some are tried again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from advsweep.errors import StoreError
from advsweep.store import Failure, Owner, Status
from advsweep.sweep import exit_codes
from advsweep.sweep.scheduler import batching
from advsweep.sweep.scheduler.events import Event, EventKind, RunEvent, SweepResult
from advsweep.sweep.scheduler.limits import ExitClassifier, FailureCause, Worker

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.retry_policy import Policy
    from advsweep.sweep.scheduler.scheduled_runs import ScheduledRun


class OutcomeRecorder:
    """The part of an execution that sees to ends.

    Each scheduled is in the queue, with a worker, waited for since another process has it, resting
    before it is tried again, or at its end.
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
        self._coroner = ExitClassifier()
        self._runs = runs
        self._queue: deque[ScheduledRun] = deque()
        self._waiting: list[ScheduledRun] = []
        self._resting: list[tuple[float, ScheduledRun]] = []
        self._unrecorded: list[tuple[ScheduledRun, Status, Failure | None]] = []
        self._failures = 0
        self._requests = 0

    def result(self) -> SweepResult:
        ends = [scheduled.end for scheduled in self._runs]
        return SweepResult(
            run_ids=[scheduled.run_id for scheduled in self._runs],
            done=ends.count(EventKind.DONE),
            skipped=ends.count(EventKind.SKIPPED),
            failed={u.run_id: u.message for u in self._runs if u.end is EventKind.FAILED},
            pruned={u.run_id: u.message for u in self._runs if u.end is EventKind.PRUNED},
            unfinished=ends.count(EventKind.INTERRUPTED) + ends.count(None),
            stopped=self._requests > 0,
            halted=self._halted,
        )

    @property
    def _halted(self) -> bool:
        """Whether more runs have failed than the policy bears."""
        most = 1 if self._policy.fail_fast else self._policy.max_failures
        return most is not None and self._failures >= most

    @property
    def _over(self) -> bool:
        """Whether nothing more is to be started."""
        return self._requests > 0 or self._halted

    @property
    def _stopping(self) -> bool:
        """Whether what is running is to stop."""
        return self._requests > 0 or (self._halted and self._policy.fail_fast)

    def _settle(self, scheduled: ScheduledRun, code: int, ours: FailureCause | None) -> None:
        record = self._record(scheduled)
        # What it recorded of its end counts, whatever ended its process after that.
        has_ended = record.finished != scheduled.finished
        has_stopped = has_ended and record.status is Status.INTERRUPTED
        has_failed = has_ended and record.status is Status.FAILED
        if code == exit_codes.ELSEWHERE:
            self._waiting.append(scheduled)
            self._tell(EventKind.WAITING, record, "another process trains it")
        elif code == exit_codes.DONE or scheduled.is_done(record, self._store):
            self._end(scheduled, EventKind.DONE, record)
        elif (ours is None or self._stopping) and (code == exit_codes.STOPPED or has_stopped):
            self._end(scheduled, EventKind.INTERRUPTED, record, record.error or "")
        elif code == exit_codes.PRUNED:
            self._end(scheduled, EventKind.PRUNED, record, record.error or "")
        elif has_failed:
            self._fail(scheduled, record, recorded_cause(record))
        elif record.status is Status.DONE:
            # It was to evaluate alone; what was trained stays as it is.
            failure, reason = ours or self._coroner.cause(code)
            self._fail(
                scheduled, record, FailureCause(failure, f"evaluation: {reason}, see its log")
            )
        else:
            cause = ours or self._coroner.cause(code)
            self._end_unrecorded(scheduled, cause, asked=record.stop_requested)

    def _fail(self, scheduled: ScheduledRun, record: RunRecord, cause: FailureCause) -> None:
        """A run failed: it is tried again after a pause, or that was it."""
        allowed = self._policy.retries if cause.failure in self._policy.retry_on else 0
        if self._over or scheduled.retries >= allowed:
            self._failures += 1
            self._end(scheduled, EventKind.FAILED, record, cause.reason)
            return
        scheduled.retry(record.step)
        pause = self._policy.backoff(scheduled.in_vain)
        self._resting.append((time.monotonic() + pause, scheduled))
        again = f"retry {scheduled.retries} of {allowed} in {pause:g} s"
        self._tell(EventKind.RETRYING, record, f"{cause.reason}; {again}")

    def _end_unrecorded(
        self, scheduled: ScheduledRun, cause: FailureCause, *, asked: bool = False
    ) -> None:
        """Records the end of a worker that could not do so itself.

        Args:
            asked: the run was asked to stop through the store.
        """
        stopping = self._stopping or asked
        status = Status.INTERRUPTED if stopping else Status.FAILED
        failure = None if stopping else cause.failure
        scheduled.message = f"{cause.reason} while stopping" if stopping else cause.reason
        try:
            recorded = self._record_end(scheduled, status, failure)
        except StoreError:
            # A full disk, most likely; the run's row says that it is lost until there is room.
            self._unrecorded.append((scheduled, status, failure))
            self._failures += status is Status.FAILED
            kind = EventKind.INTERRUPTED if stopping else EventKind.FAILED
            self._end(scheduled, kind, self._record(scheduled), scheduled.message)
            return
        if not recorded:
            self._waiting.append(scheduled)
        elif stopping:
            self._end(scheduled, EventKind.INTERRUPTED, self._record(scheduled), scheduled.message)
        else:
            self._fail(scheduled, self._record(scheduled), cause)

    def _record_end(self, scheduled: ScheduledRun, status: Status, failure: Failure | None) -> bool:
        """False where another process has taken the run up in the meantime."""
        if status is Status.INTERRUPTED and self._record(scheduled).status is not Status.LOST:
            return True  # it was ended before it began
        me = Owner.current()
        scheduled.taken = scheduled.taken or self._store.leases.claim(
            scheduled.run_id, me, holder=me
        )
        if not scheduled.taken:
            return False
        self._store.leases.finish(
            scheduled.run_id, status, failure=failure, error=scheduled.message
        )
        scheduled.taken = False
        return True

    def _settle_all(self, worker: Worker, code: int) -> None:
        """Settles the runs that a worker trained together, by the record of each.

        Those that have not ended by themselves are trained one by one.
        """
        told = code in (exit_codes.STACKED, exit_codes.STOPPED)
        cause = worker.cause or self._coroner.cause(code)
        for scheduled, record in zip(worker.runs, self._records(worker.runs), strict=True):
            interrupted = record.status is Status.INTERRUPTED
            asked = self._stopping or record.stop_requested
            if batching.has_ended(scheduled, record) and (told or asked or not interrupted):
                self._settle(scheduled, batching.CODES[record.status], None)
            elif asked or code in (exit_codes.UNRECORDED, exit_codes.DISK_FULL):
                self._end_unrecorded(scheduled, cause, asked=record.stop_requested)
            elif record.status is Status.RUNNING:
                self._settle(scheduled, exit_codes.ELSEWHERE, None)
            else:
                scheduled.alone = True
                self._queue.append(scheduled)
                reason = record.error if interrupted and record.error else cause.reason
                self._tell(EventKind.RETRYING, record, f"{reason}; it is trained alone now")

    def _record_again(self) -> None:
        unrecorded, self._unrecorded = self._unrecorded, []
        for scheduled, status, failure in unrecorded:
            try:
                self._record_end(scheduled, status, failure)
            except StoreError:
                self._unrecorded.append((scheduled, status, failure))

    def _record(self, scheduled: ScheduledRun) -> RunRecord:
        [record] = self._records([scheduled])
        return record

    def _records(self, runs: Sequence[ScheduledRun]) -> list[RunRecord]:
        return self._store.runs.select(ids=[scheduled.run_id for scheduled in runs])

    def _end(
        self, scheduled: ScheduledRun, kind: EventKind, record: RunRecord, message: str = ""
    ) -> None:
        scheduled.end, scheduled.message = kind, message
        self._tell(kind, record, message)

    def _tell(self, kind: EventKind, record: RunRecord, message: str = "") -> None:
        self._on_event(RunEvent(kind, record, message))


def recorded_cause(record: RunRecord) -> FailureCause:
    """What a run failed of, by its record."""
    return FailureCause(record.failure or Failure.ERROR, record.error or "")
