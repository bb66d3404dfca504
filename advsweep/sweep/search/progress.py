"""Where a search stands, and what is left of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from advsweep.errors import NotFoundError
from advsweep.store import Status
from advsweep.sweep.planning.eta import MISSING, Estimate, Pace, RunEstimate, estimate, summed

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.search.optuna import Result
    from advsweep.sweep.search.study import Study


@dataclass(frozen=True)
class Outlook:
    """Where a search stands.

    Attributes:
        results: the trials so far, by number.
        best: the best of them; with two metrics, the Pareto front.
        to_come: trials that nobody has asked for yet.
        left: what trials have left, those to come included.
    """

    results: Sequence[Result]
    best: Sequence[Result]
    to_come: int
    left: Estimate

    @property
    def states(self) -> Counter[str]:
        """How many trials there are of each state."""
        return Counter(result.state.value for result in self.results)


def look_out(study: Study, store: Store | None, slots: int) -> Outlook:
    """Compares a search with a store; None is a store that does not exist yet.

    What runs take is told by the search's own runs that are done or, before there are any,
    by earlier runs of the shapes at the ends of what is searched over.

    Args:
        slots: workers side by side.
    """
    results = _results(study, store)
    done = store.runs.select(sweep=study.name, status=Status.DONE) if store and results else []
    own = Pace(store, done)
    other = Pace(store, [] if store is None or done else store.runs.select(status=Status.DONE))
    batches = [_left(study, store, r, slots).runs for r in results if not r.is_over]
    if done:
        batches = [
            [replace(run, seconds_left=own.seconds_of_any(run.steps_left)) for run in batch]
            for batch in batches
        ]
    to_come = max(0, study.search.trials - len(results))
    if to_come:
        batches += [[_typical(study, own, other)] * len(study.seeds)] * to_come
    if study.overlaps(slots):
        batches = [[run for batch in batches for run in batch]]
    gpus = study.example.executor.resources.gpus
    return Outlook(
        results=results,
        best=study.search.best(results, study.dimensions),
        to_come=to_come,
        left=summed(batches, slots, gpus, own.sources + other.sources),
    )


def _left(study: Study, store: Store | None, result: Result, slots: int) -> Estimate:
    return estimate(replace(study.example, runs=study.plan(result.params).runs), store, slots)


def _results(study: Study, store: Store | None) -> Sequence[Result]:
    if store is None:
        return ()
    try:
        return study.results(store)
    except NotFoundError:
        return ()  # the search was never started


def _typical(study: Study, own: Pace, other: Pace) -> RunEstimate:
    """A run of a trial to come."""
    corners = [planned.run.steps for planned in study.corners]
    steps = round(sum(corners) / len(corners))
    took = [other.seconds(planned.config, planned.run.steps) for planned in study.corners]
    told = [seconds for seconds in took if seconds is not None]
    return RunEstimate(
        run_id=None,
        status=MISSING,
        step=0,
        steps_left=steps,
        seconds_left=sum(told) / len(told) if told else own.seconds_of_any(steps),
    )
