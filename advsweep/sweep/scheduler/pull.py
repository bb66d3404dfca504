"""Pulls runs from the sweeps of a store, one after another (`advsweep worker`).

Any number of processes, on any machines that reach the store, may pull at once. Each claims a
run before it starts a worker for it, so that no run gets two workers.
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
    backend_of,
    build_alike,
    changed_settings,
    recorded_settings,
    task_of,
)
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.scheduled_runs import ScheduledRun
from advsweep.sweep.scheduler.scheduler import STORE_SECONDS, Scheduler
from advsweep.sweep.stop_request import handle_stop_signals

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.events import Event, EventKind, SweepResult
    from advsweep.sweep.executors.base import Executor
    from advsweep.sweep.exit_codes import FailureCause

PULLED = (Status.PENDING, Status.INTERRUPTED, Status.LOST)
"""The states of runs that are pulled."""
PREPARED_RUNS = 100
"""Number of runs per state that an executor is prepared for."""


def pull_runs(
    store: Store,
    sweep: str | None,
    executor: Executor,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    idle_seconds: float = 0.0,
    overrides: Sequence[str] = (),
) -> SweepResult:
    """Trains pending, interrupted and lost runs until none is left.

    Configs and resources are read from the store alone. The executor is prepared again, once
    it is idle, for a run that needs other resources than those before it. Runs that failed
    before are left alone, and runs of other processes are not waited for. Signals act as in
    `execute`.

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
    scheduler = PullScheduler(store, executor, on_event, sweep, idle_seconds, overrides)
    with handle_stop_signals(scheduler.request_stop), contextlib.closing(executor):
        scheduler.run()
    return scheduler.result()


class PullScheduler(Scheduler):
    """A scheduler that claims runs one by one, as slots become free."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        on_event: Callable[[Event], None],
        sweep: str | None,
        idle_seconds: float,
        overrides: Sequence[str],
    ) -> None:
        # The number of slots is known once the executor is prepared for the first run.
        super().__init__(store, executor, 1, on_event, Policy(), [])
        self._sweep = sweep
        self._idle_seconds = idle_seconds
        self._overrides = overrides
        self._built: dict[str, Resources] = {}
        self._build(DEFAULTS["resources"])  # refuses wrong overrides before a run is claimed
        self._resources: dict[int, Resources] = {}
        self._consented: set[str] = set()
        self._prepared: Resources | None = None
        self._me = Owner.current()
        self._claimed: set[int] = set()
        self._next_claim = 0.0
        self._idle_since: float | None = None

    def run(self) -> None:
        self._check_consent(self._left([self._sweep]))
        try:
            super().run()
        finally:
            for run_id in list(self._claimed):
                self._give_back(run_id)

    def _has_more(self) -> bool:
        if self._queue or self._paused or self._idle_since is None:
            return True
        return time.monotonic() - self._idle_since < self._idle_seconds

    def _fill_slots(self) -> None:
        self._claim()
        super()._fill_slots()

    def _claim(self) -> None:
        """Claims a run for a free slot; the next one once it has started."""
        if self._queue or self._free_slots <= 0 or time.monotonic() < self._next_claim:
            return
        run_id = self._store.leases.claim_next(self._me, self._sweep)
        if run_id is None:
            # Other processes may add, lose or interrupt runs until the next attempt.
            self._next_claim = time.monotonic() + STORE_SECONDS
            if self._idle_since is None and not self._workers:
                self._idle_since = time.monotonic()
                self._prepared = None  # the next runs may be of another number
            return
        self._idle_since = None
        self._claimed.add(run_id)
        scheduled = ScheduledRun(run_id, [])
        self._runs.append(scheduled)
        self._queue.append(scheduled)

    def _start(self, batch: Sequence[tuple[ScheduledRun, RunRecord]]) -> bool:
        # Runs are claimed one by one, so a batch is a single run.
        [(_, record)] = batch
        return self._prepare(record) and super()._start(batch)

    def _prepare(self, record: RunRecord) -> bool:
        """Prepares the executor for a run; False while runs with other resources are active."""
        self._check_consent([record])
        resources = self._resources_of(record)
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
        """Refuses runs here that their own processes would refuse and record as failed."""
        for record in records:
            parts = {"task": record.config.get("task"), "backend": record.config.get("backend")}
            key = json.dumps(parts, sort_keys=True)
            if key in self._consented:
                continue
            for part in (task_of(record), backend_of(record)):
                if part is None:
                    continue
                try:
                    part.check_consent()
                except ConfigError as error:
                    raise ConfigError(f"run {record.id}: {error}") from error
            self._consented.add(key)

    def _resources_of(self, record: RunRecord) -> Resources:
        if record.id not in self._resources:
            sweeps = [s for s in self._store.sweeps.select() if self._sweep in (None, s.name)]
            recorded = recorded_settings(record, sweeps)["resources"]
            check_literal(recorded, "resources of the store")
            self._resources[record.id] = self._build(recorded)
        return self._resources[record.id]

    def _build(self, node: Plain | None) -> Resources:
        """Builds the resources of a node, with the user's overrides."""
        key = json.dumps(node)
        if key not in self._built:
            changed = changed_settings({"resources": node}, self._overrides)["resources"]
            self._built[key] = Resources.build(changed, where="resources")
        return self._built[key]

    def _left(self, sweeps: Iterable[str | None]) -> Iterator[RunRecord]:
        """Yields some of the runs that are left of these sweeps (None: of all)."""
        for sweep in sweeps:
            for status in PULLED:
                yield from self._store.runs.select(sweep=sweep, status=status, limit=PREPARED_RUNS)

    def _should_start(self, scheduled: ScheduledRun, record: RunRecord) -> bool:
        # A claimed run is recorded as running, but by this very process.
        return scheduled.run_id in self._claimed or super()._should_start(scheduled, record)

    def _read_store(self) -> None:
        self._renew_leases()
        # Another process has taken these runs over.
        for scheduled in self._waiting:
            self._runs.remove(scheduled)
        self._waiting.clear()
        super()._read_store()

    def _renew_leases(self) -> None:
        """Sends heartbeats for claimed runs until their workers do."""
        for run_id in list(self._claimed):
            try:
                self._store.leases.heartbeat(run_id)
            except LeaseLostError:
                self._claimed.remove(run_id)

    def _handle_exit(self, scheduled: ScheduledRun, code: int, ours: FailureCause | None) -> None:
        if self._stop_requests:
            self._give_back(scheduled.run_id)
        self._claimed.discard(scheduled.run_id)
        super()._handle_exit(scheduled, code, ours)

    def _end(
        self, scheduled: ScheduledRun, kind: EventKind, record: RunRecord, message: str = ""
    ) -> None:
        self._claimed.discard(scheduled.run_id)
        super()._end(scheduled, kind, record, message)

    def _give_back(self, run_id: int) -> None:
        """Releases a claimed run whose worker has not claimed it."""
        if run_id in self._claimed:
            self._claimed.remove(run_id)
            with contextlib.suppress(LeaseLostError):
                self._store.leases.finish(
                    run_id, Status.INTERRUPTED, error="stopped before it began"
                )
