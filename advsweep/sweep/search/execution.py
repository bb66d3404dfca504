"""Executes a search: starts the next trial as soon as a slot is free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from advsweep.sweep.events import Event, RunsAdded, SweepResult
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.scheduled_runs import schedule_runs
from advsweep.sweep.scheduler.scheduler import Scheduler
from advsweep.sweep.search.dimensions import format_params

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.planning.plan import Plan
    from advsweep.sweep.retry_policy import Policy
    from advsweep.sweep.search.study import Study


def execute_search(
    study: Study,
    store: Store,
    jobs: int | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    policy: Policy | None = None,
) -> SweepResult:
    """Train trials until the search has as many as it needs, and wait for all of them.

    Unfinished trials of an earlier start come first. Completed runs are not repeated, whatever
    trial or sweep they belong to, and runs that another process trains are waited for.

    If one trial fills the slots, the next is suggested when it is over, so that the search
    depends on its results and its seed alone. Otherwise the next is suggested as soon as a slot
    is free; running trials then count as poor ones.

    Args:
        jobs: runs side by side; the executor's capacity if None.
        on_event: called with each event, in the calling thread.
        policy: retries and limits; the default policy if None.

    Raises:
        ConfigError: as `execute`, or no suggested point can be a run, or the runs lack a metric
            of the search.
        StoreError: the store cannot be used.
    """
    start = replace(study.example, runs=[], duplicates=[])
    slots = jobs or study.example.executor.capacity()
    store.sweeps.add(study.name, study.example.spec)
    make = partial(SearchScheduler, study=study, parallel=study.runs_in_parallel(slots))
    outcome = execute(start, store, jobs, on_event, policy=policy, make=make)
    ids = list(outcome.run_ids)
    # Add the trials that were over before, and those that only another process trained.
    ids += {i for r in study.results(store) if r.is_over for i in r.runs}.difference(ids)
    skipped = outcome.skipped + len(ids) - len(outcome.run_ids)
    return replace(outcome, run_ids=sorted(ids), skipped=skipped)


class SearchScheduler(Scheduler):
    """Schedules the runs of a search trial by trial."""

    def __init__(self, *arguments: Any, study: Study, parallel: bool) -> None:
        super().__init__(*arguments)
        self._study = study
        self._parallel = parallel
        self._seen: set[int] = set()
        self._enough = False
        self._exhausted = False

    def _has_more(self) -> bool:
        return super()._has_more() or not self._exhausted

    def _fill_slots(self) -> None:
        super()._fill_slots()
        while self._has_room() and self._next_trial():
            super()._fill_slots()

    def _has_room(self) -> bool:
        return not self._over and not self._queue and self._free_slots > 0

    def _next_trial(self) -> bool:
        """Add a trial to the queue; return whether there was one to add."""
        idle = not (self._workers or self._waiting or self._paused)
        if not idle and (self._enough or not self._parallel):
            return False
        # Read before the results: if another process adds a trial in between, `add` fails below.
        number = self._study.next_number(self._store)
        results = self._study.results(self._store)
        for result in results:
            if not result.is_over and result.number not in self._seen:
                plan = self._study.plan(result.params)
                self._queue_trial(result.number, result.params, plan, len(results))
                return True
        if len(results) < self._study.search.trials:
            params, plan = self._study.next_trial(self._store, number, results)
            if self._study.add(self._store, number, params, plan):
                self._queue_trial(number, params, plan, len(results) + 1)
            return True
        self._enough = True
        # Another process may still add trials while runs are being trained here.
        self._exhausted = idle
        return False

    def _queue_trial(self, number: int, params: Mapping[str, Any], plan: Plan, trials: int) -> None:
        """Queue the unfinished runs of a trial.

        Args:
            trials: the number of trials so far, this one included.
        """
        self._seen.add(number)
        known = {scheduled.run_id for scheduled in self._runs}
        made = schedule_runs(replace(self._study.example, runs=plan.runs), self._store, force=False)
        runs = [scheduled for scheduled in made if scheduled.run_id not in known]
        self._runs += runs
        to_come = max(0, self._study.search.trials - trials) * len(self._study.seeds)
        labels = {p.run.identity: f"trial {number} seed={p.run.seed}" for p in plan.runs}
        message = f"trial {number}: {format_params(params)}"
        self._on_event(RunsAdded(message, labels, len(self._runs) + to_come))
        self._enqueue(runs)
