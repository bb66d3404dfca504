"""Calibrations: they find the learning rates of runs with optimizer.match=step.

A calibration is a separate run, made by `backends.build.calibration_of`: the first steps of the
runs that need it, trained again with one factor of the learning rate after another, until the
weights change as far as the reference's. The change of the reference is the calibration of
the reference, shared by all estimators of a seed. The worker of the first run that needs a
calibration makes it, under a lease; others read its result from the store, or wait for it.

Each trial is in the store as soon as it is made, so that a calibration that was stopped or killed
goes on after its last trial. The factors follow from the trials alone.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from advsweep.backends.build import calibration_of, reference_run
from advsweep.backends.work_clock import Work
from advsweep.errors import LeaseLostError, TrainingError, counted
from advsweep.names import CHANGE_NORM, MATCH_FACTOR
from advsweep.store import Failure, Owner, Status
from advsweep.sweep.worker.environment import describe_environment, new_run

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.backends.reporter import Reporter
    from advsweep.store import Store

# The change of the weights over the reference's change, minus 1.
ERROR = "optim/match_error"

# The factor of each trial, and the change of the weights with it; steps are trials here.
TRIED, MOVED = "calibration/factor", "calibration/change_norm"

# Relative difference of the two changes that is good enough.
TOLERANCE = 0.02

MOST_TRIALS = 5
# Sane slopes of the logarithms of change and factor; it is about 1.
_SLOPES = 0.2, 5.0
_POLL_SECONDS = 0.5

_log = logging.getLogger(__name__)

# The factor of the learning rate, and the norm of the weights' change with it.
Result = tuple[float, float]

# Factors tried, each with the change; infinite where it is too large to be measured.
Trials = Sequence[Result]


def calibrated(store: Store, runs: Sequence[Run], reporter: Reporter) -> list[Run | Exception]:
    """Return runs with the learning rates that their calibrations find, made now if missing.

    Args:
        runs: runs that can be trained together; those without match=step stay as they are.
        reporter: gets the progress of pretraining.

    Returns:
        Each run, or the error for which it has no learning rate.
    """
    wanted = {
        i: calibration_of(run)
        for i, run in enumerate(runs)
        if run.optimizer.match == "step" and not run.optimizer.calibrates
    }
    ready: list[Run | Exception] = list(runs)
    results = calibrate(store, list(wanted.values()), reporter)
    for i, result in zip(wanted, results, strict=True):
        if isinstance(result, Exception):
            ready[i] = result
        else:
            ready[i] = replace(runs[i], learning_rate_scale=result[0])
    return ready


def calibrate(
    store: Store, calibrations: Sequence[Run], reporter: Reporter, *, held: Sequence[int] = ()
) -> list[Result | Exception]:
    """Return the results of calibrations; make those that the store lacks.

    Args:
        held: ids of calibrations whose leases this process has; their ends are not recorded.
    """
    references = {run.identity: reference_run(run) for run in calibrations}
    results = _ensure(store, list(references.values()), {}, reporter, held)
    targets = {identity: results[run.identity] for identity, run in references.items()}
    others = [run for run in calibrations if run.identity not in results]
    results |= _ensure(store, others, targets, reporter, held)
    return [results[run.identity] for run in calibrations]


def _ensure(
    store: Store,
    runs: Sequence[Run],
    targets: Mapping[str, Result | Exception],
    reporter: Reporter,
    held: Sequence[int],
) -> dict[str, Result | Exception]:
    """Return the results of calibrations by identity.

    Args:
        targets: the results of their references, by their own identity; references have none.
    """
    results: dict[str, Result | Exception] = {
        i: target for i, target in targets.items() if isinstance(target, Exception)
    }
    missing = {run.identity: run for run in runs if run.identity not in results}
    new = [new_run(run, run.plain()) for run in missing.values()]
    ids = dict(zip(store.runs.add(new), missing, strict=True))
    waits = False
    while ids:
        records = store.runs.select(ids=list(ids))
        done = [record.id for record in records if record.status is Status.DONE]
        values = store.metrics.last_values(done, [MATCH_FACTOR, CHANGE_NORM])
        for run_id in done:
            results[ids.pop(run_id)] = values[run_id][MATCH_FACTOR], values[run_id][CHANGE_NORM]
        # One process makes a calibration; the others would find the same factor with more time.
        mine = [i for i in ids if i in held or store.leases.claim(i, Owner.current())]
        made = _make(store, {i: missing[ids[i]] for i in mine}, targets, reporter, held)
        for run_id, result in made.items():
            results[ids.pop(run_id)] = result
        if ids and not mine:
            if not waits:
                _log.info("another process makes %d calibrations; waiting for it", len(ids))
            waits = True
            time.sleep(_POLL_SECONDS)
    return results


@dataclass
class Search:
    """A calibration that this process makes.

    Attributes:
        target: the result of the reference; None for the reference itself.
        trials: those that were made, by an earlier process too.
        factor: the factor of the next trial; None once the search is over.
    """

    run_id: int
    run: Run
    target: Result | None
    trials: list[Result]
    factor: float | None = None


def _make(
    store: Store,
    runs: Mapping[int, Run],
    targets: Mapping[str, Result | Exception],
    reporter: Reporter,
    held: Sequence[int],
) -> dict[int, Result | Exception]:
    """Make claimed calibrations side by side, and record their ends.

    A calibration that another process has taken over meanwhile has no result.
    """
    made: dict[int, Result | Exception] = {}

    def end(search: Search, result: Result | Exception) -> None:
        if search.run_id not in held:
            _record_end(store, search.run_id, result)
        made[search.run_id] = result

    try:
        searches = [_begin_search(store, run_id, run, targets) for run_id, run in runs.items()]
        while searches:
            for search in searches:
                search.factor = next_factor(search.trials, search.target)
                if search.factor is None:
                    end(search, _conclude(store, search))
            searches = [search for search in searches if search.run_id not in made]
            if searches:
                for search, error in _try_factors(store, searches, reporter):
                    end(search, error)
                searches = [search for search in searches if search.run_id not in made]
    except LeaseLostError as error:
        if held:
            raise
        _log.warning("%s", error)
    finally:
        # Also when this process is stopped: another one may go on with them at once.
        for run_id in set(runs).difference(made, held):
            with suppress(LeaseLostError):
                store.leases.finish(run_id, Status.INTERRUPTED)
    return made


def _begin_search(
    store: Store, run_id: int, run: Run, targets: Mapping[str, Result | Exception]
) -> Search:
    """Begin a calibration after the trials of an earlier process."""
    store.runs.set_environment(run_id, describe_environment())
    target = targets.get(run.identity)
    assert not isinstance(target, Exception)
    trials: dict[int, dict[str, float]] = defaultdict(dict)
    for name, number, value in store.metrics.points(run_id, [TRIED, MOVED]):
        trials[number][name] = value if math.isfinite(value) else math.inf
    earlier = [(trial[TRIED], trial[MOVED]) for _, trial in sorted(trials.items())]
    return Search(run_id, run, target, trials=earlier)


def _try_factors(
    store: Store, searches: Sequence[Search], reporter: Reporter
) -> Iterator[tuple[Search, Exception]]:
    """Make one trial of each calibration, side by side, and record it.

    Trials of a stack cost little more than the trials of one run.

    Yields:
        The calibrations that cannot go on, with the error.
    """
    trials = []
    for search in searches:
        assert search.factor is not None
        trials.append(replace(search.run, learning_rate_scale=search.factor))
    progress = partial(reporter.progress, "calibrating", total=trials[0].steps)
    # They train like runs, and are estimated like their steps.
    with reporter.doing(Work.TRAINING, len(trials) * trials[0].steps):
        norms = trials[0].backend.change_norms(trials, reporter, progress)
    for search, trial, norm in zip(searches, trials, norms, strict=True):
        if isinstance(norm, TrainingError):
            moved = math.inf  # a rate at which the training breaks is too large
        elif isinstance(norm, Exception):
            yield search, norm
            continue
        else:
            moved = norm
        factor = trial.learning_rate_scale
        search.trials.append((factor, moved))
        number = len(search.trials)
        points = [(TRIED, number, factor), (MOVED, number, moved)]
        store.metrics.record(search.run_id, points, stage=f"trial {number}")


def _record_end(store: Store, run_id: int, result: Result | Exception) -> None:
    if isinstance(result, Exception):
        store.leases.finish(run_id, Status.FAILED, failure=Failure.ERROR, error=str(result))
    else:
        store.leases.finish(run_id, Status.DONE)


def _conclude(store: Store, search: Search) -> Result | Exception:
    """Record the result of a calibration."""
    run = search.run
    target = search.target
    best = best_trial(search.trials, target)
    if best is None:
        return TrainingError(
            "optimizer.match: expected weights that change by a finite amount in "
            f"{counted(run.steps, 'step')}, with estimator '{run.estimator.name}' and with the "
            "reference, got none; try a smaller optimizer.lr, more match_steps, or match=none"
        )
    factor, moved = best
    points = [(MATCH_FACTOR, run.steps, factor), (CHANGE_NORM, run.steps, moved)]
    if target is not None:
        off = moved / target[1] - 1
        points.append((ERROR, run.steps, off))
        if abs(off) > TOLERANCE:
            _log.warning(
                "optimizer.match: after %d trials the weights change %.3g times as far as those "
                "of the reference, with %.4g of its learning rate",
                len(search.trials),
                1 + off,
                factor,
            )
    store.metrics.record(search.run_id, points, step=run.steps)
    return best


def next_factor(trials: Trials, target: Result | None, *, most: int = MOST_TRIALS) -> float | None:
    """Return the factor to try next; None once the search is over.

    It finds a factor f with change(f) = target, where log change grows with log f at a slope of
    about 1: secant steps in logarithms, from f = 1; within the bracket once there is one.

    Args:
        target: the result of the reference; None for the reference itself, which has one trial.
        most: the most trials.
    """
    if not trials:
        return 1.0
    if target is None or len(trials) >= most:
        return None
    best = best_trial(trials, target)
    if best is None:
        # Nothing was measurable: far less if values were too large, far more if they were 0.
        factor, change = trials[-1]
        return factor / 100 if math.isinf(change) else factor * 100
    if abs(_off(best, target)) <= math.log1p(TOLERANCE):
        return None
    proposed = math.log(best[0]) - _off(best, target) / _slope(trials, target)
    low = max((math.log(t[0]) for t in trials if _off(t, target) < 0), default=-math.inf)
    high = min((math.log(t[0]) for t in trials if _off(t, target) > 0), default=math.inf)
    is_bracketed = math.isfinite(low) and math.isfinite(high)
    if is_bracketed and not low < proposed < high:
        proposed = (low + high) / 2
    return math.exp(proposed)


def _slope(trials: Trials, target: Result) -> float:
    """Return the slope between the two trials nearest to the target, within a sane range."""
    finite = [trial for trial in trials if math.isfinite(_off(trial, target))]
    if len(finite) < 2:
        return 1.0
    one, other = sorted(finite, key=lambda trial: abs(_off(trial, target)))[:2]
    distance = math.log(one[0] / other[0])
    if not distance:
        return 1.0
    slope = (_off(one, target) - _off(other, target)) / distance
    if slope <= 0:
        return 1.0
    lowest, highest = _SLOPES
    return min(max(slope, lowest), highest)


def best_trial(trials: Trials, target: Result | None) -> Result | None:
    """Return the trial whose change is nearest to the target, in ratio; None without a finite."""
    usable = [trial for trial in trials if math.isfinite(trial[1]) and trial[1] > 0]
    if target is None:
        return next(iter(usable), None)
    return min(usable, key=lambda trial: abs(_off(trial, target)), default=None)


def _off(trial: Result, target: Result) -> float:
    """Return the logarithm of a trial's change over the target's."""
    return math.log(trial[1] / target[1]) if trial[1] > 0 else -math.inf
