"""Executes a plan: starts what is missing, supervises it, and survives any death of it."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from advsweep.components import Plain
from advsweep.errors import StoreError
from advsweep.store import NewRun, Owner, Status
from advsweep.sweep import exits
from advsweep.sweep.evaluations import Evaluator
from advsweep.sweep.events import Event, EventKind, Outcome, Progress, RunEvent
from advsweep.sweep.executors.base import Executor, Handle, Job

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.plan import Plan, PlannedRun

POLL_SECONDS = 0.05
LOOK_SECONDS = 1.0
"""How often runs of other executions are looked at, and a store that failed is tried again."""
STOP_SECONDS = 20.0
"""What workers have to write a checkpoint after Ctrl-C before they are killed."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def execute(
    plan: Plan,
    store: Store,
    jobs: int | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    force: bool = False,
) -> Outcome:
    """Does what is missing of a plan and returns when all its runs are in a final state.

    Runs that are done are skipped, interrupted ones go on from their last checkpoint, failed
    ones are tried again, and those that another process trains are waited for. A failing run
    never stops the others. SIGINT, SIGTERM and SIGHUP stop all workers with a checkpoint; a
    second one kills them.

    Args:
        jobs: workers side by side; the executor's capacity when None.
        on_event: is told what happens, in the calling thread.
        force: train again what is done, as new attempts.

    Raises:
        StoreError: the store cannot be used.
    """
    units = _units(plan, store, force=force)
    slots = jobs or plan.executor.capacity()
    execution = _Execution(store, plan.executor, slots, on_event, units)
    with _signals(execution.ask_to_stop), closing(plan.executor):
        execution.run()
    return execution.outcome()


@dataclass(eq=False)
class _Unit:
    """One run of the store, with all that the plan wants of it.

    Attributes:
        wanted: how the plan wants it evaluated, mostly once.
        end: how it ended; None while it has not.
        taken: true once this process holds the run, to record how its worker died.
    """

    run_id: int
    wanted: list[PlannedRun]
    handle: Handle | None = None
    end: EventKind | None = None
    message: str = ""
    taken: bool = False

    def evaluations(self, record: RunRecord) -> tuple[Plain, ...]:
        """The settings to evaluate by; empty where they are those of the run's record."""
        settings = tuple(planned.config["evaluation"] for planned in self.wanted)
        return () if settings == (record.config["evaluation"],) else settings

    def is_done(self, record: RunRecord, store: Store) -> bool:
        """True when the run is trained and has every evaluation that is wanted."""
        if record.status is not Status.DONE:
            return False
        if not self.evaluations(record):
            return True
        evaluators = (Evaluator(store, p.run, record.id, record.attempt) for p in self.wanted)
        return not any(evaluator.missing() for evaluator in evaluators)


def _units(plan: Plan, store: Store, *, force: bool) -> list[_Unit]:
    if plan.name is not None:
        store.add_sweep(plan.name, plan.spec)
    ids = store.add_runs([_new_run(planned) for planned in plan.runs], plan.name)
    units: dict[int, _Unit] = {}
    for run_id, planned in zip(ids, plan.runs, strict=True):
        units.setdefault(run_id, _Unit(run_id, [])).wanted.append(planned)
    if force:
        for record in store.runs(ids=list(units)):
            if record.status is Status.DONE:
                units[record.id].run_id = store.new_attempt(record.id)
    return list(units.values())


def _new_run(planned: PlannedRun) -> NewRun:
    run = planned.run
    return NewRun(
        identity=run.identity,
        config_hash=run.config_hash,
        seed=run.seed,
        config=planned.config,
        steps=run.steps,
        estimator=run.estimator.name,
        backend=run.backend.name,
    )


class _Execution:
    """The state of one `execute`, between one look at the workers and the next."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        slots: int,
        on_event: Callable[[Event], None],
        units: list[_Unit],
    ) -> None:
        self._store = store
        self._executor = executor
        self._slots = slots
        self._on_event = on_event
        self._units = units
        self._queue: deque[_Unit] = deque()
        self._active: list[_Unit] = []
        self._waiting: list[_Unit] = []
        self._unrecorded: list[tuple[_Unit, Status]] = []
        self._looked = 0.0
        self._requests = 0
        self._deadline: float | None = None

    def ask_to_stop(self) -> None:
        """Stops all workers; the second time kills them."""
        self._requests += 1

    def run(self) -> None:
        """Returns when nothing is left to do, or after a request when all workers are gone."""
        records = {r.id: r for r in self._store.runs(ids=[u.run_id for u in self._units])}
        for unit in self._units:
            if self._sort(unit, records[unit.run_id]):
                self._queue.append(unit)
        try:
            while self._active or (not self._requests and self._has_more()):
                self._reap()
                if self._requests:
                    self._press()
                else:
                    self._fill()
                if time.monotonic() - self._looked >= LOOK_SECONDS:
                    self._look()
                self._tell_progress()
                time.sleep(POLL_SECONDS)
            self._record_again()
        finally:
            # None is left but after an error of ours; the workers then save what they have.
            for unit in self._active:
                assert unit.handle is not None
                unit.handle.stop()

    def _has_more(self) -> bool:
        """Whether there is work beside that of the workers that are alive."""
        return bool(self._queue or self._waiting)

    def outcome(self) -> Outcome:
        ends = [unit.end for unit in self._units]
        return Outcome(
            run_ids=[unit.run_id for unit in self._units],
            done=ends.count(EventKind.DONE),
            skipped=ends.count(EventKind.SKIPPED),
            failed={u.run_id: u.message for u in self._units if u.end is EventKind.FAILED},
            unfinished=ends.count(EventKind.INTERRUPTED) + ends.count(None),
            stopped=self._requests > 0,
        )

    def _sort(self, unit: _Unit, record: RunRecord) -> bool:
        """Whether a unit is to be started; else it is at its end, or waited for."""
        if unit.is_done(record, self._store):
            self._end(unit, EventKind.SKIPPED, record)
            return False
        if record.status is Status.RUNNING:
            self._waiting.append(unit)
            self._tell(EventKind.WAITING, record, "another process trains it")
            return False
        return True

    def _fill(self) -> None:
        """Starts queued units while slots are free."""
        while self._queue and len(self._active) < self._slots:
            unit = self._queue.popleft()
            record = self._record(unit)
            # Another execution may have taken or finished it since it was queued.
            if self._sort(unit, record) and not self._start(unit, record):
                self._queue.appendleft(unit)
                return

    def _start(self, unit: _Unit, record: RunRecord) -> bool:
        """False where the executor has no room for it at the moment."""
        job = Job(
            run_id=unit.run_id,
            store_url=self._store.url,
            directory=record.directory,
            evaluations=unit.evaluations(record),
        )
        try:
            unit.handle = self._executor.start(job)
        except OSError as error:
            self._end_unrecorded(unit, Status.FAILED, f"its process could not be started: {error}")
            return True
        if unit.handle is None:
            return False
        self._active.append(unit)
        self._tell(EventKind.STARTED, record)
        return True

    def _reap(self) -> None:
        """Takes notice of workers that have ended."""
        for unit in list(self._active):
            assert unit.handle is not None
            code = unit.handle.poll()
            if code is not None:
                self._active.remove(unit)
                self._settle(unit, code)

    def _settle(self, unit: _Unit, code: int) -> None:
        record = self._record(unit)
        if code == exits.ELSEWHERE:
            self._waiting.append(unit)
            self._tell(EventKind.WAITING, record, "another process trains it")
        elif code == exits.DONE:
            self._end(unit, EventKind.DONE, record)
        elif code == exits.STOPPED:
            self._end(unit, EventKind.INTERRUPTED, record, record.error or "")
        elif code == exits.FAILED and record.status is Status.FAILED:
            self._end(unit, EventKind.FAILED, record, record.error or "")
        elif record.status is Status.DONE:
            # It was to evaluate alone; what was trained stays as it is.
            self._end(
                unit, EventKind.FAILED, record, f"evaluation: {_exit_reason(code)}, see its log"
            )
        elif self._requests:
            self._end_unrecorded(unit, Status.INTERRUPTED, f"{_exit_reason(code)} while stopping")
        else:
            self._end_unrecorded(unit, Status.FAILED, _exit_reason(code))

    def _end_unrecorded(self, unit: _Unit, status: Status, reason: str) -> None:
        """Records the end of a worker that could not do so itself."""
        unit.message = reason
        try:
            recorded = self._record_end(unit, status)
        except StoreError:
            # A full disk, most likely; the run's row says that it is lost until there is room.
            self._unrecorded.append((unit, status))
            recorded = True
        if not recorded:
            self._waiting.append(unit)
            return
        failed = status is Status.FAILED
        kind = EventKind.FAILED if failed else EventKind.INTERRUPTED
        self._end(unit, kind, self._record(unit), reason)

    def _record_end(self, unit: _Unit, status: Status) -> bool:
        """False where another process has taken the run up in the meantime."""
        if status is Status.INTERRUPTED and self._record(unit).status is not Status.LOST:
            return True  # it was ended before it began
        me = Owner.current()
        unit.taken = unit.taken or self._store.claim(unit.run_id, me, holder=me)
        if not unit.taken:
            return False
        self._store.finish(unit.run_id, status, error=unit.message)
        return True

    def _look(self) -> None:
        """Looks at what others train, and tries again what the store did not take."""
        self._looked = time.monotonic()
        self._record_again()
        waiting, self._waiting = self._waiting, []
        records = self._store.runs(ids=[unit.run_id for unit in waiting])
        for unit, record in zip(waiting, records, strict=True):
            if unit.is_done(record, self._store):
                self._end(unit, EventKind.DONE, record)
            elif record.status is Status.FAILED:
                self._end(unit, EventKind.FAILED, record, record.error or "")
            elif record.status is Status.RUNNING:
                self._waiting.append(unit)
            else:
                self._queue.append(unit)

    def _record_again(self) -> None:
        unrecorded, self._unrecorded = self._unrecorded, []
        for unit, status in unrecorded:
            try:
                self._record_end(unit, status)
            except StoreError:
                self._unrecorded.append((unit, status))

    def _press(self) -> None:
        """Passes on a request to stop; kills on the second one, or when the time is up."""
        now = time.monotonic()
        first = self._deadline is None
        if self._deadline is None:
            self._deadline = now + STOP_SECONDS
        for unit in self._active:
            assert unit.handle is not None
            if self._requests > 1 or now > self._deadline:
                unit.handle.kill()
            elif first:
                unit.handle.stop()

    def _record(self, unit: _Unit) -> RunRecord:
        [record] = self._store.runs(ids=[unit.run_id])
        return record

    def _end(self, unit: _Unit, kind: EventKind, record: RunRecord, message: str = "") -> None:
        unit.end, unit.message, unit.handle = kind, message, None
        self._tell(kind, record, message)

    def _tell(self, kind: EventKind, record: RunRecord, message: str = "") -> None:
        self._on_event(RunEvent(kind, record, message))

    def _tell_progress(self) -> None:
        self._on_event(
            Progress(
                active=[unit.run_id for unit in self._active],
                waiting=[unit.run_id for unit in self._waiting],
                queued=len(self._queue),
                stopping=self._requests > 0,
            )
        )


def _exit_reason(code: int) -> str:
    if code == exits.UNRECORDED:
        return "its process could not write to the store any more; is the disk full?"
    if code < 0:
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"its process ended with exit status {code}"


@contextmanager
def _signals(handler: Callable[[], None]) -> Iterator[None]:
    """Takes the signals that ask to stop, in the main thread; elsewhere nobody can.

    Those that are ignored stay so: that is how `nohup` and `&` keep a sweep going.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        handler()

    taken = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in taken}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
