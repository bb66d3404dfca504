"""Executes a plan: starts what is missing, supervises it, and survives any death of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from advsweep.errors import StoreError
from advsweep.store import Failure, Owner, Status
from advsweep.sweep import exits, supervision
from advsweep.sweep.events import Event, EventKind, Outcome, Progress, RunEvent
from advsweep.sweep.executors.base import Executor, Job
from advsweep.sweep.executors.detached import DetachedExecutor
from advsweep.sweep.policy import Policy
from advsweep.sweep.signals import signals_taken
from advsweep.sweep.submission import check_policy, submit
from advsweep.sweep.supervision import Cause, Coroner, Worker, check_limits
from advsweep.sweep.units import Unit, make_units

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.plan import Plan

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
    make: Callable[..., Execution] | None = None,
) -> Outcome:
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
    plan.executor.check()
    if isinstance(plan.executor, DetachedExecutor):
        check_policy(policy, plan.executor)
    units = make_units(plan, store, force=force)
    slots = jobs or plan.executor.capacity()
    if isinstance(plan.executor, DetachedExecutor):
        return submit(units, store, plan.executor, slots, on_event, policy)
    execution = (make or Execution)(store, plan.executor, slots, on_event, policy, units)
    with signals_taken(execution.ask_to_stop), closing(plan.executor):
        execution.run()
    return execution.outcome()


class Execution:
    """The state of one `execute`, between one look at the workers and the next."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        slots: int,
        on_event: Callable[[Event], None],
        policy: Policy,
        units: list[Unit],
    ) -> None:
        self._store = store
        self._executor = executor
        self._slots = slots
        self._on_event = on_event
        self._policy = policy
        self._coroner = Coroner()
        self._units = units
        self._queue: deque[Unit] = deque()
        self._active: list[Unit] = []
        self._waiting: list[Unit] = []
        self._resting: list[tuple[float, Unit]] = []
        self._unrecorded: list[tuple[Unit, Status, Failure | None]] = []
        self._failures = 0
        self._looked = 0.0
        self._requests = 0
        self._deadline: float | None = None

    def ask_to_stop(self) -> None:
        """Stops all workers; the second time kills them."""
        self._requests += 1

    def run(self) -> None:
        """Returns when nothing is left to do, or after a request when all workers are gone."""
        self._admit(self._units)
        try:
            while self._active or (not self._over and self._has_more()):
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
            for unit in self._active:
                assert unit.worker is not None
                unit.worker.handle.stop()

    def _admit(self, units: Sequence[Unit]) -> None:
        """Queues units as far as something is left to do; earlier requests to stop are over."""
        records = {r.id: r for r in self._records(units)}
        free = [r for r in records.values() if r.status is not Status.RUNNING]
        self._store.withdraw_stops([r.id for r in free if r.stop_requested])
        records.update((r.id, replace(r, stop_requested=False)) for r in free)
        self._queue.extend(unit for unit in units if self._sort(unit, records[unit.run_id]))

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

    def _has_more(self) -> bool:
        """Whether there is work beside that of the workers that are alive."""
        return bool(self._queue or self._waiting or self._resting)

    def outcome(self) -> Outcome:
        ends = [unit.end for unit in self._units]
        return Outcome(
            run_ids=[unit.run_id for unit in self._units],
            done=ends.count(EventKind.DONE),
            skipped=ends.count(EventKind.SKIPPED),
            failed={u.run_id: u.message for u in self._units if u.end is EventKind.FAILED},
            pruned={u.run_id: u.message for u in self._units if u.end is EventKind.PRUNED},
            unfinished=ends.count(EventKind.INTERRUPTED) + ends.count(None),
            stopped=self._requests > 0,
            halted=self._halted,
        )

    def _sort(self, unit: Unit, record: RunRecord) -> bool:
        """Whether a unit is to be started; else it is at its end, or waited for."""
        if unit.is_done(record, self._store):
            self._end(unit, EventKind.SKIPPED, record)
            return False
        if record.status is Status.PRUNED:
            self._end(unit, EventKind.PRUNED, record, record.error or "")
            return False
        if record.status is Status.RUNNING:
            self._waiting.append(unit)
            self._tell(EventKind.WAITING, record, "another process trains it")
            return False
        if record.stop_requested:
            self._end(unit, EventKind.INTERRUPTED, record, "asked to stop")
            return False
        return True

    def _fill(self) -> None:
        """Starts queued units, and those whose pause is over, while slots are free."""
        now = time.monotonic()
        self._queue.extend(unit for due, unit in self._resting if due <= now)
        self._resting = [(due, unit) for due, unit in self._resting if due > now]
        while self._queue and len(self._active) < self._slots:
            unit = self._queue.popleft()
            record = self._record(unit)
            # Another execution may have taken or finished it since it was queued.
            if self._sort(unit, record) and not self._start(unit, record):
                self._queue.appendleft(unit)
                return

    def _start(self, unit: Unit, record: RunRecord) -> bool:
        """False where the executor has no room for it at the moment."""
        job = Job(
            run_id=unit.run_id,
            store_url=self._store.url,
            directory=record.directory,
            evaluations=unit.evaluations(record),
        )
        try:
            handle = self._executor.start(job)
        except OSError as error:
            reason = f"its process could not be started: {error}"
            self._end_unrecorded(unit, Cause(Failure.ERROR, reason))
            return True
        if handle is None:
            return False
        unit.worker, unit.finished = Worker(handle, self._policy), record.finished
        self._active.append(unit)
        self._tell(EventKind.STARTED, record)
        return True

    def _reap(self) -> None:
        """Takes notice of workers that have ended."""
        for unit in list(self._active):
            assert unit.worker is not None
            code = unit.worker.handle.poll()
            if code is not None:
                self._active.remove(unit)
                self._settle(unit, code, unit.worker.cause)

    def _hold_to_limits(self) -> None:
        for unit in self._active:
            assert unit.worker is not None
            unit.worker.check()

    def _settle(self, unit: Unit, code: int, ours: Cause | None) -> None:
        record = self._record(unit)
        # What it recorded of its end counts, whatever ended its process after that.
        has_ended = record.finished != unit.finished
        has_stopped = has_ended and record.status is Status.INTERRUPTED
        has_failed = has_ended and record.status is Status.FAILED
        if code == exits.ELSEWHERE:
            self._waiting.append(unit)
            self._tell(EventKind.WAITING, record, "another process trains it")
        elif code == exits.DONE or unit.is_done(record, self._store):
            self._end(unit, EventKind.DONE, record)
        elif (ours is None or self._stopping) and (code == exits.STOPPED or has_stopped):
            self._end(unit, EventKind.INTERRUPTED, record, record.error or "")
        elif code == exits.PRUNED:
            self._end(unit, EventKind.PRUNED, record, record.error or "")
        elif has_failed:
            self._fail(unit, record, _recorded_cause(record))
        elif record.status is Status.DONE:
            # It was to evaluate alone; what was trained stays as it is.
            failure, reason = ours or self._coroner.cause(code)
            self._fail(unit, record, Cause(failure, f"evaluation: {reason}, see its log"))
        else:
            cause = ours or self._coroner.cause(code)
            self._end_unrecorded(unit, cause, asked=record.stop_requested)

    def _fail(self, unit: Unit, record: RunRecord, cause: Cause) -> None:
        """A run failed: it is tried again after a pause, or that was it."""
        allowed = self._policy.retries if cause.failure in self._policy.retry_on else 0
        if self._over or unit.retries >= allowed:
            self._failures += 1
            self._end(unit, EventKind.FAILED, record, cause.reason)
            return
        unit.retry(record.step)
        pause = self._policy.backoff(unit.in_vain)
        self._resting.append((time.monotonic() + pause, unit))
        again = f"retry {unit.retries} of {allowed} in {pause:g} s"
        self._tell(EventKind.RETRYING, record, f"{cause.reason}; {again}")

    def _end_unrecorded(self, unit: Unit, cause: Cause, *, asked: bool = False) -> None:
        """Records the end of a worker that could not do so itself.

        Args:
            asked: the run was asked to stop through the store.
        """
        stopping = self._stopping or asked
        status = Status.INTERRUPTED if stopping else Status.FAILED
        failure = None if stopping else cause.failure
        unit.message = f"{cause.reason} while stopping" if stopping else cause.reason
        try:
            recorded = self._record_end(unit, status, failure)
        except StoreError:
            # A full disk, most likely; the run's row says that it is lost until there is room.
            self._unrecorded.append((unit, status, failure))
            self._failures += status is Status.FAILED
            kind = EventKind.INTERRUPTED if stopping else EventKind.FAILED
            self._end(unit, kind, self._record(unit), unit.message)
            return
        if not recorded:
            self._waiting.append(unit)
        elif stopping:
            self._end(unit, EventKind.INTERRUPTED, self._record(unit), unit.message)
        else:
            self._fail(unit, self._record(unit), cause)

    def _record_end(self, unit: Unit, status: Status, failure: Failure | None) -> bool:
        """False where another process has taken the run up in the meantime."""
        if status is Status.INTERRUPTED and self._record(unit).status is not Status.LOST:
            return True  # it was ended before it began
        me = Owner.current()
        unit.taken = unit.taken or self._store.claim(unit.run_id, me, holder=me)
        if not unit.taken:
            return False
        self._store.finish(unit.run_id, status, failure=failure, error=unit.message)
        unit.taken = False
        return True

    def _look(self) -> None:
        """Looks at what is trained here and elsewhere; tries again what the store did not take."""
        self._looked = time.monotonic()
        self._coroner.look()
        self._record_again()
        for record, unit in zip(self._records(self._active), self._active, strict=True):
            assert unit.worker is not None
            unit.worker.look(record.status)
        waiting, self._waiting = self._waiting, []
        for record, unit in zip(self._records(waiting), waiting, strict=True):
            if unit.is_done(record, self._store):
                self._end(unit, EventKind.DONE, record)
            elif record.status is Status.FAILED:
                self._fail(unit, record, _recorded_cause(record))
            elif record.status is Status.PRUNED:
                self._end(unit, EventKind.PRUNED, record, record.error or "")
            elif record.status is Status.RUNNING:
                self._waiting.append(unit)
            else:
                self._queue.append(unit)

    def _record_again(self) -> None:
        unrecorded, self._unrecorded = self._unrecorded, []
        for unit, status, failure in unrecorded:
            try:
                self._record_end(unit, status, failure)
            except StoreError:
                self._unrecorded.append((unit, status, failure))

    def _press(self) -> None:
        """Passes on a request to stop; kills on the second one, or when the time is up."""
        now = time.monotonic()
        first = self._deadline is None
        if self._deadline is None:
            self._deadline = now + supervision.STOP_SECONDS
        for unit in self._active:
            assert unit.worker is not None
            if self._requests > 1 or now > self._deadline:
                unit.worker.handle.kill()
            elif first:
                unit.worker.handle.stop()

    def _record(self, unit: Unit) -> RunRecord:
        [record] = self._records([unit])
        return record

    def _records(self, units: Sequence[Unit]) -> list[RunRecord]:
        return self._store.runs(ids=[unit.run_id for unit in units])

    def _end(self, unit: Unit, kind: EventKind, record: RunRecord, message: str = "") -> None:
        unit.end, unit.message, unit.worker = kind, message, None
        self._tell(kind, record, message)

    def _tell(self, kind: EventKind, record: RunRecord, message: str = "") -> None:
        self._on_event(RunEvent(kind, record, message))

    def _tell_progress(self) -> None:
        self._on_event(
            Progress(
                active=[unit.run_id for unit in self._active],
                waiting=[unit.run_id for unit in self._waiting],
                queued=len(self._queue) + len(self._resting),
                stopping=self._stopping,
            )
        )


def _recorded_cause(record: RunRecord) -> Cause:
    return Cause(record.failure or Failure.ERROR, record.error or "")
