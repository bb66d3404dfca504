"""The runs of an execution: what is wanted of each, and how far that is."""

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
    from advsweep.sweep.planning.plan import Plan, PlannedRun
    from advsweep.sweep.scheduler.events import EventKind


@dataclass(eq=False)
class ScheduledRun:
    """One run of the store, with all that the plan wants of it.

    Attributes:
        wanted: how the plan wants it evaluated, mostly once.
        end: how it ended; None while it has not.
        taken: true once this process holds the run, to record how its worker died.
        retries: how often it was tried again.
        furthest: the step that it had reached when it failed, at most.
        in_vain: how often in a row it failed without getting any further.
        finished: when it had come to an end last, before its worker was started.
        alone: true for one that is to have a process of its own.
    """

    run_id: int
    wanted: list[PlannedRun]
    end: EventKind | None = None
    message: str = ""
    taken: bool = False
    retries: int = 0
    furthest: int = 0
    in_vain: int = 0
    finished: datetime | None = None
    alone: bool = False

    @functools.cached_property
    def stack_key(self) -> StackKey | None:
        """Which others its run can be trained together with, as its backend has it."""
        if not self.wanted:
            return None
        run = self.wanted[0].run
        return run.backend.stack_key(run)

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

    def retry(self, step: int) -> None:
        """Counts one more try after a failure at a step."""
        self.retries += 1
        self.in_vain = 1 if step > self.furthest else self.in_vain + 1
        self.furthest = max(self.furthest, step)


def schedule_runs(plan: Plan, store: Store, *, force: bool) -> list[ScheduledRun]:
    """Adds a plan's runs to the store, with `force` as new attempts of what is done or pruned."""
    if plan.name is not None:
        store.sweeps.add(plan.name, {**plan.spec, "settings": plan.settings()})
    ids = store.runs.add([new_run(planned) for planned in plan.runs], plan.name)
    runs: dict[int, ScheduledRun] = {}
    for run_id, planned in zip(ids, plan.runs, strict=True):
        runs.setdefault(run_id, ScheduledRun(run_id, [])).wanted.append(planned)
    if force:
        for record in store.runs.select(ids=list(runs)):
            if record.status in (Status.DONE, Status.PRUNED):
                runs[record.id].run_id = store.runs.new_attempt(record.id)
    if plan.stopping is not None:
        store.runs.set_stopping(
            [scheduled.run_id for scheduled in runs.values()], plan.stopping.rule()
        )
    return list(runs.values())


def new_run(planned: PlannedRun) -> NewRun:
    """A planned run as a store takes it."""
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
