"""Runs of a scheduler and the workers that train them: what is wanted, limits, causes of ends."""

from __future__ import annotations

import contextlib
import functools
import math
import signal
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from advsweep.components import Plain
from advsweep.errors import ConfigError, LeaseLostError
from advsweep.evaluation.run_evaluator import Evaluator
from advsweep.machine import memory_kills
from advsweep.store import Failure, Status, lease_guard
from advsweep.sweep.events import DISK_FULL, OUT_OF_MEMORY, UNRECORDED
from advsweep.sweep.executors.base import Executor, Handle, QueueExecutor
from advsweep.sweep.planning.versions import replaced_runs
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.worker.environment import new_run

if TYPE_CHECKING:
    from datetime import datetime

    from advsweep.store import RunRecord, Store
    from advsweep.sweep.events import EventKind
    from advsweep.sweep.planning.plan import Plan, PlannedRun

# Time that a worker has to write a checkpoint before it is killed.
STOP_SECONDS = 20.0

# Time that a lease stays expired before its living worker is killed. After the machine slept, or
# its clock was set, every lease looks expired until the next heartbeat.
SILENT_SECONDS = 10.0

_UNTRAINED = (Status.PENDING, Status.INTERRUPTED, Status.LOST)


# Compared by identity: queues remove the very entry, whatever its fields are by then.
@dataclass(eq=False)
class ScheduledRun:
    """A run of the store, with everything that is wanted of it.

    Attributes:
        planned: one planned run per way to evaluate it, usually one; empty if only the store
            knows the run.
        settings: evaluation settings where `planned` is empty; empty for those of the record.
        end: how it ended; None before.
        claimed: true while this process holds the lease, to hand it over to a worker.
        retries: number of retries.
        furthest: the latest step at which it failed.
        stalled: number of failures in a row without progress.
        finished: time of its last end before its worker was started.
        alone: true if it must not share its process with other runs.
    """

    run_id: int
    planned: list[PlannedRun]
    settings: tuple[Plain, ...] = ()
    end: EventKind | None = None
    message: str = ""
    claimed: bool = False
    retries: int = 0
    furthest: int = 0
    stalled: int = 0
    finished: datetime | None = None
    alone: bool = False

    @functools.cached_property
    def stack_key(self) -> str | None:
        """Tells which runs its backend can train together with it; None: no others."""
        if not self.planned:
            return None
        run = self.planned[0].run
        return run.backend.stack_key(run)

    @property
    def is_stackable(self) -> bool:
        # A retry runs alone, so that a run that fails does not take others with it again.
        return not (self.alone or self.retries or self.stack_key is None)

    def evaluations(self, record: RunRecord) -> tuple[Plain, ...]:
        """Return the evaluation settings; empty if they are those of the run's record."""
        if not self.planned:
            return self.settings
        settings = tuple(planned.config.get("evaluation") for planned in self.planned)
        if settings == (record.config.get("evaluation"),):
            return ()
        return tuple(own for own in settings if own is not None)

    def is_done(self, record: RunRecord, store: Store) -> bool:
        """Return whether the run is trained and has every evaluation that is wanted.

        Where the plan is unknown, only a worker can check for missing evaluations.
        """
        if record.status is not Status.DONE:
            return False
        if not self.evaluations(record):
            return True
        evaluators = [Evaluator(store, p.run, record.id, record.attempt) for p in self.planned]
        return bool(evaluators) and not any(evaluator.missing() for evaluator in evaluators)

    def has_ended(self, record: RunRecord) -> bool:
        """Return whether a worker has recorded an end since `finished`."""
        # Times are compared for being others, not later: clocks may be set back.
        return record.finished is not None and record.finished != self.finished

    def has_final_end(self, record: RunRecord) -> bool:
        """Return whether the run has ended for good while its worker trains others.

        An interruption that nobody requested is not final: the worker may have given up the
        whole stack, whose runs are then trained one by one.
        """
        interrupted = record.status is Status.INTERRUPTED and not record.stop_requested
        return self.has_ended(record) and not interrupted

    def retry(self, step: int) -> None:
        """Count one more retry after a failure at a step."""
        self.retries += 1
        self.stalled = 1 if step > self.furthest else self.stalled + 1
        self.furthest = max(self.furthest, step)


def must_be_alone(record: RunRecord) -> bool:
    """Return whether a run needs its own process: it failed before, or is only evaluated."""
    return record.status not in _UNTRAINED


def companions(
    scheduled: ScheduledRun, queue: Iterable[ScheduledRun], free: int
) -> list[ScheduledRun]:
    """Return the queued runs to train together with one that is about to start.

    The batch holds at most as many runs as the backend can stack, and leaves an equal share for
    each of the other free slots.

    Args:
        queue: the candidates, in the order in which they would start.
        free: number of free slots, its own included.
    """
    if not scheduled.is_stackable:
        return []
    key = scheduled.stack_key
    fitting = [other for other in queue if other.is_stackable and other.stack_key == key]
    size = scheduled.planned[0].run.backend.stack_size()
    # A single full stack would leave the other slots idle.
    share = math.ceil((1 + len(fitting)) / free)
    return fitting[: min(size, share) - 1]


def give_back(store: Store, run_id: int) -> None:
    """Release a claimed run that was not started."""
    with contextlib.suppress(LeaseLostError):
        store.leases.finish(run_id, Status.INTERRUPTED, error="stopped before it began")


def schedule_runs(plan: Plan, store: Store, *, force: bool) -> list[ScheduledRun]:
    """Add a plan's runs to the store; with `force`, completed and pruned ones as new attempts.

    Runs that the plan replaces, as they were planned with older code and never started, leave its
    sweep. They stay in the store, where the process that planned them may still refer to them.
    """
    if plan.name is not None:
        store.sweeps.add(plan.name, {**plan.spec, "settings": plan.settings()})
        if any(planned.run.sources for planned in plan.runs):
            stored = store.runs.select(sweep=plan.name, status=Status.PENDING)
            store.sweeps.release(plan.name, replaced_runs(plan, stored))
    ids = store.runs.add([new_run(p.run, p.config) for p in plan.runs], plan.name)
    # Several ways to evaluate one training are one run: it is trained once, for all of them.
    runs: dict[int, ScheduledRun] = {}
    for run_id, planned in zip(ids, plan.runs, strict=True):
        runs.setdefault(run_id, ScheduledRun(run_id, [])).planned.append(planned)
    if force:
        for record in store.runs.select(ids=list(runs)):
            if record.status in (Status.DONE, Status.PRUNED):
                planned = runs[record.id].planned[0]
                runs[record.id].run_id = store.runs.new_attempt(record.id, planned.config)
    if plan.stopping is not None:
        ids = [scheduled.run_id for scheduled in runs.values()]
        store.runs.set_stopping(ids, plan.stopping.rule())
    return list(runs.values())


def check_policy(policy: Policy, executor: Executor) -> None:
    """Refuse a policy that cannot be enforced.

    Raises:
        ConfigError: the executor cannot enforce a limit, or counts no failures.
    """
    options = {
        "--time-limit": policy.time_limit is not None and not executor.limits_time,
        "--max-failures": policy.max_failures is not None and isinstance(executor, QueueExecutor),
    }
    for option, is_beyond in options.items():
        if is_beyond:
            raise ConfigError(
                f"{option}: executor '{executor.name}' cannot hold its runs to it; leave it out, "
                "or choose another executor"
            )


@dataclass(eq=False)
class Worker:
    """A worker process under watch.

    Attributes:
        runs: its runs that have not ended yet.
        cause: why this process ended the worker; None while it did not.
        is_stacked: whether the worker was started with several runs.
    """

    handle: Handle
    policy: Policy
    runs: list[ScheduledRun]
    cause: FailureCause | None = None
    _started: float = field(default_factory=time.monotonic)
    _deadline: float | None = None
    _silent_since: float | None = None

    def __post_init__(self) -> None:
        self.is_stacked = len(self.runs) > 1

    def stop(self, *, kill: bool = False) -> None:
        """Stop the worker, which may write a checkpoint; kill it if its time for that is over."""
        now = time.monotonic()
        if kill or (self._deadline is not None and now > self._deadline):
            # Nothing else ends a process that hangs.
            self.handle.kill()
        elif self._deadline is None:
            # Counted from the first request: later ones must not give it more time.
            self._deadline = now + STOP_SECONDS
            self.handle.stop()

    def check_time(self) -> None:
        """Stop the worker, which may write a checkpoint, if it exceeds its time limit."""
        limit = self.policy.time_limit
        if self.cause is not None:
            if self._deadline is not None:
                self.stop()
        elif limit is not None and time.monotonic() - self._started > limit:
            reason = f"took longer than its time limit of {limit:g} s"
            self.cause = FailureCause(Failure.TIMEOUT, reason)
            self.stop()

    def check_heartbeat(self, statuses: Iterable[Status]) -> None:
        """Kill the worker if it lives but has sent no heartbeat for longer than a lease.

        Args:
            statuses: of its runs.
        """
        now = time.monotonic()
        # A lease that is over may be taken over elsewhere: two processes would train the run.
        if Status.LOST not in statuses or self.cause is not None:
            self._silent_since = None
            return
        self._silent_since = now if self._silent_since is None else self._silent_since
        if now - self._silent_since > SILENT_SECONDS:
            reason = (
                f"gave no sign of life for {lease_guard.LEASE.total_seconds():g} s and was killed"
            )
            self.cause = FailureCause(Failure.KILLED, reason)
            self.handle.kill()


class FailureCause(NamedTuple):
    """Why a run failed: the class of failure, and a sentence for the user."""

    failure: Failure
    reason: str


class ExitClassifier:
    """Classifies the exit codes of workers that recorded no outcome."""

    def __init__(self) -> None:
        self._kernel_kills = deque([memory_kills()], maxlen=3)

    def sample(self) -> None:
        """Sample the kernel's OOM counter; call it about once a second.

        The counter is compared with an older sample, so that earlier kills are not blamed.
        """
        self._kernel_kills.append(memory_kills())

    def cause(self, code: int) -> FailureCause:
        """Return the cause of failure for an exit code."""
        if code == OUT_OF_MEMORY:
            return FailureCause(Failure.OOM, "out of memory")
        if code == UNRECORDED:
            return FailureCause(Failure.ERROR, "its process could not use the store any more")
        if code in (DISK_FULL, -signal.SIGXFSZ):
            reason = (
                "its process could not write any more: the disk is full, or a quota or a limit on "
                "the size of files (ulimit -f) is reached"
            )
            return FailureCause(Failure.DISK, reason)
        # The kernel's OOM killer sends SIGKILL, as a user may: only the counter tells them apart.
        if code == -signal.SIGKILL and memory_kills() > self._kernel_kills[0]:
            return FailureCause(Failure.OOM, "killed by the kernel, which had run out of memory")
        if code < 0:
            name = ""
            with contextlib.suppress(ValueError):  # a real-time signal has none
                name = f" ({signal.Signals(-code).name})"
            return FailureCause(Failure.KILLED, f"killed by signal {-code}{name}")
        return FailureCause(Failure.ERROR, f"its process ended with exit status {code}")
