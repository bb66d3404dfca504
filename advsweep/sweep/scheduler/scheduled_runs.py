"""The runs of a scheduler: what the plan wants of each, and how far it is."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advsweep.components import Plain
from advsweep.evaluation.run_evaluator import Evaluator
from advsweep.store import NewRun, Status

if TYPE_CHECKING:
    from datetime import datetime

    from advsweep.backends.base import StackKey
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.events import EventKind
    from advsweep.sweep.planning.plan import Plan, PlannedRun


@dataclass(eq=False)
class ScheduledRun:
    """A run of the store, with everything that the plan wants of it.

    Attributes:
        planned: one planned run per way to evaluate it, usually one.
        end: how it ended; None before.
        claimed: true while this process holds the lease, to record how the worker died.
        retries: number of retries.
        furthest: the latest step at which it failed.
        stalled: number of failures in a row without progress.
        finished: time of its last end before its worker was started.
        alone: true if it must not share its process with other runs.
    """

    run_id: int
    planned: list[PlannedRun]
    end: EventKind | None = None
    message: str = ""
    claimed: bool = False
    retries: int = 0
    furthest: int = 0
    stalled: int = 0
    finished: datetime | None = None
    alone: bool = False

    @functools.cached_property
    def stack_key(self) -> StackKey | None:
        """Tells which runs its backend can train together with it; None: no others."""
        if not self.planned:
            return None
        run = self.planned[0].run
        return run.backend.stack_key(run)

    def evaluations(self, record: RunRecord) -> tuple[Plain, ...]:
        """Returns the evaluation settings; empty if they are those of the run's record."""
        settings = tuple(planned.config.get("evaluation") for planned in self.planned)
        if settings == (record.config.get("evaluation"),):
            return ()
        return tuple(own for own in settings if own is not None)

    def is_done(self, record: RunRecord, store: Store) -> bool:
        """Returns whether the run is trained and has every evaluation of the plan."""
        if record.status is not Status.DONE:
            return False
        if not self.evaluations(record):
            return True
        evaluators = (Evaluator(store, p.run, record.id, record.attempt) for p in self.planned)
        return not any(evaluator.missing() for evaluator in evaluators)

    def has_ended(self, record: RunRecord) -> bool:
        """Returns whether its worker has recorded an end."""
        return record.finished is not None and record.finished != self.finished

    def retry(self, step: int) -> None:
        """Counts one more retry after a failure at a step."""
        self.retries += 1
        self.stalled = 1 if step > self.furthest else self.stalled + 1
        self.furthest = max(self.furthest, step)


def schedule_runs(plan: Plan, store: Store, *, force: bool) -> list[ScheduledRun]:
    """Adds a plan's runs to the store; with `force`, completed and pruned ones as new attempts."""
    if plan.name is not None:
        store.sweeps.add(plan.name, {**plan.spec, "settings": plan.settings()})
    ids = store.runs.add([new_run(planned) for planned in plan.runs], plan.name)
    runs: dict[int, ScheduledRun] = {}
    for run_id, planned in zip(ids, plan.runs, strict=True):
        runs.setdefault(run_id, ScheduledRun(run_id, [])).planned.append(planned)
    if force:
        for record in store.runs.select(ids=list(runs)):
            if record.status in (Status.DONE, Status.PRUNED):
                runs[record.id].run_id = store.runs.new_attempt(record.id)
    if plan.stopping is not None:
        ids = [scheduled.run_id for scheduled in runs.values()]
        store.runs.set_stopping(ids, plan.stopping.rule())
    return list(runs.values())


def new_run(planned: PlannedRun) -> NewRun:
    """Returns a planned run in the form that a store takes."""
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
