"""The scheduler: starts missing runs, watches their workers and survives their crashes.

What a run has come to is in the store: a worker claims it under a lease and records its end. The
scheduler knows what is left to start, and records the end of a worker that could not. Several
schedulers may have the same runs, on any machines: each looks at a run before it starts it, and
the lease decides.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from advsweep.errors import StoreError
from advsweep.store import Failure, Owner, Status
from advsweep.store.run_folders import claim_folder
from advsweep.sweep import events
from advsweep.sweep.events import Event, EventKind, RunEvent, SweepProgress, SweepResult
from advsweep.sweep.executors.base import Executor, Job
from advsweep.sweep.retry_policy import RETRIED, Policy
from advsweep.sweep.scheduler.causes import (
    FailureCause,
    KernelKills,
    cause_of_exit,
    cause_of_start_failure,
    take_store_error,
)
from advsweep.sweep.scheduler.runs import (
    ScheduledRun,
    companions,
    give_back,
    needs_own_process,
)
from advsweep.sweep.scheduler.states import (
    Active,
    Ended,
    Paused,
    Queued,
    RunStates,
    StoredEnd,
    Waiting,
)
from advsweep.sweep.scheduler.verdicts import (
    End,
    Exit,
    ExitKind,
    Fail,
    GiveUp,
    RecordEnd,
    Start,
    TrainAlone,
    Verdict,
    Wait,
    judge_exit,
    judge_start,
    judge_waiting,
)
from advsweep.sweep.scheduler.workers import Worker

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store

POLL_SECONDS = 0.05
# Interval at which runs are offered again that the executor had no room for.
ROOM_SECONDS = 0.5
# Interval at which the scheduler reads the store: runs of other processes, lost leases.
STORE_SECONDS = 1.0

Batch = Sequence[tuple[ScheduledRun, "RunRecord"]]

# Gives further runs; None if there is none now.
Source = Iterator["tuple[ScheduledRun, Queued] | None"]


@dataclass(eq=False, kw_only=True)
class Scheduler:
    """Starts runs in free slots and watches their workers until nothing is left to do.

    Attributes:
        slots: number of workers side by side.
        on_event: receives events, in the thread of `run`.
        runs: the runs that are known from the start.
        source: asked for a further run when a slot is free and no run is queued. Runs that other
            processes train are then left to those; without a source they are waited for. A run
            that cannot be built here is left to other machines, and no more runs are started.
        refusal: why a run was left to others, after which no more are started; empty for none.
    """

    store: Store
    executor: Executor
    slots: int
    on_event: Callable[[Event], None]
    policy: Policy
    runs: Sequence[ScheduledRun] = ()
    source: Source | None = None

    def __post_init__(self) -> None:
        self.refusal = ""
        self._states = RunStates(self.runs)
        self._workers: list[Worker] = []
        self._kernel_kills = KernelKills()
        self._is_exhausted = self.source is None
        self._failures = 0
        self._stop_requests = 0
        self._store_read = 0.0
        self._next_offer = 0.0

    def result(self) -> SweepResult:
        """Return the result so far."""
        states = self._states.all()
        ends = Counter(state.kind for state in states.values() if isinstance(state, Ended))
        return SweepResult(
            run_ids=[run.run_id for run in states],
            done=ends[EventKind.DONE],
            skipped=ends[EventKind.SKIPPED],
            failed=self._reasons(EventKind.FAILED),
            pruned=self._reasons(EventKind.PRUNED),
            unfinished=ends[EventKind.INTERRUPTED] + len(states) - ends.total(),
            stopped=self._stopping,
            halted=self._halted,
        )

    def _reasons(self, kind: EventKind) -> dict[int, str]:
        """Return the reasons of the runs that ended in a way, by id."""
        return {
            run.run_id: state.message
            for run, state in self._states.all().items()
            if isinstance(state, Ended) and state.kind is kind
        }

    def request_stop(self) -> None:
        """Stop all workers; the second request kills them."""
        self._stop_requests += 1
        if self.store.patience.is_away:
            # Without a store the scheduler can only end, which stops its workers.
            self.store.patience.stop()

    def run(self) -> None:
        """Return when nothing is left to do; after a stop request, when all workers are gone."""
        self.enqueue()
        try:
            while not self._is_finished:
                # Exits come first: a limit or a stop must not be blamed for a worker that had
                # already ended.
                self._handle_exits()
                self._limit_workers()
                if not self._starts_nothing:
                    self._fill_slots()
                if time.monotonic() - self._store_read >= STORE_SECONDS:
                    self._read_store()
                self.on_event(self._progress())
                time.sleep(POLL_SECONDS)
            self._retry_recording()
        finally:
            # Workers remain only if the scheduler failed; they write a checkpoint.
            for worker in self._workers:
                worker.handle.stop()
            for scheduled, queued in self._states.having(Queued).items():
                if queued.is_claimed:
                    give_back(self.store, scheduled.run_id)

    @property
    def is_idle(self) -> bool:
        """Whether no run is being trained, or tried again soon."""
        return not (self._workers or self._states.count(Waiting) or self._states.count(Paused))

    @property
    def _is_finished(self) -> bool:
        if self._workers:
            return False
        if self._starts_nothing:
            return True
        return self.is_idle and self._is_exhausted and not self._states.count(Queued)

    @property
    def _starts_nothing(self) -> bool:
        """Whether no more runs are started."""
        return self._stopping or self._halted or bool(self.refusal)

    @property
    def _stopping(self) -> bool:
        """Whether active runs are being stopped."""
        return self._stop_requests > 0

    @property
    def _halted(self) -> bool:
        """Whether the policy's limit of failures is reached."""
        most = self.policy.max_failures
        return most is not None and self._failures >= most

    @property
    def _memory_limit(self) -> int | None:
        return self.executor.resources.memory_bytes

    @property
    def _free_slots(self) -> int:
        return self.slots - len(self._workers)

    def _progress(self) -> SweepProgress:
        return SweepProgress(
            active=[run.run_id for run in self._states.having(Active)],
            waiting=[run.run_id for run in self._states.having(Waiting)],
            queued=self._states.count(Queued) + self._states.count(Paused),
            stopping=self._stopping,
        )

    # Starting runs

    def enqueue(self) -> Batch:
        """Return the runs that are to be started; withdraw earlier stop requests."""
        runs = list(self._states.having(Queued))
        records = {record.id: record for record in self._records(runs)}
        # A request to a run that is being trained is for the process that has it.
        idle = [r for r in records.values() if r.status is not Status.RUNNING]
        self.store.leases.withdraw_stops([r.id for r in idle if r.stop_requested])
        records.update((r.id, replace(r, stop_requested=False)) for r in idle)
        for scheduled in runs:
            record = records[scheduled.run_id]
            scheduled.trains_alone = needs_own_process(record)
            self._should_start(scheduled, record)
        return [(scheduled, records[scheduled.run_id]) for scheduled in self._states.having(Queued)]

    def _should_start(self, scheduled: ScheduledRun, record: RunRecord) -> bool:
        """Return whether a queued run should start; end it, or wait for it, if it should not."""
        if self._is_claimed(scheduled):
            return True
        is_complete = scheduled.is_complete(record, self.store)
        verdict = judge_start(record, is_complete=is_complete)
        if isinstance(verdict, Start):
            return True
        self._follow(verdict, scheduled, record)
        return False

    def _is_claimed(self, scheduled: ScheduledRun) -> bool:
        state = self._states.of(scheduled)
        return isinstance(state, Queued) and state.is_claimed

    def _fill_slots(self) -> None:
        """Start queued runs, and runs whose pause is over, while slots are free."""
        now = time.monotonic()
        for scheduled, paused in self._states.having(Paused).items():
            if paused.until <= now:
                self._states.set(scheduled, Queued())
        while self._free_slots > 0 and now >= self._next_offer and not self._starts_nothing:
            if not self._states.count(Queued) and not self._take_from_source():
                return
            if not self._start_next():
                self._next_offer = now + ROOM_SECONDS

    def _take_from_source(self) -> bool:
        """Queue a further run of the source; return False if it has none now."""
        if self.source is None or self._is_exhausted:
            return False
        try:
            further = next(self.source)
        except StopIteration:
            self._is_exhausted = True
            return False
        if further is None:
            return False
        scheduled, state = further
        self._states.set(scheduled, state)
        return True

    def _start_next(self) -> bool:
        """Start the next queued run; return False if there is no room for it now."""
        scheduled = self._states.first(Queued)
        record = self._record(scheduled)
        # Another process may have claimed or completed it since it was queued.
        if not self._should_start(scheduled, record) or not self._claim_folder(scheduled, record):
            return True
        # Without room all of them stay queued, and the first stays first: runs that need more
        # room must not be overtaken without end.
        return self._start([(scheduled, record), *self._find_companions(scheduled, record)])

    def _find_companions(self, scheduled: ScheduledRun, record: RunRecord) -> Batch:
        """Return the queued runs that are trained together with one about to start."""
        # A limit applies to the process of a single run.
        is_limited = self.policy.time_limit is not None or self._memory_limit is not None
        if not self.executor.stacks or is_limited or needs_own_process(record):
            return []
        others = [run for run in self._states.having(Queued) if run is not scheduled]
        candidates = companions(scheduled, others, self._free_slots)
        evaluations = scheduled.evaluations(record)
        chosen = []
        for other, its_record in zip(candidates, self._records(candidates), strict=True):
            if not self._should_start(other, its_record) or needs_own_process(its_record):
                continue
            # A worker takes one list of evaluation settings for all its runs.
            if other.evaluations(its_record) != evaluations:
                continue
            if self._claim_folder(other, its_record):
                chosen.append((other, its_record))
        return chosen

    def _claim_folder(self, scheduled: ScheduledRun, record: RunRecord) -> bool:
        """Make the run's folder; end the run if the folder belongs to another one."""
        try:
            claim_folder(record.directory, record.identity)
        except (OSError, StoreError) as error:
            self._refuse_start(scheduled, record, error)
            return False
        return True

    def _start(self, batch: Batch) -> bool:
        """Start a job; return False if the executor has no room for it now."""
        (first, first_record), *others = batch
        job = Job(
            run_id=first.run_id,
            store_url=self.store.url,
            directory=first_record.directory,
            evaluations=first.evaluations(first_record),
            others=tuple(scheduled.run_id for scheduled, _ in others),
            sweep=first_record.sweeps[0] if first_record.sweeps else "",
            is_pulled=self.source is not None,
        )
        try:
            handle = self.executor.start(job)
        except OSError as error:
            # Not a matter of room: such a start would fail again and again.
            for scheduled, record in batch:
                self._refuse_start(scheduled, record, error)
            return True
        if handle is None:
            return False
        worker = Worker(handle, self.policy, self._memory_limit, is_stack=len(batch) > 1)
        self._workers.append(worker)
        for scheduled, record in batch:
            # An end with another time than this is the new worker's.
            scheduled.finished = record.finished
            self._states.set(scheduled, Active(worker))
            self._emit(EventKind.STARTED, record)
        return True

    def _refuse_start(self, scheduled: ScheduledRun, record: RunRecord, error: Exception) -> None:
        """End a run that cannot be started, or leave it to other machines."""
        cause = cause_of_start_failure(error)
        if self._is_claimed(scheduled) and isinstance(error, OSError):
            give_back(self.store, scheduled.run_id, error=cause.reason)
            self._follow(GiveUp(cause.reason), scheduled, record)
        else:
            self._record_end(scheduled, cause, is_stop=self._stopping)

    # Watching workers

    def _handle_exits(self) -> None:
        """Handle the workers that have ended."""
        for worker in list(self._workers):
            code = worker.handle.poll()
            if code is None:
                continue
            self._workers.remove(worker)
            self._next_offer = 0.0
            runs = self._runs_of(worker)
            for scheduled, record in zip(runs, self._records(runs), strict=True):
                self._handle_end(scheduled, record, worker, code)

    def _runs_of(self, worker: Worker) -> list[ScheduledRun]:
        """Return the runs of a worker that have not ended yet."""
        active = self._states.having(Active)
        return [scheduled for scheduled, state in active.items() if state.worker is worker]

    def _handle_end(
        self, scheduled: ScheduledRun, record: RunRecord, worker: Worker, code: int
    ) -> None:
        """Handle the end of a run's worker, or of the run within its stack."""
        cause = worker.cause or cause_of_exit(
            code,
            killed_by_kernel=self._kernel_kills.have_happened(),
            excess=worker.handle.memory_excess(),
            store_error=take_store_error(record.directory),
        )
        fault = worker.handle.machine_fault() if code not in events.REUSABLE else ""
        exit = Exit(
            kind=ExitKind.of_code(code),
            cause=FailureCause(Failure.KILLED, fault) if fault else cause,
            is_machine_fault=bool(fault),
            is_stack=worker.is_stack,
            is_limit=worker.cause is not None,
            is_stop=self._stopping,
        )
        verdict = judge_exit(
            record,
            exit,
            has_ended=scheduled.has_ended(record),
            is_complete=scheduled.is_complete(record, self.store),
        )
        self._follow(verdict, scheduled, record)

    def _limit_workers(self) -> None:
        """Stop the workers if the sweep is stopping, else those beyond a limit."""
        for worker in self._workers:
            if self._stopping:
                worker.stop(kill=self._stop_requests > 1)
            else:
                worker.check_time()
            worker.check_memory()

    def _read_store(self) -> None:
        """Read the state of active and waiting runs from the store, and act on it."""
        self._store_read = time.monotonic()
        self._kernel_kills.sample()
        self._retry_recording()
        self._read_active()
        self._read_waiting()

    def _read_active(self) -> None:
        """Check the heartbeats of workers, and which runs of stacks have ended."""
        records = {record.id: record for record in self._records(self._states.having(Active))}
        silent = [run_id for run_id, record in records.items() if record.status is Status.LOST]
        if silent:
            # A process that locks the store keeps workers from renewing their leases: their
            # silence counts only once the store can be written again.
            self.store.leases.await_writable(silent)
        for worker in self._workers:
            runs = self._runs_of(worker)
            worker.check_heartbeat({records[scheduled.run_id].status for scheduled in runs})
            if not worker.is_stack:
                continue
            for scheduled in runs:
                record = records[scheduled.run_id]
                # The others of a stack may train for hours: who has ended is told now.
                if scheduled.has_final_end(record):
                    self._handle_end(scheduled, record, worker, events.DONE)

    def _read_waiting(self) -> None:
        """Look at the runs that other processes train."""
        waiting = list(self._states.having(Waiting))
        for scheduled, record in zip(waiting, self._records(waiting), strict=True):
            is_complete = scheduled.is_complete(record, self.store)
            verdict = judge_waiting(record, is_complete=is_complete)
            if not isinstance(verdict, Wait):
                self._follow(verdict, scheduled, record)

    # What becomes of a run

    def _follow(self, verdict: Verdict, scheduled: ScheduledRun, record: RunRecord) -> None:
        """Do what a verdict says."""
        match verdict:
            case Start():
                self._states.set(scheduled, Queued())
            case Wait():
                self._wait_for(scheduled, record)
            case End(kind, message):
                self._end(scheduled, kind, record, message)
            case Fail(cause):
                self._fail(scheduled, record, cause)
            case RecordEnd(cause, is_stop):
                self._record_end(scheduled, cause, is_stop=is_stop)
            case TrainAlone(reason):
                self._train_alone(scheduled, record, reason)
            case GiveUp(reason):
                self.refusal = f"run {scheduled.run_id}: {reason}"
                self._states.remove(scheduled)

    def _wait_for(self, scheduled: ScheduledRun, record: RunRecord) -> None:
        """Wait for a run of another process, or leave it to that process."""
        if self.source is not None:
            self._states.remove(scheduled)
            return
        self._states.set(scheduled, Waiting())
        self._emit(EventKind.WAITING, record, "another process trains it")

    def _train_alone(self, scheduled: ScheduledRun, record: RunRecord, reason: str) -> None:
        """Queue a run of a stack that failed, without the others."""
        scheduled.trains_alone = True
        self._states.set(scheduled, Queued())
        self._emit(EventKind.RETRYING, record, f"{reason}; it is trained alone now")

    def _fail(self, scheduled: ScheduledRun, record: RunRecord, cause: FailureCause) -> None:
        """Retry a failed run after a pause, or end it."""
        allowed = self.policy.retries if cause.failure in RETRIED else 0
        if self._starts_nothing or scheduled.retries >= allowed:
            self._end(scheduled, EventKind.FAILED, record, cause.reason)
            return
        scheduled.count_retry(record.step)
        pause = self.policy.backoff(scheduled.stalled)
        self._states.set(scheduled, Paused(until=time.monotonic() + pause))
        again = f"retry {scheduled.retries} of {allowed} in {pause:g} s"
        self._emit(EventKind.RETRYING, record, f"{cause.reason}; {again}")

    def _record_end(self, scheduled: ScheduledRun, cause: FailureCause, *, is_stop: bool) -> None:
        """Record the end of a worker that could not record it, and act on it.

        Args:
            is_stop: whether the worker was being stopped.
        """
        kind = EventKind.FAILED
        end = StoredEnd(Status.FAILED, cause.failure, cause.reason)
        if is_stop:
            kind = EventKind.INTERRUPTED
            end = StoredEnd(Status.INTERRUPTED, None, f"{cause.reason} while stopping")
        try:
            is_recorded = self._write_end(scheduled, end)
        except StoreError:
            # The disk is full, most likely. The run counts as lost until there is room.
            lost = "the store could not record this, and has the run as lost"
            self._set_ended(scheduled, Ended(kind, end.error, unrecorded=end))
            self._emit(kind, self._record(scheduled), f"{end.error}; {lost}")
            return
        if not is_recorded:
            # Another process took the run over, and records its end.
            self._states.set(scheduled, Waiting())
        elif is_stop:
            self._end(scheduled, kind, self._record(scheduled), end.error)
        else:
            self._fail(scheduled, self._record(scheduled), cause)

    def _write_end(self, scheduled: ScheduledRun, end: StoredEnd) -> bool:
        """Record an end in the store; False if another process has claimed the run meanwhile."""
        status = self._record(scheduled).status
        if end.status is Status.INTERRUPTED and status not in (Status.LOST, Status.RUNNING):
            return True  # the worker ended before it claimed the run
        # Ends are recorded under a lease alone. The dead worker's may be taken over, and so may
        # this process's own, of a run that no worker has claimed or whose end was refused.
        me = Owner.current()
        if not self.store.leases.claim(scheduled.run_id, me, holder=me):
            return False
        self.store.leases.finish(scheduled.run_id, end.status, failure=end.failure, error=end.error)
        return True

    def _retry_recording(self) -> None:
        """Try again to record the ends that the store refused."""
        for scheduled, ended in self._states.having(Ended).items():
            if ended.unrecorded is None:
                continue
            try:
                self._write_end(scheduled, ended.unrecorded)
            except StoreError:
                continue
            self._states.set(scheduled, replace(ended, unrecorded=None))

    def _end(
        self, scheduled: ScheduledRun, kind: EventKind, record: RunRecord, message: str
    ) -> None:
        """End a run and tell it."""
        self._set_ended(scheduled, Ended(kind, message))
        self._emit(kind, record, message)

    def _set_ended(self, scheduled: ScheduledRun, ended: Ended) -> None:
        self._states.set(scheduled, ended)
        if ended.kind is EventKind.FAILED:
            self._failures += 1

    def _record(self, scheduled: ScheduledRun) -> RunRecord:
        [record] = self._records([scheduled])
        return record

    def _records(self, runs: Iterable[ScheduledRun]) -> list[RunRecord]:
        return self.store.runs.select(ids=[run.run_id for run in runs])

    def _emit(self, kind: EventKind, record: RunRecord, message: str = "") -> None:
        self.on_event(RunEvent(kind, record, message))
