"""Joins the sweeps of a store: takes up what nobody has, one run after another.

Any number of processes on any machines that reach the store may do so at once. Each claims a
run before it starts a worker for it, so that no two workers are started for the same one.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from advsweep.config.compose import check_literal
from advsweep.errors import ConfigError, LeaseLostError
from advsweep.store import Owner, Status
from advsweep.sweep.executors.base import Resources
from advsweep.sweep.planning.resume import (
    DEFAULTS,
    build_alike,
    changed_settings,
    recorded_settings,
    task_of,
)
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.scheduled_runs import ScheduledRun
from advsweep.sweep.scheduler.scheduler import LOOK_SECONDS, Scheduler
from advsweep.sweep.stop_request import stop_signals_handled

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.executors.base import Executor
    from advsweep.sweep.scheduler.events import Event, EventKind, SweepResult
    from advsweep.sweep.scheduler.limits import FailureCause

LEFT = (Status.PENDING, Status.INTERRUPTED, Status.LOST)
"""The runs that are taken up."""
LOOKED_AT = 100
"""Runs of each state that an executor is prepared for."""


def pull_runs(
    store: Store,
    sweep: str | None,
    executor: Executor,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    idle_seconds: float = 0.0,
    overrides: Sequence[str] = (),
) -> SweepResult:
    """Takes up pending, interrupted and lost runs until there are none; returns what came of them.

    What a run is, and what its sweep gives it (`resources`), is read from the store alone. The
    executor is prepared anew, once it is idle, for a run that is to have something else than
    those before it. Runs that had failed before are left to whoever wants them tried again, and
    those that others train are not waited for. Signals act as on `execute`.

    Args:
        sweep: take runs of this sweep alone.
        on_event: is told what happens, in the calling thread.
        idle_seconds: how long to wait for more when there is nothing to do.
        overrides: changes to the sweeps' resources, such as `resources.cpus=2`.

    Raises:
        ConfigError: the executor never has room for a run, an override does not fit, or a run
            needs the user's consent to run programs.
        NotFoundError: there is no such sweep.
        StoreError: the store cannot be used.
    """
    execution = PullScheduler(store, executor, on_event, sweep, idle_seconds, overrides)
    with stop_signals_handled(execution.ask_to_stop), contextlib.closing(executor):
        execution.run()
    return execution.result()


class PullScheduler(Scheduler):
    """An execution whose runs come one by one, as slots are free for them."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        on_event: Callable[[Event], None],
        sweep: str | None,
        idle_seconds: float,
        overrides: Sequence[str],
    ) -> None:
        # How many there are is known with the first run.
        super().__init__(store, executor, 1, on_event, Policy(), [])
        self._sweep = sweep
        self._idle_seconds = idle_seconds
        self._overrides = overrides
        self._cache: dict[str, Resources] = {}
        self._changed(DEFAULTS["resources"])  # what does not fit is said before a run is had
        self._wanted: dict[int, Resources] = {}
        self._consented: set[str] = set()
        self._prepared: Resources | None = None
        self._me = Owner.current()
        self._held: set[int] = set()
        self._next_claim = 0.0
        self._idle_since: float | None = None

    def run(self) -> None:
        self._check_consent(self._left([self._sweep]))
        try:
            super().run()
        finally:
            for run_id in list(self._held):
                self._give_back(run_id)

    def _has_more(self) -> bool:
        if self._queue or self._resting or self._idle_since is None:
            return True
        return time.monotonic() - self._idle_since < self._idle_seconds

    def _fill(self) -> None:
        self._claim()
        super()._fill()

    def _claim(self) -> None:
        """Claims a run for a slot that is free; the next one when it has started."""
        if not self._queue and self._free_slots > 0:
            if time.monotonic() < self._next_claim:
                return
            run_id = self._store.leases.claim_next(self._me, self._sweep)
            if run_id is None:
                # Until then others may have added, lost or interrupted some.
                self._next_claim = time.monotonic() + LOOK_SECONDS
                if self._idle_since is None and not self._workers:
                    self._idle_since = time.monotonic()
                    self._prepared = None  # for another number of runs, most likely
                return
            self._idle_since = None
            self._held.add(run_id)
            scheduled = ScheduledRun(run_id, [])
            self._runs.append(scheduled)
            self._queue.append(scheduled)

    def _start(self, together: Sequence[tuple[ScheduledRun, RunRecord]]) -> bool:
        # It knows them one by one.
        [(_, record)] = together
        return self._prepare(record) and super()._start(together)

    def _prepare(self, record: RunRecord) -> bool:
        """Whether a run can be given what its sweep says; false while others have other things."""
        self._check_consent([record])
        resources = self._resources(record)
        if resources != self._prepared:
            if self._workers:
                return False
            self._executor.close()
            left = list(self._left(record.sweeps))
            self._executor.prepare(resources, build_alike([record, *left]))
            self._executor.check()
            self._slots, self._prepared = self._executor.capacity(), resources
        return True

    def _check_consent(self, records: Iterable[RunRecord]) -> None:
        """Refuses runs here that their own processes would refuse, and record as failed."""
        for record in records:
            key = json.dumps(record.config["task"])
            if key in self._consented:
                continue
            if (task := task_of(record)) is not None:
                try:
                    task.check_consent()
                except ConfigError as error:
                    raise ConfigError(f"run {record.id}: {error}") from error
            self._consented.add(key)

    def _resources(self, record: RunRecord) -> Resources:
        if record.id not in self._wanted:
            sweeps = [s for s in self._store.sweeps.select() if self._sweep in (None, s.name)]
            recorded = recorded_settings(record, sweeps)["resources"]
            check_literal(recorded, "resources of the store")
            self._wanted[record.id] = self._changed(recorded)
        return self._wanted[record.id]

    def _changed(self, node: Plain | None) -> Resources:
        key = json.dumps(node)
        if key not in self._cache:
            changed = changed_settings({"resources": node}, self._overrides)["resources"]
            self._cache[key] = Resources.build(changed, where="resources")
        return self._cache[key]

    def _left(self, sweeps: Iterable[str | None]) -> Iterator[RunRecord]:
        """Some of the runs that are left of these sweeps (None: of all), to prepare for."""
        for sweep in sweeps:
            for status in LEFT:
                yield from self._store.runs.select(sweep=sweep, status=status, limit=LOOKED_AT)

    def _sort(self, scheduled: ScheduledRun, record: RunRecord) -> bool:
        # It is recorded as running, but by this very process.
        return scheduled.run_id in self._held or super()._sort(scheduled, record)

    def _look(self) -> None:
        self._keep()
        # Somebody else has them now.
        for scheduled in self._waiting:
            self._runs.remove(scheduled)
        self._waiting.clear()
        super()._look()

    def _keep(self) -> None:
        """Beats for runs until their workers do so themselves."""
        for run_id in list(self._held):
            try:
                self._store.leases.heartbeat(run_id)
            except LeaseLostError:
                self._held.remove(run_id)

    def _settle(self, scheduled: ScheduledRun, code: int, ours: FailureCause | None) -> None:
        if self._requests:
            self._give_back(scheduled.run_id)
        self._held.discard(scheduled.run_id)
        super()._settle(scheduled, code, ours)

    def _end(
        self, scheduled: ScheduledRun, kind: EventKind, record: RunRecord, message: str = ""
    ) -> None:
        self._held.discard(scheduled.run_id)
        super()._end(scheduled, kind, record, message)

    def _give_back(self, run_id: int) -> None:
        """Leaves a run to others whose worker was not started, or ended before it claimed it."""
        if run_id in self._held:
            self._held.remove(run_id)
            with contextlib.suppress(LeaseLostError):
                self._store.leases.finish(
                    run_id, Status.INTERRUPTED, error="stopped before it began"
                )
