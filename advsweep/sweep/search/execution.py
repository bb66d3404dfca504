"""Executes a search: the next trial starts as soon as there is a slot for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from advsweep.sweep.scheduler.events import Event, RunsAdded, SweepResult
from advsweep.sweep.scheduler.scheduled_runs import schedule_runs
from advsweep.sweep.scheduler.scheduler import Scheduler, execute
from advsweep.sweep.search.space import spell

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
    """Trains trials until there are as many as asked for, and returns when all are over.

    What an earlier start left unfinished comes first; runs that are done are not repeated,
    whatever trial or sweep they were made for, and those that another process trains are
    waited for. Where one trial fills the slots by itself, each is asked for when those before
    it are over, so that the search depends on nothing but their results. Else the next one is
    asked for when a slot is free, and trials that are being trained count as poor ones.

    Args:
        jobs: runs side by side; the executor's capacity when None.
        on_event: is told what happens, in the calling thread.
        policy: retries and limits; the default one when None.

    Raises:
        ConfigError: as `execute` does, or none of the points that were asked for can be a
            run, or the runs lack a metric that is searched for.
        StoreError: the store cannot be used.
    """
    start = replace(study.example, runs=[], duplicates=[])
    slots = jobs or study.example.executor.capacity()
    store.sweeps.add(study.name, study.example.spec)
    make = partial(SearchScheduler, study=study, overlaps=study.overlaps(slots))
    outcome = execute(start, store, jobs, on_event, policy=policy, make=make)
    ids = list(outcome.run_ids)
    # Trials that were over before, or that another process saw to alone.
    ids += {i for r in study.results(store) if r.is_over for i in r.runs}.difference(ids)
    skipped = outcome.skipped + len(ids) - len(outcome.run_ids)
    return replace(outcome, run_ids=sorted(ids), skipped=skipped)


class SearchScheduler(Scheduler):
    """A scheduler whose runs come trial by trial."""

    def __init__(self, *arguments: Any, study: Study, overlaps: bool) -> None:
        super().__init__(*arguments)
        self._study = study
        self._overlaps = overlaps
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
        """Takes in one more trial; False where none is to be had for the time being."""
        idle = not (self._workers or self._waiting or self._paused)
        if not idle and (self._enough or not self._overlaps):
            return False
        # If another process adds a trial after this, the number is taken.
        number = self._study.next_number(self._store)
        results = self._study.results(self._store)
        for result in results:
            if not result.is_over and result.number not in self._seen:
                plan = self._study.plan(result.params)
                self._take(result.number, result.params, plan, len(results))
                return True
        if len(results) < self._study.search.trials:
            params, plan = self._study.ask(self._store, number, results)
            if self._study.add(self._store, number, params, plan):
                self._take(number, params, plan, len(results) + 1)
            return True
        self._enough = True
        # While runs were trained, another process may have asked for trials.
        self._exhausted = idle
        return False

    def _take(self, number: int, params: Mapping[str, Any], plan: Plan, trials: int) -> None:
        """Queues what is left of a trial's runs.

        Args:
            trials: how many there are so far, this one included.
        """
        self._seen.add(number)
        known = {scheduled.run_id for scheduled in self._runs}
        made = schedule_runs(replace(self._study.example, runs=plan.runs), self._store, force=False)
        runs = [scheduled for scheduled in made if scheduled.run_id not in known]
        self._runs += runs
        to_come = max(0, self._study.search.trials - trials) * len(self._study.seeds)
        labels = {p.run.identity: f"trial {number} seed={p.run.seed}" for p in plan.runs}
        message = f"trial {number}: {spell(params)}"
        self._on_event(RunsAdded(message, labels, len(self._runs) + to_come))
        self._enqueue(runs)
