"""Joins the sweeps of a store: takes up what nobody has, one run after another.

Any number of processes on any machines that reach the store may do so at once. Each claims a
run before it starts a worker for it, so that no two workers are started for the same one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from advsweep.errors import LeaseLostError
from advsweep.store import Owner, Status
from advsweep.sweep.engine import LOOK_SECONDS, _Execution
from advsweep.sweep.policy import Policy
from advsweep.sweep.signals import signals_taken
from advsweep.sweep.units import Unit

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.events import Event, EventKind, Outcome
    from advsweep.sweep.executors.base import Executor
    from advsweep.sweep.supervision import Cause


def join(
    store: Store,
    sweep: str | None,
    executor: Executor,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    idle_seconds: float = 0.0,
) -> Outcome:
    """Takes up pending, interrupted and lost runs until there are none; returns what came of them.

    What a run is, is read from the store alone. Runs that had failed before are left to whoever
    wants them tried again, and those that others train are not waited for. Signals act as on
    `execute`.

    Args:
        sweep: take runs of this sweep alone.
        on_event: is told what happens, in the calling thread.
        idle_seconds: how long to wait for more when there is nothing to do.

    Raises:
        NotFoundError: there is no such sweep.
        StoreError: the store cannot be used.
    """
    execution = _Joining(store, executor, on_event, sweep, idle_seconds)
    with signals_taken(execution.ask_to_stop), contextlib.closing(executor):
        execution.run()
    return execution.outcome()


class _Joining(_Execution):
    """An execution whose units come one by one, as slots are free for them."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        on_event: Callable[[Event], None],
        sweep: str | None,
        idle_seconds: float,
    ) -> None:
        super().__init__(store, executor, executor.capacity(), on_event, Policy(), [])
        self._sweep = sweep
        self._idle_seconds = idle_seconds
        self._me = Owner.current()
        self._held: set[int] = set()
        self._next_claim = 0.0
        self._idle_since: float | None = None

    def run(self) -> None:
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
        """Claims runs for the slots that are free."""
        while len(self._active) + len(self._queue) < self._slots:
            if time.monotonic() < self._next_claim:
                return
            run_id = self._store.claim_next(self._me, self._sweep)
            if run_id is None:
                # Until then others may have added, lost or interrupted some.
                self._next_claim = time.monotonic() + LOOK_SECONDS
                if self._idle_since is None and not self._active:
                    self._idle_since = time.monotonic()
                return
            self._idle_since = None
            self._held.add(run_id)
            unit = Unit(run_id, [])
            self._units.append(unit)
            self._queue.append(unit)

    def _sort(self, unit: Unit, record: RunRecord) -> bool:
        # It is recorded as running, but by this very process.
        return unit.run_id in self._held or super()._sort(unit, record)

    def _look(self) -> None:
        self._keep()
        # Somebody else has them now.
        for unit in self._waiting:
            self._units.remove(unit)
        self._waiting.clear()
        super()._look()

    def _keep(self) -> None:
        """Beats for runs until their workers do so themselves."""
        for run_id in list(self._held):
            try:
                self._store.heartbeat(run_id)
            except LeaseLostError:
                self._held.remove(run_id)

    def _settle(self, unit: Unit, code: int, ours: Cause | None) -> None:
        if self._requests:
            self._give_back(unit.run_id)
        self._held.discard(unit.run_id)
        super()._settle(unit, code, ours)

    def _end(self, unit: Unit, kind: EventKind, record: RunRecord, message: str = "") -> None:
        self._held.discard(unit.run_id)
        super()._end(unit, kind, record, message)

    def _give_back(self, run_id: int) -> None:
        """Leaves a run to others whose worker was not started, or ended before it claimed it."""
        if run_id in self._held:
            self._held.remove(run_id)
            with contextlib.suppress(LeaseLostError):
                self._store.finish(run_id, Status.INTERRUPTED, error="stopped before it began")
