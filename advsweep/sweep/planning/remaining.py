"""How long the work that runs have left takes: by measured rates, with workers side by side.

Every estimate of a time is made here: of a plan (`eta`), of a sweep that goes on, and of a store
(`sweep.status`). Nothing heavy is imported, as `advsweep status` uses it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from advsweep import names
from advsweep.sweep.planning.rates import Rates

if TYPE_CHECKING:
    from advsweep.config.settings import EvaluationSettings


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When a run is evaluated, and with how many samples of each problem.

    Attributes:
        n, n_between, every, at: as in `EvaluationSettings`.
    """

    n: int
    every: int
    n_between: int | None = None
    at: Sequence[int] = ()

    @classmethod
    def of(cls, settings: EvaluationSettings) -> Self:
        """Return the schedule of settings."""
        return cls(n=settings.n, every=settings.every, n_between=settings.n_between, at=settings.at)

    def samples_after(self, step: int, steps: int) -> int:
        """Return the samples of each problem that evaluations after a step draw.

        Args:
            step: training steps done; the evaluation of the base is left out.
            steps: training steps.
        """
        if step >= steps:
            return 0
        # Counted and not listed: a run may have a billion steps.
        regular = 0
        if self.every:
            regular = (steps - 1) // self.every - step // self.every
        others = {at for at in self.at if step < at < steps and not self._is_regular(at)}
        return (regular + len(others)) * (self.n_between or self.n) + self.n

    def _is_regular(self, step: int) -> bool:
        return self.every > 0 and step % self.every == 0


@dataclass(frozen=True, kw_only=True)
class RunWork:
    """The work that a run has left.

    Attributes:
        config: the run's, by which rates are found.
        steps: training steps, those of its calibration too.
        samples: samples of each problem, of all evaluations but the base's.
        base: stands for its base model, which runs share; None if it has none to be made.
        updates: those of the base's pretraining, for the first of its runs.
        base_samples: samples of each problem for the base's evaluation, of its first run.
        is_active: whether a process trains it already.
    """

    config: Mapping[str, Any]
    steps: int = 0
    samples: float = 0
    base: Hashable = None
    updates: float = 0
    base_samples: float = 0
    is_active: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.steps or self.samples or self.updates or self.base_samples)


@dataclass(frozen=True)
class Remaining:
    """The time that runs have left.

    Attributes:
        of_runs: the seconds of each run by itself, without what another run of its base makes;
            None if they are unknown.
        seconds: until the last of them ends; None if the time of a run is unknown.
        parts: the seconds of all runs together by kind of work: `start`, `pretraining`, `training`
            and `evaluation`.
    """

    of_runs: Sequence[float | None]
    seconds: float | None
    parts: Mapping[str, float]

    @property
    def unknown(self) -> int:
        """The number of runs whose time is unknown."""
        return sum(seconds is None for seconds in self.of_runs)


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The processes that train runs.

    Attributes:
        number: side by side.
        are_ready: whether they have had runs before.
        take_several: whether each takes one run after another.
    """

    number: int
    are_ready: bool = False
    take_several: bool = True


def time_of(works: Sequence[RunWork], rates: Rates, crew: Workers) -> Remaining:
    """Return the time that runs have left.

    Runs start in their order, as soon as a worker is free. The first run of a base makes it, and
    the others of that base wait. Each worker starts once, and its later runs start sooner.
    """
    parts: dict[str, float] = defaultdict(float)
    # When each worker is free, with whether it has started.
    workers = [(0.0, crew.are_ready)] * max(1, crew.number)
    base_ready: dict[Hashable, float] = {}
    # Those that are trained already have their workers.
    order = sorted(range(len(works)), key=lambda place: not works[place].is_active)
    seconds_of: dict[int, float | None] = {}
    for place in order:
        work = works[place]
        if work.is_empty:
            seconds_of[place] = 0.0
            continue
        free, has_started = heapq.heappop(workers)
        is_first = work.base is not None and work.base not in base_ready
        costs = _costs(work, rates, is_first=is_first)
        start = _start_of(work, rates, has_started=has_started)
        if costs is None or start is None:
            seconds_of[place] = None
            heapq.heappush(workers, (free, has_started))
            continue
        costs[names.START_SECONDS] = start
        for name, seconds in costs.items():
            parts[name] += seconds
        seconds_of[place] = sum(costs.values())
        made = costs[names.PRETRAINING_SECONDS] + costs[_BASE]
        ready = free + start
        if is_first:
            base_ready[work.base] = ready + made
        elif work.base is not None:
            ready = max(ready, base_ready[work.base])
        end = ready + made + costs[names.TRAINING_SECONDS] + costs[names.EVALUATION_SECONDS]
        heapq.heappush(workers, (end, crew.take_several))
    of_runs = [seconds_of[place] for place in range(len(works))]
    total = None
    if None not in of_runs:
        total = max(free for free, _ in workers)
    by_kind = {
        "start": parts[names.START_SECONDS],
        "pretraining": parts[names.PRETRAINING_SECONDS],
        "training": parts[names.TRAINING_SECONDS],
        "evaluation": parts[names.EVALUATION_SECONDS] + parts[_BASE],
    }
    return Remaining(of_runs, total, by_kind)


def _start_of(work: RunWork, rates: Rates, *, has_started: bool) -> float | None:
    """Return the seconds before a run's work; None if they are unknown.

    Args:
        has_started: whether its worker has had another run.
    """
    if work.is_active:
        return 0.0
    if not has_started:
        return rates.of(work.config, names.FIRST_START_SECONDS)
    # Before a worker has had two runs nobody knows that part of the second, a small one.
    return rates.of(work.config, names.START_SECONDS) or 0.0


# The part of an evaluation that is the base's.
_BASE = "base"


def _costs(work: RunWork, rates: Rates, *, is_first: bool) -> dict[str, float] | None:
    """Return the seconds of a run's work by its kind, without its start; None if one is unknown.

    Args:
        is_first: whether it makes its base.
    """
    units = {
        names.TRAINING_SECONDS: work.steps,
        names.EVALUATION_SECONDS: work.samples,
        names.PRETRAINING_SECONDS: work.updates if is_first else 0.0,
        _BASE: work.base_samples if is_first else 0.0,
    }
    costs = {}
    for name, number in units.items():
        rate = rates.of(work.config, names.EVALUATION_SECONDS if name == _BASE else name)
        if number and rate is None:
            return None
        costs[name] = number * (rate or 0.0)
    return costs
