"""The runs of a scheduler: what is wanted of each, and which may share a process."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advsweep.components import Plain
from advsweep.errors import LeaseLostError
from advsweep.evaluation.run_evaluator import Evaluator
from advsweep.store import Status
from advsweep.sweep.planning.versions import replaced_runs
from advsweep.sweep.worker.environment import new_run

if TYPE_CHECKING:
    from datetime import datetime

    from advsweep.store import RunRecord, Store
    from advsweep.sweep.planning.plan import Plan, PlannedRun

_UNTRAINED = (Status.PENDING, Status.INTERRUPTED, Status.LOST)


# Compared by identity: it is the key of its state while its fields change.
@dataclass(eq=False)
class ScheduledRun:
    """A run of the store, with everything that is wanted of it.

    Attributes:
        planned: one planned run per way to evaluate it, usually one; empty if only the store
            knows the run.
        settings: evaluation settings where `planned` is empty; empty for the record's.
        finished: time of its last end before its worker was started.
        trains_alone: whether it must not share its process with other runs.
        retries: number of retries.
        furthest: the latest step at which it failed.
        stalled: number of failures in a row without progress.
    """

    run_id: int
    planned: list[PlannedRun]
    settings: tuple[Plain, ...] = ()
    finished: datetime | None = None
    trains_alone: bool = False
    retries: int = 0
    furthest: int = 0
    stalled: int = 0

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
        return not (self.trains_alone or self.retries or self.stack_key is None)

    def evaluations(self, record: RunRecord) -> tuple[Plain, ...]:
        """Return the evaluation settings; empty if the run's record has the same."""
        if not self.planned:
            return self.settings
        settings = tuple(planned.config.get("evaluation") for planned in self.planned)
        if settings == (record.config.get("evaluation"),):
            return ()
        return tuple(each for each in settings if each is not None)

    def is_complete(self, record: RunRecord, store: Store) -> bool:
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

    def count_retry(self, step: int) -> None:
        """Count one more retry, after a failure at a step."""
        self.retries += 1
        self.stalled = 1 if step > self.furthest else self.stalled + 1
        self.furthest = max(self.furthest, step)


def needs_own_process(record: RunRecord) -> bool:
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


def give_back(store: Store, run_id: int, *, error: str | None = None) -> None:
    """Release a claimed run that was not started.

    Args:
        error: why it was not, if it should have been.
    """
    with contextlib.suppress(LeaseLostError):
        store.leases.release(run_id, error=error)


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
