"""Trains open runs of a store, on any number of machines at once: `advsweep worker`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from advsweep.backends import BACKENDS
from advsweep.backends.base import Backend
from advsweep.errors import ConfigError
from advsweep.store import Owner, Status
from advsweep.sweep.events import Event, SweepResult
from advsweep.sweep.executors.base import Executor, Resources
from advsweep.sweep.planning.resume import DEFAULTS, changed_settings, recorded_setting
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.runs import ScheduledRun, give_back
from advsweep.sweep.scheduler.scheduler import STORE_SECONDS, Scheduler, Source
from advsweep.sweep.scheduler.states import Queued
from advsweep.sweep.stop_request import handle_stop_signals
from advsweep.tasks import TASKS

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.registry import Registry
    from advsweep.store import RunRecord, Store


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
    pulled = PulledRuns(store, sweep, idle_seconds, overrides)
    results: list[SweepResult] = []
    try:
        # One scheduler after another, each for runs with the same resources: an executor gives
        # all of its workers the same.
        while not results or (pulled.claimed and not results[-1].stopped):
            executor.prepare(pulled.begin(), ())
            executor.check()
            results.append(_train(pulled, store, executor, on_event))
    finally:
        if pulled.claimed is not None:
            give_back(store, pulled.claimed.run_id)
    return SweepResult.of_stages(results)


def _train(
    pulled: PulledRuns, store: Store, executor: Executor, on_event: Callable[[Event], None]
) -> SweepResult:
    """Train the runs that need the same resources as the first one."""
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
    return scheduler.result()


@dataclass(frozen=True)
class ClaimedRun:
    """A run that this process has claimed, and what it needs; None before that was read."""

    run_id: int
    resources: Resources | None


class PulledRuns:
    """Open runs of a store, each claimed by this process when there is a slot for it.

    Attributes:
        claimed: a claimed run that no scheduler has yet.
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
        # Wrong overrides, runs without consent and programs that this machine lacks are refused
        # before a run is claimed, so that none is blamed for them.
        self._resources = self._build(DEFAULTS["resources"])
        # Many runs of a sweep have the same task and backend.
        parts = {}
        for status in (Status.PENDING, Status.INTERRUPTED, Status.LOST):
            for record in store.runs.select(sweep=sweep, status=status):
                config = record.config
                parts[json.dumps([config.get("task"), config.get("backend")])] = record
        for record in parts.values():
            _check_fit(record)

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
        _check_fit(record)
        sweeps = [s for s in self._store.sweeps.select() if self._sweep in (None, s.name)]
        node = recorded_setting(record, sweeps, "resources")
        self.claimed = ClaimedRun(run_id, self._build(node))

    def _build(self, node: Plain | None) -> Resources:
        """Build the resources of a node, with the user's overrides."""
        changed = changed_settings({"resources": node}, self._overrides)["resources"]
        return Resources.build(changed, where="resources")


def _check_fit(record: RunRecord) -> None:
    """Refuse a run here that its own process would refuse and record as failed."""
    registries: Mapping[str, Registry[Any]] = {"task": TASKS, "backend": BACKENDS}
    for key, registry in registries.items():
        try:
            part = registry.build(record.config[key], where=key)
        except (ConfigError, KeyError):
            continue  # it cannot be built, which its own process records
        try:
            part.check_consent()
            if isinstance(part, Backend):
                part.check_machine()
        except ConfigError as error:
            raise ConfigError(f"run {record.id}: {error}") from error
