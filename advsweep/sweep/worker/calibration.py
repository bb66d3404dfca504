"""Calibrations: they find the learning rates of runs with optimizer.match=step.

A calibration is a run of its own, made by `backends.build.calibration_of`: the first steps of the
runs that need it, trained again with one factor of the learning rate after another, until the
weights change as far as those of the reference. The reference's own change is the calibration of
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from advsweep.backends.build import calibration_of, reference_run
from advsweep.errors import LeaseLostError, TrainingError, counted
from advsweep.names import CHANGE_NORM, MATCH_FACTOR
from advsweep.store import Failure, Owner, Status
from advsweep.sweep.worker.environment import describe_environment, new_run

if TYPE_CHECKING:
    from advsweep.backends.base import Reporter, Run
    from advsweep.store import Store

# The change of the weights over that of the reference, minus 1.
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
    found: list[Run | Exception] = list(runs)
    results = calibrate(store, list(wanted.values()), reporter)
    for i, result in zip(wanted, results, strict=True):
        if isinstance(result, Exception):
            found[i] = result
        else:
            found[i] = replace(runs[i], learning_rate_scale=result[0])
    return found


def calibrate(
    store: Store, calibrations: Sequence[Run], reporter: Reporter, *, held: Sequence[int] = ()
) -> list[Result | Exception]:
    """Return the results of calibrations; make those that the store lacks.

    Args:
        held: ids of calibrations whose leases this process has; their ends are not recorded.
    """
    references = {run.identity: reference_run(run) for run in calibrations}
    found = _ensure(store, list(references.values()), {}, reporter, held)
    targets = {identity: found[run.identity] for identity, run in references.items()}
    others = [run for run in calibrations if run.identity not in found]
    results = found | _ensure(store, others, targets, reporter, held)
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
    found: dict[str, Result | Exception] = {
        i: target for i, target in targets.items() if isinstance(target, Exception)
    }
    missing = {run.identity: run for run in runs if run.identity not in found}
    new = [new_run(run, run.plain()) for run in missing.values()]
    ids = dict(zip(store.runs.add(new), missing, strict=True))
    waits = False
    while ids:
        records = store.runs.select(ids=list(ids))
        done = [record.id for record in records if record.status is Status.DONE]
        values = store.metrics.last_values(done, [MATCH_FACTOR, CHANGE_NORM])
        for run_id in done:
            found[ids.pop(run_id)] = values[run_id][MATCH_FACTOR], values[run_id][CHANGE_NORM]
        # One process makes a calibration; the others would find the same factor with more time.
        mine = [i for i in ids if i in held or store.leases.claim(i, Owner.current())]
        made = _make(store, {i: missing[ids[i]] for i in mine}, targets, reporter, held)
        for run_id, result in made.items():
            found[ids.pop(run_id)] = result
        if ids and not mine:
            if not waits:
                _log.info("another process makes %d calibrations; waiting for it", len(ids))
            waits = True
            time.sleep(_POLL_SECONDS)
    return found


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

    def end(run_id: int, result: Result | Exception) -> None:
        if run_id not in held and isinstance(result, Exception):
            store.leases.finish(run_id, Status.FAILED, failure=Failure.ERROR, error=str(result))
        elif run_id not in held:
            store.leases.finish(run_id, Status.DONE)
        made[run_id] = result

    try:
        searched: dict[int, list[Result]] = {}
        for run_id in runs:
            store.runs.set_environment(run_id, describe_environment())
            # Those of an earlier process: the search goes on where that one ended.
            earlier: dict[int, dict[str, float]] = defaultdict(dict)
            for name, number, value in store.metrics.points(run_id, [TRIED, MOVED]):
                earlier[number][name] = value if math.isfinite(value) else math.inf
            searched[run_id] = [(each[TRIED], each[MOVED]) for _, each in sorted(earlier.items())]
        while searched:
            tried: dict[int, Run] = {}
            for run_id, trials in list(searched.items()):
                target = targets.get(runs[run_id].identity)
                assert not isinstance(target, Exception)
                factor = next_factor(trials, target)
                if factor is None:
                    end(run_id, _conclude(store, run_id, runs[run_id], trials, target))
                    del searched[run_id]
                else:
                    tried[run_id] = replace(runs[run_id], learning_rate_scale=factor)
            if not tried:
                break
            # Side by side: the trials of a stack cost little more than those of one run.
            some = list(tried.values())
            progress = partial(reporter.progress, "calibrating", total=some[0].steps)
            norms = some[0].backend.change_norms(some, reporter, progress)
            for run_id, outcome in zip(tried, norms, strict=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, TrainingError):
                    end(run_id, outcome)
                    del searched[run_id]
                    continue
                # A rate at which the training breaks is too large.
                moved = math.inf if isinstance(outcome, TrainingError) else outcome
                factor = tried[run_id].learning_rate_scale
                searched[run_id].append((factor, moved))
                number = len(searched[run_id])
                points = [(TRIED, number, factor), (MOVED, number, moved)]
                store.metrics.record(run_id, points, stage=f"trial {number}")
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


def _conclude(
    store: Store, run_id: int, run: Run, trials: Trials, target: Result | None
) -> Result | Exception:
    """Record the result of a calibration."""
    best = best_trial(trials, target)
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
                *(len(trials), 1 + off, factor),
            )
    store.metrics.record(run_id, points, step=run.steps)
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
        factor, value = trials[-1]
        return factor / 100 if math.isinf(value) else factor * 100
    finite = [trial for trial in trials if math.isfinite(_off(trial, target))]
    if abs(_off(best, target)) <= math.log1p(TOLERANCE):
        return None
    slope = 1.0
    if len(finite) > 1:
        # Between the two trials nearest to the target, kept within a sane range.
        one, other = sorted(finite, key=lambda trial: abs(_off(trial, target)))[:2]
        run = math.log(one[0] / other[0])
        found = (_off(one, target) - _off(other, target)) / run if run else 0.0
        slope = min(max(found, _SLOPES[0]), _SLOPES[1]) if found > 0 else 1.0
    proposed = math.log(best[0]) - _off(best, target) / slope
    low = max((math.log(t[0]) for t in trials if _off(t, target) < 0), default=-math.inf)
    high = min((math.log(t[0]) for t in trials if _off(t, target) > 0), default=math.inf)
    if not low < proposed < high and math.isfinite(low) and math.isfinite(high):
        proposed = (low + high) / 2
    return math.exp(proposed)


def best_trial(trials: Trials, target: Result | None) -> Result | None:
    """Return the trial whose change is nearest to the target, in ratio; None without a finite."""
    usable = [trial for trial in trials if math.isfinite(trial[1]) and trial[1] > 0]
    if target is None:
        return next(iter(usable), None)
    return min(usable, key=lambda trial: abs(_off(trial, target)), default=None)


def _off(trial: Result, target: Result) -> float:
    """Return the logarithm of a trial's change over that of the target."""
    return math.log(trial[1] / target[1]) if trial[1] > 0 else -math.inf
