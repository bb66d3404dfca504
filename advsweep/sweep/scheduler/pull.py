"""Trains open runs of a store, on any number of machines at once: `advsweep worker`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advsweep.errors import ConfigError, NotFoundError
from advsweep.store import Owner, Status
from advsweep.sweep.events import Event, EventKind, RunEvent, SweepResult
from advsweep.sweep.executors.base import Executor, Resources
from advsweep.sweep.planning.resume import DEFAULTS, changed_settings, recorded_setting
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.machine_check import MachineCheck
from advsweep.sweep.scheduler.runs import ScheduledRun, give_back
from advsweep.sweep.scheduler.scheduler import STORE_SECONDS, Scheduler, Source
from advsweep.sweep.scheduler.states import Queued
from advsweep.sweep.stop_request import handle_stop_signals

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.store import Store

# Runs that a worker trains at a time, until one of them has trained a step or has lasted so long.
PROBATION_RUNS = 2
PROBATION_SECONDS = 30.0


def pull_runs(
    store: Store,
    sweep: str | None,
    executor: Executor,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    idle_seconds: float = 0.0,
    overrides: Sequence[str] = (),
) -> SweepResult:
    """Train pending, interrupted and lost runs until none is left.

    Any number of processes, on any machines that reach the store, may pull at once. Each claims
    a run before it starts a worker for it, so that no run gets two workers. Configs and resources
    are read from the store alone. Runs that failed before are left alone, and runs of other
    processes are not waited for. Signals act as in `execute`.

    What only this machine lacks is no fault of the runs: a run that cannot be built or started
    here stays open, and so do all others.

    Args:
        sweep: pull runs of this sweep alone.
        on_event: receives events, in the calling thread.
        idle_seconds: time to wait for more runs when there are none, and for the sweep itself.
        overrides: changes to the sweeps' resources, such as `resources.cpus=2`.

    Raises:
        ConfigError: the executor never has room for a run, an override does not fit, a run needs
            the user's consent to run programs, or this machine lacks what the runs need.
        NotFoundError: there is no such sweep.
        StoreError: the store cannot be used.
    """
    _await_sweep(store, sweep, idle_seconds)
    pulled = PulledRuns(store, sweep, idle_seconds, overrides)
    results: list[SweepResult] = []

    def note_event(event: Event) -> None:
        pulled.probation.note(event)
        on_event(event)

    try:
        # One scheduler after another, each for runs with the same resources: an executor gives
        # all of its workers the same.
        while not results or (pulled.claimed and not results[-1].stopped):
            executor.prepare(pulled.begin(), ())
            executor.check()
            results.append(_train(pulled, store, executor, note_event))
            pulled.probation.check()
    finally:
        if pulled.claimed is not None:
            give_back(store, pulled.claimed.run_id)
    return SweepResult.of_stages(results)


def _await_sweep(store: Store, sweep: str | None, seconds: float) -> None:
    """Wait until there is a sweep of this name: pods and units start in any order.

    Raises:
        NotFoundError: there is none after so many seconds.
    """
    deadline = time.monotonic() + seconds
    while sweep is not None:
        try:
            store.runs.count(sweep=sweep)
        except NotFoundError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(STORE_SECONDS)
        else:
            return


def _train(
    pulled: PulledRuns, store: Store, executor: Executor, on_event: Callable[[Event], None]
) -> SweepResult:
    """Train the runs that need the same resources as the first one.

    Raises:
        ConfigError: this machine lacks what a run needs.
    """
    scheduler = Scheduler(
        store=store,
        executor=executor,
        slots=executor.capacity(),
        on_event=on_event,
        policy=Policy(),
        source=pulled.runs(lambda: scheduler.is_idle),
    )
    with handle_stop_signals(scheduler.request_stop), closing(executor):
        scheduler.run()
    if scheduler.refusal:
        raise ConfigError(
            f"{scheduler.refusal}; the worker ends, and leaves its runs to other machines"
        )
    return scheduler.result()


class Probation:
    """Whether the machine of a worker is fit for its runs, which the first of them show.

    Until one has trained a step, or has lasted `PROBATION_SECONDS`, the worker trains
    `PROBATION_RUNS` at a time; if so many fail before that, it stops.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        # The step and the time at which each run was started.
        self._started: dict[int, tuple[int, float]] = {}
        self._failed: dict[int, str] = {}
        self._is_over = False

    @property
    def has_failed(self) -> bool:
        """Whether no more runs are to be started."""
        return not self._is_over and len(self._failed) >= PROBATION_RUNS

    @property
    def has_room(self) -> bool:
        """Whether one more run may be started now."""
        if not self._is_over:
            self._look()
        return self._is_over or len(self._started) < PROBATION_RUNS

    def note(self, event: Event) -> None:
        """Note an event of the scheduler."""
        if self._is_over or not isinstance(event, RunEvent):
            return
        run = event.run
        if event.kind is EventKind.STARTED:
            self._started[run.id] = run.step, time.monotonic()
            return
        self._look()
        if event.kind is EventKind.FAILED:
            self._failed[run.id] = event.message
        elif event.kind is EventKind.DONE:
            self._is_over = True
        if event.kind is not EventKind.RETRYING:
            self._started.pop(run.id, None)

    def _look(self) -> None:
        """End the probation if a run has come far enough."""
        now = time.monotonic()
        for record in self._store.runs.select(ids=list(self._started)):
            step, since = self._started[record.id]
            if record.step > step or now - since >= PROBATION_SECONDS:
                self._is_over = True

    def check(self) -> None:
        """Refuse the machine if its first runs have failed.

        Raises:
            ConfigError: they have; the message has the reason of the last one.
        """
        if not self.has_failed:
            return
        run_id, reason = list(self._failed.items())[-1]
        raise ConfigError(
            f"the first {PROBATION_RUNS} runs failed before they had trained a step, run {run_id} "
            f"with: {reason}; if this machine lacks what they need, mend it and start them again "
            "with `advsweep retry`; the worker ends, and leaves the other runs open"
        )


@dataclass(frozen=True)
class ClaimedRun:
    """A run that this process has claimed, and what it needs; None before that was read."""

    run_id: int
    resources: Resources | None


class PulledRuns:
    """Open runs of a store, each claimed by this process when there is a slot for it.

    Attributes:
        claimed: a claimed run that no scheduler has yet.
        probation: whether the machine is fit for them.
    """

    def __init__(
        self, store: Store, sweep: str | None, idle_seconds: float, overrides: Sequence[str]
    ) -> None:
        self._store = store
        self._sweep = sweep
        self._idle_seconds = idle_seconds
        self._overrides = overrides
        self._next_claim = 0.0
        self.claimed: ClaimedRun | None = None
        self.probation = Probation(store)
        # Wrong overrides, runs without consent and programs that this machine lacks are refused
        # before a run is claimed, so that none is blamed for them.
        self._resources = self._build(DEFAULTS["resources"])
        self._machine = MachineCheck()
        for status in (Status.PENDING, Status.INTERRUPTED, Status.LOST):
            for record in store.runs.select(sweep=sweep, status=status, newest_first=False):
                self._machine.check(record)

    def begin(self) -> Resources:
        """Return the resources of the runs for the next scheduler."""
        claimed = self._claim()
        if claimed is not None and claimed.resources is not None:
            self._resources = claimed.resources
        return self._resources

    def runs(self, is_idle: Callable[[], bool]) -> Source:
        """Give one scheduler its runs, which all need the same resources.

        Args:
            is_idle: whether the scheduler trains nothing.
        """
        idle_since: float | None = None
        while True:
            if self.probation.has_failed:
                return
            claimed = self._claim()
            if claimed is None:
                now = time.monotonic()
                if idle_since is None and is_idle():
                    idle_since = now
                if idle_since is not None and now - idle_since >= self._idle_seconds:
                    return
                yield None
            elif claimed.resources == self._resources:
                self.claimed = None
                self._next_claim = 0.0
                idle_since = None
                # Claimed before it is started: of several machines, only one starts a worker.
                yield ScheduledRun(claimed.run_id, []), Queued(is_claimed=True)
            elif is_idle():
                return
            else:
                # It stays claimed: given back, another worker and this one could pass it to and
                # fro.
                yield None

    def _claim(self) -> ClaimedRun | None:
        """Return the claimed run; claim one if there is none."""
        now = time.monotonic()
        if now < self._next_claim:
            return self.claimed
        # Other processes may add, lose or interrupt runs until the next attempt.
        self._next_claim = now + STORE_SECONDS
        if self.claimed is None:
            # Asked only now, as it reads the store, too.
            if self.probation.has_room:
                self._claim_next()
        # It waits until the runs with other resources have ended.
        elif self._store.leases.renew([self.claimed.run_id]):
            self.claimed = None
        return self.claimed

    def _claim_next(self) -> None:
        run_id = self._store.leases.claim_next(Owner.current(), self._sweep)
        if run_id is None:
            return
        # It is given back if this fails.
        self.claimed = ClaimedRun(run_id, None)
        [record] = self._store.runs.select(ids=[run_id])
        self._machine.check(record)
        sweeps = [s for s in self._store.sweeps.select() if self._sweep in (None, s.name)]
        node = recorded_setting(record, sweeps, "resources")
        self.claimed = ClaimedRun(run_id, self._build(node))

    def _build(self, node: Plain | None) -> Resources:
        """Build the resources of a node, with the user's overrides."""
        changed = changed_settings({"resources": node}, self._overrides)["resources"]
        return Resources.build(changed, where="resources")
