"""Executes runs: those of a plan, and open runs of a store (`advsweep worker`)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from advsweep.errors import ConfigError, LeaseLostError
from advsweep.store import Owner, Status
from advsweep.sweep.events import Event, SweepResult
from advsweep.sweep.executors.base import QueueExecutor, Resources
from advsweep.sweep.planning.resume import (
    DEFAULTS,
    backend_of,
    changed_settings,
    recorded_setting,
    task_of,
)
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.limits import check_policy
from advsweep.sweep.scheduler.queue import submit
from advsweep.sweep.scheduler.runs import ScheduledRun, schedule_runs
from advsweep.sweep.scheduler.scheduler import STORE_SECONDS, RunSource, Scheduler
from advsweep.sweep.stop_request import handle_stop_signals

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.executors.base import Executor
    from advsweep.sweep.planning.plan import Plan


def execute(
    plan: Plan,
    store: Store,
    jobs: int | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    force: bool = False,
    policy: Policy | None = None,
) -> SweepResult:
    """Execute what is missing of a plan and return when all its runs are in a final state.

    Completed runs are skipped, and so are runs that the plan's rule has stopped early.
    Interrupted runs resume from their last checkpoint, as do runs that another rule stopped.
    Failed runs are tried again; runs that another process trains are waited for. A run with a
    stop request in the store is interrupted, or not started, until the next execution.

    SIGINT, SIGTERM and SIGHUP stop all workers with a checkpoint; a second signal kills them.
    With a queue executor the runs are only submitted; their jobs apply retries and limits.

    Args:
        jobs: number of workers side by side; the executor's capacity when None.
        on_event: receives events, in the calling thread.
        force: train completed and pruned runs again, as new attempts.
        policy: retries and limits; the default policy when None.

    Raises:
        ConfigError: the executor does not support the policy, never has room for a run, or
            cannot reach its cluster.
        StoreError: the store cannot be used.
    """
    policy = policy or Policy()
    check_policy(policy, plan.executor)
    plan.check()
    runs = schedule_runs(plan, store, force=force)
    slots = jobs or plan.executor.capacity()
    if isinstance(plan.executor, QueueExecutor):
        return submit(runs, store, plan.executor, slots, on_event, policy)
    scheduler = Scheduler(store, plan.executor, slots, on_event, policy, runs)
    with handle_stop_signals(scheduler.request_stop), closing(plan.executor):
        scheduler.run()
    return scheduler.result()


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
        while not results or (pulled.has_other_resources and not results[-1].stopped):
            executor.prepare(pulled.begin(), ())
            executor.check()
            scheduler = Scheduler(
                *(store, executor, executor.capacity(), on_event, Policy()),
                source=pulled,
                waits=False,
            )
            with handle_stop_signals(scheduler.request_stop), closing(executor):
                scheduler.run()
            results.append(scheduler.result())
    finally:
        pulled.give_back()
    return SweepResult.of_stages(results)


class PulledRuns(RunSource):
    """Open runs of a store, each claimed by this process when there is a slot for it."""

    def __init__(
        self, store: Store, sweep: str | None, idle_seconds: float, overrides: Sequence[str]
    ) -> None:
        self._store = store
        self._sweep = sweep
        self._idle_seconds = idle_seconds
        self._overrides = overrides
        self._me = Owner.current()
        self._claimed: tuple[RunRecord, Resources] | None = None
        """A claimed run that no scheduler has yet, and what it needs."""
        self._next_claim = 0.0
        self._idle_since: float | None = None
        # Wrong overrides, and runs without consent, are refused before a run is claimed.
        self._resources = self._build(DEFAULTS["resources"])
        # Many runs of a sweep have the same task and backend.
        parts = {}
        for status in (Status.PENDING, Status.INTERRUPTED, Status.LOST):
            for record in store.runs.select(sweep=sweep, status=status):
                config = record.config
                parts[json.dumps([config.get("task"), config.get("backend")])] = record
        for record in parts.values():
            _check_consent(record)

    def begin(self) -> Resources:
        """Return the resources of the runs for the next scheduler."""
        if claimed := self._claim():
            _, self._resources = claimed
        return self._resources

    @property
    def has_other_resources(self) -> bool:
        """Whether a claimed run needs other resources than those before it."""
        return self._claimed is not None and self._claimed[1] != self._resources

    @property
    def is_exhausted(self) -> bool:
        if self.has_other_resources:
            return True
        since = self._idle_since
        return since is not None and time.monotonic() - since >= self._idle_seconds

    def add_runs(self, scheduler: Scheduler) -> bool:
        claimed = self._claim()
        if claimed is None:
            if self._idle_since is None and scheduler.is_idle:
                self._idle_since = time.monotonic()
            return False
        self._idle_since = None
        if self.has_other_resources:
            # It stays claimed: given back, another worker and this one could pass it to and fro.
            return False
        self._claimed = None
        # Claimed before it is started: of several machines, only one starts a worker for it.
        scheduler.add(ScheduledRun(claimed[0].id, [], claimed=True))
        self._next_claim = 0.0
        return True

    def give_back(self) -> None:
        """Release a claimed run that no scheduler has."""
        if self._claimed is not None:
            with suppress(LeaseLostError):
                self._store.leases.finish(
                    self._claimed[0].id, Status.INTERRUPTED, error="stopped before it began"
                )

    def _claim(self) -> tuple[RunRecord, Resources] | None:
        """Return the claimed run; claim one if there is none."""
        now = time.monotonic()
        if now >= self._next_claim:
            # Other processes may add, lose or interrupt runs until the next attempt.
            self._next_claim = now + STORE_SECONDS
            if self._claimed is not None:
                # It waits until the runs with other resources have ended.
                if self._store.leases.renew([self._claimed[0].id]):
                    self._claimed = None
            elif (run_id := self._store.leases.claim_next(self._me, self._sweep)) is not None:
                [record] = self._store.runs.select(ids=[run_id])
                # It is given back if this fails.
                self._claimed = record, self._resources
                _check_consent(record)
                self._claimed = record, self._resources_of(record)
        return self._claimed

    def _resources_of(self, record: RunRecord) -> Resources:
        sweeps = [s for s in self._store.sweeps.select() if self._sweep in (None, s.name)]
        return self._build(recorded_setting(record, sweeps, "resources"))

    def _build(self, node: Plain | None) -> Resources:
        """Build the resources of a node, with the user's overrides."""
        changed = changed_settings({"resources": node}, self._overrides)["resources"]
        return Resources.build(changed, where="resources")


def _check_consent(record: RunRecord) -> None:
    """Refuse a run here that its own process would refuse and record as failed."""
    for part in (task_of(record), backend_of(record)):
        if part is not None:
            try:
                part.check_consent()
            except ConfigError as error:
                raise ConfigError(f"run {record.id}: {error}") from error
