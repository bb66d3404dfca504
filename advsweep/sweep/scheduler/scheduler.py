"""The scheduler: starts missing runs, watches their workers and survives their crashes.

What a run has come to is in the store: a worker claims it under a lease and records its end. The
scheduler knows what is left to start, and records the end of a worker that could not. Several
schedulers may have the same runs, on any machines: each looks at a run before it starts it, and
the lease decides.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from advsweep.errors import StoreError, is_disk_full
from advsweep.store import Failure, Owner, Status
from advsweep.store.run_folders import claim_folder
from advsweep.sweep import events
from advsweep.sweep.events import Event, EventKind, RunEvent, SweepProgress, SweepResult
from advsweep.sweep.executors.base import Executor, Job
from advsweep.sweep.retry_policy import RETRIED, Policy
from advsweep.sweep.scheduler.runs import (
    ExitClassifier,
    FailureCause,
    ScheduledRun,
    Worker,
    companions,
    give_back,
    must_be_alone,
)

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store

POLL_SECONDS = 0.05
# Interval at which the scheduler reads the store: runs of other processes, lost leases.
STORE_SECONDS = 1.0

Batch = Sequence[tuple[ScheduledRun, "RunRecord"]]


class Scheduler:
    """Starts runs in free slots and watches their workers until nothing is left to do.

    Each run is in exactly one place: in the queue, with a worker, waiting (another process trains
    it), paused (before a retry), or at its end.

    Args:
        slots: number of workers side by side.
        source: gives further runs, claimed by this process, when a slot is free and no run is
            queued; None if there is none now. Runs that other processes train are then left to
            those; without a source they are waited for.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        slots: int,
        on_event: Callable[[Event], None],
        policy: Policy,
        runs: Sequence[ScheduledRun] = (),
        *,
        source: Iterator[ScheduledRun | None] | None = None,
    ) -> None:
        self._store = store
        self._executor = executor
        self._slots = slots
        self._on_event = on_event
        self._policy = policy
        self._source = source
        self._is_exhausted = source is None
        self._exits = ExitClassifier()
        self.runs = list(runs)
        self._queue: deque[ScheduledRun] = deque()
        self._workers: list[Worker] = []
        self._waiting: list[ScheduledRun] = []
        self._paused: list[tuple[float, ScheduledRun]] = []
        self._unrecorded: list[tuple[ScheduledRun, Status, Failure | None]] = []
        self._failures = 0
        self._stop_requests = 0
        self._store_read = 0.0

    def result(self) -> SweepResult:
        """Return the result so far."""
        ends = [run.end for run in self.runs]
        return SweepResult(
            run_ids=[run.run_id for run in self.runs],
            done=ends.count(EventKind.DONE),
            skipped=ends.count(EventKind.SKIPPED),
            failed={run.run_id: run.message for run in self.runs if run.end is EventKind.FAILED},
            pruned={run.run_id: run.message for run in self.runs if run.end is EventKind.PRUNED},
            unfinished=ends.count(EventKind.INTERRUPTED) + ends.count(None),
            stopped=self._stop_requests > 0,
            halted=self._halted,
        )

    def request_stop(self) -> None:
        """Stop all workers; the second request kills them."""
        self._stop_requests += 1
        if self._store.patience.is_away:
            # Without a store the scheduler can only end, which stops its workers.
            self._store.patience.stop()

    def run(self) -> None:
        """Return when nothing is left to do; after a stop request, when all workers are gone."""
        self.enqueue()
        try:
            while self._workers or not (
                self._over or (self.is_idle and self._is_exhausted and not self._queue)
            ):
                # Exits come first: a limit or a stop must not be blamed for a worker that had
                # already ended.
                self._handle_exits()
                for worker in self._workers:
                    if self._stopping:
                        worker.stop(kill=self._stop_requests > 1)
                    else:
                        worker.check_time()
                if not self._over:
                    self._fill_slots()
                if time.monotonic() - self._store_read >= STORE_SECONDS:
                    self._read_store()
                self._on_event(
                    SweepProgress(
                        active=[run.run_id for run in self._active],
                        waiting=[run.run_id for run in self._waiting],
                        queued=len(self._queue) + len(self._paused),
                        stopping=self._stopping,
                    )
                )
                time.sleep(POLL_SECONDS)
            self._retry_recording()
        finally:
            # Workers remain only if the scheduler failed; they write a checkpoint.
            for worker in self._workers:
                worker.handle.stop()
            for scheduled in self._queue:
                if scheduled.claimed:
                    give_back(self._store, scheduled.run_id)

    @property
    def is_idle(self) -> bool:
        """Whether no run is being trained, or tried again soon."""
        return not (self._workers or self._waiting or self._paused)

    @property
    def _active(self) -> list[ScheduledRun]:
        """The runs of living workers that have not ended."""
        return [scheduled for worker in self._workers for scheduled in worker.runs]

    @property
    def _free_slots(self) -> int:
        return self._slots - len(self._workers)

    @property
    def _halted(self) -> bool:
        """Whether the policy's limit of failures is reached."""
        most = self._policy.max_failures
        return most is not None and self._failures >= most

    @property
    def _over(self) -> bool:
        """Whether no more runs are started."""
        return self._stop_requests > 0 or self._halted

    @property
    def _stopping(self) -> bool:
        """Whether active runs are being stopped."""
        return self._stop_requests > 0

    # Starting runs

    def enqueue(self) -> Batch:
        """Queue and return the runs that are not complete; withdraw earlier stop requests."""
        runs = list(self.runs)
        records = {record.id: record for record in self._records(runs)}
        # A request to a run that is being trained is for the process that has it.
        idle = [r for r in records.values() if r.status is not Status.RUNNING]
        self._store.leases.withdraw_stops([r.id for r in idle if r.stop_requested])
        records.update((r.id, replace(r, stop_requested=False)) for r in idle)
        for scheduled in runs:
            scheduled.alone = must_be_alone(records[scheduled.run_id])
            if self._should_start(scheduled, records[scheduled.run_id]):
                self._queue.append(scheduled)
        return [(scheduled, records[scheduled.run_id]) for scheduled in self._queue]

    def _should_start(self, scheduled: ScheduledRun, record: RunRecord) -> bool:
        """Return whether a run should start; end it, or wait for it, if it should not."""
        if scheduled.claimed:
            return True
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
        """Start queued runs, and runs whose pause is over, while slots are free."""
        now = time.monotonic()
        self._queue.extend(scheduled for due, scheduled in self._paused if due <= now)
        self._paused = [(due, scheduled) for due, scheduled in self._paused if due > now]
        while self._free_slots > 0:
            if not self._queue:
                if self._source is None or self._is_exhausted:
                    return
                try:
                    more = next(self._source)
                except StopIteration:
                    self._is_exhausted = True
                    return
                if more is None:
                    return
                self.runs.append(more)
                self._queue.append(more)
            if not self._start_next():
                return

    def _start_next(self) -> bool:
        """Start the next queued run; return False if there is no room for it now."""
        scheduled = self._queue.popleft()
        record = self._record(scheduled)
        # Another process may have claimed or completed it since it was queued.
        if not self._should_start(scheduled, record) or not self._claim_folder(scheduled, record):
            return True
        batch = [(scheduled, record), *self._take_companions(scheduled, record)]
        if self._start(batch):
            return True
        # At the front and in their order: runs that need more room must not be overtaken for ever.
        self._queue.extendleft(scheduled for scheduled, _ in reversed(batch))
        return False

    def _take_companions(self, scheduled: ScheduledRun, record: RunRecord) -> Batch:
        """Take the runs out of the queue that are trained together with one about to start."""
        # A time limit applies to the process of a single run.
        is_limited = self._policy.time_limit is not None
        if not self._executor.stacks or is_limited or must_be_alone(record):
            return []
        chosen = companions(scheduled, self._queue, self._free_slots)
        evaluations = scheduled.evaluations(record)
        taken = []
        for other, its in zip(chosen, self._records(chosen), strict=True):
            if not self._should_start(other, its):
                self._queue.remove(other)
            # A worker takes one list of evaluation settings for all its runs.
            elif not must_be_alone(its) and other.evaluations(its) == evaluations:
                self._queue.remove(other)
                if self._claim_folder(other, its):
                    taken.append((other, its))
        return taken

    def _claim_folder(self, scheduled: ScheduledRun, record: RunRecord) -> bool:
        """Make the run's folder; end the run if the folder belongs to another one."""
        try:
            claim_folder(record.directory, record.identity)
        except (OSError, StoreError) as error:
            self._end_unrecorded(scheduled, _start_failure(error))
            return False
        return True

    def _start(self, batch: Batch) -> bool:
        """Start a job; return False if the executor has no room for it now."""
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
            # Not a matter of room: such a start would fail again and again.
            for scheduled in runs:
                self._end_unrecorded(scheduled, _start_failure(error))
            return True
        if handle is None:
            return False
        self._workers.append(Worker(handle, self._policy, runs))
        for scheduled, record in batch:
            # An end with another time than this is the new worker's.
            scheduled.finished, scheduled.claimed = record.finished, False
            self._emit(EventKind.STARTED, record)
        return True

    # Watching workers

    def _handle_exits(self) -> None:
        """Handle the jobs that have ended."""
        for worker in list(self._workers):
            code = worker.handle.poll()
            if code is not None:
                self._workers.remove(worker)
                for scheduled, record in zip(worker.runs, self._records(worker.runs), strict=True):
                    self._handle_end(scheduled, record, worker, code)

    def _read_store(self) -> None:
        """Read the state of active and waiting runs from the store, and act on it."""
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
                # The others of a stack may train for hours: who has ended is told now.
                if worker.is_stacked and scheduled.has_final_end(record):
                    worker.runs.remove(scheduled)
                    self._handle_end(scheduled, record, worker, events.DONE)
        waiting, self._waiting = self._waiting, []
        for record, scheduled in zip(self._records(waiting), waiting, strict=True):
            if scheduled.is_done(record, self._store):
                self._end(scheduled, EventKind.DONE, record)
            elif record.status is Status.FAILED:
                self._fail(scheduled, record, _recorded_cause(record))
            elif record.status is Status.PRUNED:
                self._end(scheduled, EventKind.PRUNED, record, record.error or "")
            elif record.status is Status.RUNNING:
                self._waiting.append(scheduled)
            else:
                # Its process was stopped or is gone: it resumes from that one's checkpoint.
                self._queue.append(scheduled)

    # Ends of runs

    def _handle_end(
        self, scheduled: ScheduledRun, record: RunRecord, worker: Worker, code: int
    ) -> None:
        """Handle the end of a run's worker, or of the run within its stack.

        An outcome in the store counts, however the process ended after that.
        """
        stacked, status = worker.is_stacked, record.status
        stopping = self._stopping or record.stop_requested
        cause = worker.cause or self._exits.cause(code)
        ended = scheduled.has_ended(record)
        interrupted = ended and status is Status.INTERRUPTED
        # A stack that failed as a whole leaves its runs interrupted, to be trained alone.
        given_up = stacked and code not in (events.DONE, events.STOPPED) and not stopping
        if code == events.ELSEWHERE and not stacked:
            self._wait_for(scheduled, record)
        elif scheduled.is_done(record, self._store) or (
            status is Status.DONE and code == events.DONE
        ):
            self._end(scheduled, EventKind.DONE, record)
        elif ended and status is Status.PRUNED:
            self._end(scheduled, EventKind.PRUNED, record, record.error or "")
        elif ended and status is Status.FAILED:
            self._fail(scheduled, record, _recorded_cause(record))
        elif (interrupted or (code == events.STOPPED and not stacked)) and (
            not given_up and (worker.cause is None or self._stopping)
        ):
            self._end(scheduled, EventKind.INTERRUPTED, record, record.error or "")
        elif status is Status.DONE:
            # The training was complete before; only its evaluation failed.
            reason = f"evaluation: {cause.reason}, see its log"
            self._fail(scheduled, record, FailureCause(cause.failure, reason))
        elif not stacked or stopping or code in (events.UNRECORDED, events.DISK_FULL):
            self._end_unrecorded(scheduled, cause, requested=record.stop_requested)
        elif status is Status.RUNNING:
            self._wait_for(scheduled, record)
        else:
            # Which of them ended the process is unknown; alone, each answers for itself.
            scheduled.alone = True
            self._queue.append(scheduled)
            reason = record.error if interrupted and record.error else cause.reason
            self._emit(EventKind.RETRYING, record, f"{reason}; it is trained alone now")

    def _fail(self, scheduled: ScheduledRun, record: RunRecord, cause: FailureCause) -> None:
        """Retry a failed run after a pause, or end it."""
        allowed = self._policy.retries if cause.failure in RETRIED else 0
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
        """Record the end of a worker that could not record it.

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
            scheduled.end = kind
            lost = "the store could not record this, and has the run as lost"
            self._emit(kind, self._record(scheduled), f"{scheduled.message}; {lost}")
            return
        if not recorded:
            # Another process took the run over, and records its end.
            self._waiting.append(scheduled)
        elif stopping:
            record = self._record(scheduled)
            self._end(scheduled, EventKind.INTERRUPTED, record, scheduled.message)
        else:
            self._fail(scheduled, self._record(scheduled), cause)

    def _record_end(self, scheduled: ScheduledRun, status: Status, failure: Failure | None) -> bool:
        """Record an end in the store; False if another process has claimed the run meanwhile."""
        state = self._record(scheduled).status
        if status is Status.INTERRUPTED and state not in (Status.LOST, Status.RUNNING):
            return True  # the worker ended before it claimed the run
        # Ends are recorded under a lease alone. The dead worker's may be taken over, and so may
        # this process's own, of a run that no worker has claimed or whose end was refused.
        me, run_id = Owner.current(), scheduled.run_id
        if not self._store.leases.claim(run_id, me, holder=me):
            return False
        self._store.leases.finish(run_id, status, failure=failure, error=scheduled.message)
        scheduled.claimed = False
        return True

    def _retry_recording(self) -> None:
        """Try again to record the ends that the store refused."""
        unrecorded, self._unrecorded = self._unrecorded, []
        for scheduled, status, failure in unrecorded:
            try:
                self._record_end(scheduled, status, failure)
            except StoreError:
                self._unrecorded.append((scheduled, status, failure))

    def _wait_for(self, scheduled: ScheduledRun, record: RunRecord) -> None:
        if self._source is None:
            self._waiting.append(scheduled)
            self._emit(EventKind.WAITING, record, "another process trains it")
        else:
            self.runs.remove(scheduled)

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


def _recorded_cause(record: RunRecord) -> FailureCause:
    """Return why a run failed, by its record."""
    return FailureCause(record.failure or Failure.ERROR, record.error or "")


def _start_failure(error: Exception) -> FailureCause:
    failure = Failure.DISK if is_disk_full(error) else Failure.ERROR
    return FailureCause(failure, f"its process could not be started: {error}")
