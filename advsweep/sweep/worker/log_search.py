"""Search of the factor at which a positive, roughly proportional quantity has a given value."""

from __future__ import annotations

import math
from collections.abc import Iterable

_SLOPES = 0.2, 5.0


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
