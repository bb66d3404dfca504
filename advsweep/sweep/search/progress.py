"""Reads a search from the store: its progress, what is left of it, and a copy for Optuna."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from advsweep.config.compose import check_literal
from advsweep.errors import ConfigError, NotFoundError, nearest
from advsweep.store import Status
from advsweep.sweep.planning.eta import (
    MISSING,
    RunEstimate,
    StepTimes,
    TimeEstimate,
    combine,
    estimate,
    guess_seconds,
)
from advsweep.sweep.search.study import plan_search

if TYPE_CHECKING:
    import optuna

    from advsweep.store import Store
    from advsweep.sweep.search.optuna import TrialResult
    from advsweep.sweep.search.study import Study


@dataclass(frozen=True)
class SearchProgress:
    """The progress of a search.

    Attributes:
        results: the trials so far, by number.
        best: the best trial; with two metrics, the Pareto front.
        to_come: the number of trials that are not suggested yet.
        left: what all trials have left, those to come included.
    """

    results: Sequence[TrialResult]
    best: Sequence[TrialResult]
    to_come: int
    left: TimeEstimate

    @property
    def states(self) -> Counter[str]:
        """The number of trials in each state."""
        return Counter(result.state.value for result in self.results)


def read_progress(study: Study, store: Store | None, slots: int) -> SearchProgress:
    """Read the progress of a search, and estimate the time that it has left.

    The estimate follows the search's own completed runs or, without any, earlier runs that are
    like those at the ends of its dimensions.

    Args:
        store: None if it does not exist yet.
        slots: workers side by side.
    """
    results = _results(study, store)
    done = store.runs.select(sweep=study.name, status=Status.DONE) if store and results else []
    own = StepTimes(store, done)
    other = StepTimes(store, [] if store is None or done else store.runs.select(status=Status.DONE))
    batches = [_left(study, store, r, slots).runs for r in results if not r.is_over]
    if done:
        batches = [
            [replace(run, seconds_left=own.seconds_of_any(run.steps_left)) for run in batch]
            for batch in batches
        ]
    to_come = max(0, study.search.trials - len(results))
    if to_come:
        batches += [[_typical_run(study, own, other)] * len(study.seeds)] * to_come
    if study.runs_in_parallel(slots):
        batches = [[run for batch in batches for run in batch]]
    gpus = study.example.executor.resources.gpus
    return SearchProgress(
        results=results,
        best=study.search.best(results, study.dimensions),
        to_come=to_come,
        left=combine(batches, slots, gpus, own.sources + other.sources),
    )


def _left(study: Study, store: Store | None, result: TrialResult, slots: int) -> TimeEstimate:
    return estimate(replace(study.example, runs=study.plan(result.params).runs), store, slots)


def _results(study: Study, store: Store | None) -> Sequence[TrialResult]:
    if store is None:
        return ()
    try:
        return study.results(store)
    except NotFoundError:
        return ()  # The search was never started.


def _typical_run(study: Study, own: StepTimes, other: StepTimes) -> RunEstimate:
    """Estimate a run of a trial to come, by the runs at the ends of the dimensions."""
    lengths = [planned.run.steps for planned in study.corners]
    steps = round(sum(lengths) / len(lengths))
    times = [other.seconds(planned.config, planned.run.steps) for planned in study.corners]
    known = [seconds for seconds in times if seconds is not None]
    guesses = [guess_seconds(planned, planned.run.steps) for planned in study.corners]
    guessed = [seconds for seconds in guesses if seconds is not None]
    return RunEstimate(
        run_id=None,
        status=MISSING,
        step=0,
        steps_left=steps,
        seconds_left=sum(known) / len(known) if known else own.seconds_of_any(steps),
        guess=sum(guessed) / len(guesses) if len(guessed) == len(guesses) else None,
    )


def to_optuna(
    store: Store,
    sweep: str,
    *,
    storage: str | None = None,
    config_dirs: Sequence[str | Path] = (),
) -> optuna.Study:
    """Copy the trials of a search to an `optuna.Study`, for its plots and its dashboard.

    Each trial has the ids of its runs as the user attribute `runs`. The store is not changed.

    Args:
        storage: where Optuna keeps the copy, such as `sqlite:///optuna.db` for
            optuna-dashboard; in memory if None. It must not have a study of that name.
        config_dirs: folders of config groups with which the search was started.

    Raises:
        NotFoundError: the sweep does not exist.
        ConfigError: the sweep has no search, or its overrides hold interpolations.
    """
    specs = {record.name: record.spec for record in store.sweeps.select()}
    if sweep not in specs:
        raise NotFoundError(f"no sweep '{sweep}'; {nearest(sweep, specs)}")
    check_literal(specs[sweep]["overrides"], f"overrides of sweep {sweep}")
    study = plan_search(specs[sweep]["overrides"], config_dirs=config_dirs, name=sweep)
    if study is None:
        raise ConfigError(f"{sweep}: expected a search, got a sweep without one")
    return study.search.study(study.results(store), study.dimensions, storage=storage, name=sweep)
