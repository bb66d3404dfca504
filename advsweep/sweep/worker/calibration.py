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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from advsweep.backends.build import calibration_of, reference_run
from advsweep.components import Component
from advsweep.config.settings import Match
from advsweep.errors import LeaseLostError, TrainingError, counted
from advsweep.store import Failure, NewRun, Owner, Status
from advsweep.sweep.worker.environment import describe_environment

if TYPE_CHECKING:
    from advsweep.backends.base import Reporter, Run
    from advsweep.store import Store

FACTOR = "optim/match_factor"
CHANGE = "optim/change_norm"
ERROR = "optim/match_error"
"""The change of the weights over that of the reference, minus 1."""

TRIED, MOVED = "calibration/factor", "calibration/change_norm"
"""The factor of each trial, and the change of the weights with it; steps are trials here."""

TOLERANCE = 0.02
"""Relative difference of the two changes that is good enough."""

MOST_TRIALS = 5
_SLOPES = 0.2, 5.0
"""Sane slopes of the logarithms of change and factor; it is about 1."""
_POLL_SECONDS = 0.5

_log = logging.getLogger(__name__)

Result = tuple[float, float]
"""The factor of the learning rate, and the norm of the weights' change with it."""


def needs_calibration(run: Run) -> bool:
    """Returns whether the learning rate of a run is that of a calibration."""
    return run.optimizer.match is Match.STEP and not run.optimizer.calibrates


def calibrated(store: Store, runs: Sequence[Run], reporter: Reporter) -> list[Run | Exception]:
    """Returns runs with the learning rates that their calibrations find, made now if missing.

    Args:
        runs: runs that can be trained together; those without match=step stay as they are.
        reporter: gets the progress of pretraining.

    Returns:
        Each run, or the error for which it has no learning rate.
    """
    wanted = {i: calibration_of(run) for i, run in enumerate(runs) if needs_calibration(run)}
    results = calibrate(store, list(wanted.values()), reporter)
    found: list[Run | Exception] = list(runs)
    for i, result in zip(wanted, results, strict=True):
        if isinstance(result, Exception):
            found[i] = result
        else:
            found[i] = replace(runs[i], learning_rate_scale=result[0])
    return found


def calibrate(
    store: Store, calibrations: Sequence[Run], reporter: Reporter, *, held: Sequence[int] = ()
) -> list[Result | Exception]:
    """Returns the results of calibrations; makes those that the store lacks.

    Args:
        held: ids of calibrations whose leases this process has; their ends are not recorded.
    """
    references = {run.identity: reference_run(run) for run in calibrations}
    targets = _ensure(store, list(references.values()), {}, reporter, held)
    of_run = {identity: targets[r.identity] for identity, r in references.items()}
    others = [run for run in calibrations if run.identity not in targets]
    results = targets | _ensure(store, others, of_run, reporter, held)
    return [results[run.identity] for run in calibrations]


def _ensure(
    store: Store,
    runs: Sequence[Run],
    targets: Mapping[str, Result | Exception],
    reporter: Reporter,
    held: Sequence[int],
) -> dict[str, Result | Exception]:
    """Returns the results of calibrations by identity.

    Args:
        targets: the results of their references, by their own identity; references have none.
    """
    failed = {i: target for i, target in targets.items() if isinstance(target, Exception)}
    missing = {run.identity: run for run in runs if run.identity not in failed}
    found: dict[str, Result | Exception] = {**failed}
    ids = dict(zip(store.runs.add(list(map(_new, missing.values()))), missing, strict=True))
    waits = False
    while ids:
        records = store.runs.select(ids=list(ids))
        done = [record.id for record in records if record.status is Status.DONE]
        values = store.metrics.last_values(done, [FACTOR, CHANGE])
        for run_id in done:
            found[ids.pop(run_id)] = values[run_id][FACTOR], values[run_id][CHANGE]
        mine = [i for i in ids if i in held or store.leases.claim(i, Owner.current())]
        for run_id, result in _make(
            store, {i: missing[ids[i]] for i in mine}, targets, reporter, held
        ):
            found[ids.pop(run_id)] = result
        if ids and not mine:
            if not waits:
                _log.info("another process makes %d calibrations; waiting for it", len(ids))
            waits = True
            time.sleep(_POLL_SECONDS)
    return found


def _new(run: Run) -> NewRun:
    return NewRun(
        identity=run.identity,
        config_hash=run.config_hash,
        seed=run.seed,
        config=run.plain(),
        steps=run.steps,
        estimator=run.estimator.name,
        backend=run.backend.name,
    )


def _make(
    store: Store,
    runs: Mapping[int, Run],
    targets: Mapping[str, Result | Exception],
    reporter: Reporter,
    held: Sequence[int],
) -> Iterator[tuple[int, Result | Exception]]:
    """Makes claimed calibrations, records their ends, and generates their results.

    A calibration that another process has taken over meanwhile has no result.
    """
    left = set(runs)
    try:
        for run_id, result in _search(store, runs, targets, reporter):
            if run_id not in held:
                _record_end(store, run_id, result)
            left.remove(run_id)
            yield run_id, result
    except LeaseLostError as error:
        if held:
            raise
        _log.warning("%s", error)
    finally:
        for run_id in left.difference(held):
            with suppress(LeaseLostError):
                store.leases.finish(run_id, Status.INTERRUPTED)


def _record_end(store: Store, run_id: int, result: Result | Exception) -> None:
    if isinstance(result, Exception):
        store.leases.finish(run_id, Status.FAILED, failure=Failure.ERROR, error=str(result))
    else:
        store.leases.finish(run_id, Status.DONE)


def _search(
    store: Store,
    runs: Mapping[int, Run],
    targets: Mapping[str, Result | Exception],
    reporter: Reporter,
) -> Iterator[tuple[int, Result | Exception]]:
    """Makes the trials of calibrations side by side, and generates their results."""
    searches: dict[int, LogSearch] = {}
    norms = {run_id: _target(targets.get(run.identity)) for run_id, run in runs.items()}
    for run_id in runs:
        store.runs.set_environment(run_id, describe_environment())
        norm = norms[run_id]
        if norm == 0:
            yield run_id, TrainingError(_unmoved(runs[run_id]))
            continue
        searches[run_id] = (
            LogSearch(1.0, tolerance=0.0, most=1)
            if norm is None
            else LogSearch(norm, tolerance=TOLERANCE, most=MOST_TRIALS)
        )
        for factor, moved in _trials(store, run_id):
            searches[run_id].add(factor, moved)
    while searches:
        proposed = {run_id: search.next() for run_id, search in searches.items()}
        for run_id in [i for i, factor in proposed.items() if factor is None]:
            search = searches.pop(run_id)
            yield run_id, _conclude(store, run_id, runs[run_id], search, norms[run_id])
        tried = [
            (run_id, replace(runs[run_id], learning_rate_scale=factor))
            for run_id, factor in proposed.items()
            if factor is not None
        ]
        for (run_id, run), outcome in zip(tried, _moves(tried, reporter), strict=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, TrainingError):
                del searches[run_id]
                yield run_id, outcome
                continue
            # A rate at which the training breaks is too large.
            moved = math.inf if isinstance(outcome, TrainingError) else outcome
            searches[run_id].add(run.learning_rate_scale, moved)
            number = len(searches[run_id].trials)
            points = [(TRIED, number, run.learning_rate_scale), (MOVED, number, moved)]
            store.metrics.record(run_id, points, stage=f"trial {number}")


def _target(reference: Result | Exception | None) -> float | None:
    """The change of the weights to find the rate of; None for a reference."""
    assert not isinstance(reference, Exception)
    return None if reference is None else reference[1]


def _trials(store: Store, run_id: int) -> list[tuple[float, float]]:
    """Returns the trials that an earlier process has made."""
    factors = store.metrics.series([run_id], TRIED)
    moves = store.metrics.series([run_id], MOVED)
    if run_id not in factors or run_id not in moves:
        return []
    pairs = zip(factors[run_id][1].tolist(), moves[run_id][1].tolist(), strict=True)
    return [(factor, moved if math.isfinite(moved) else math.inf) for factor, moved in pairs]


def _moves(tried: Sequence[tuple[int, Run]], reporter: Reporter) -> list[float | Exception]:
    if not tried:
        return []
    runs = [run for _, run in tried]
    backend, steps = runs[0].backend, runs[0].steps
    return backend.change_norms(
        runs, reporter, lambda step: reporter.progress("calibrating", step, steps)
    )


def _conclude(
    store: Store, run_id: int, run: Run, search: LogSearch, norm: float | None
) -> Result | Exception:
    """Records the result of a calibration."""
    if search.best is None:
        return TrainingError(_unmoved(run))
    factor, moved = search.best
    points = [(FACTOR, run.steps, factor), (CHANGE, run.steps, moved)]
    if norm is not None:
        off = moved / norm - 1
        points.append((ERROR, run.steps, off))
        if abs(off) > TOLERANCE:
            _log.warning(
                "optimizer.match: after %d trials the weights change %.3g times as far as those "
                "of the reference, with %.4g of its learning rate",
                *(len(search.trials), moved / norm, factor),
            )
    store.metrics.record(run_id, points, step=run.steps)
    return factor, moved


def _unmoved(run: Run) -> str:
    reference = run.optimizer.match_reference
    assert isinstance(reference, Component)
    return (
        "optimizer.match: expected weights that change by a finite amount in "
        f"{counted(run.steps, 'step')}, with estimator "
        f"'{run.estimator.name}' and with the reference '{reference.name}'; got "
        f"none; try a smaller optimizer.lr, more match_steps, or match=none"
    )


class LogSearch:
    """Finds a factor f with q(f) = target, where log q grows with log f at a slope of about 1.

    Secant steps in logarithms, from f = 1; within the bracket once there is one. The factors
    depend on the trials alone, so that a search can be resumed from them.

    Args:
        target: the value that q should have, above 0.
        tolerance: the relative error that is good enough.
        most: the most trials.
    """

    def __init__(self, target: float, *, tolerance: float, most: int) -> None:
        self._target = target
        self._tolerance = math.log1p(tolerance)
        self._most = most
        self.trials: list[tuple[float, float]] = []
        """Factors tried, each with q of it; infinite where it is too large to be measured."""

    def add(self, factor: float, value: float) -> None:
        """Record a trial."""
        self.trials.append((factor, value))

    @property
    def best(self) -> tuple[float, float] | None:
        """The trial whose value is nearest to the target, in ratio; None without a finite one."""
        usable = [trial for trial in self.trials if math.isfinite(trial[1]) and trial[1] > 0]
        return min(usable, key=lambda trial: abs(self._error(trial)), default=None)

    def next(self) -> float | None:
        """Return the factor to try next; None once the search is over."""
        if not self.trials:
            return 1.0
        best = self.best
        if len(self.trials) >= self._most or (best and abs(self._error(best)) <= self._tolerance):
            return None
        if best is None:
            # Nothing was measurable: far less if values were too large, far more if they were 0.
            factor, value = self.trials[-1]
            return factor / 100 if math.isinf(value) else factor * 100
        return math.exp(self._inside(math.log(best[0]) - self._error(best) / self._slope()))

    def _error(self, trial: tuple[float, float]) -> float:
        return math.log(trial[1] / self._target) if trial[1] > 0 else -math.inf

    def _slope(self) -> float:
        """The slope between the two trials nearest to the target, kept within a sane range."""
        finite = [t for t in self.trials if math.isfinite(self._error(t))]
        nearest = sorted(finite, key=lambda trial: abs(self._error(trial)))[:2]
        if len(nearest) < 2:
            return 1.0
        rise = self._error(nearest[0]) - self._error(nearest[1])
        run = math.log(nearest[0][0] / nearest[1][0])
        slope = rise / run if run else 0.0
        return min(max(slope, _SLOPES[0]), _SLOPES[1]) if slope > 0 else 1.0

    def _inside(self, proposed: float) -> float:
        """Return a log factor within the bracket of trials: the middle if it lies outside."""
        below = _logs(t for t in self.trials if self._error(t) < 0)
        above = _logs(t for t in self.trials if self._error(t) > 0)
        low, high = max(below, default=-math.inf), min(above, default=math.inf)
        if not low < proposed < high and math.isfinite(low) and math.isfinite(high):
            return (low + high) / 2
        return proposed


def _logs(trials: Iterable[tuple[float, float]]) -> list[float]:
    return [math.log(factor) for factor, _ in trials]
