"""Estimates the time that a plan has left.

The estimate follows earlier runs of the same shape in the store. Without any, it follows the
published time that the sweep file gives. Apart from it stands the guess of the backends, for a
store that tells nothing yet.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from advsweep.components import Plain
from advsweep.evaluation.run_evaluator import Evaluator
from advsweep.store import Status
from advsweep.sweep.worker.environment import RUN_SECONDS

if TYPE_CHECKING:
    from advsweep.store import RunOutline, RunRecord, Store
    from advsweep.sweep.planning.plan import Plan, PlannedRun

MISSING = "missing"
"""Status of a planned run that is not in the store."""

UNEVALUATED = "unevaluated"
"""Status of a run that is trained and lacks evaluations of the plan."""

_SHAPE = ("backend", "model", "task", "rollout", "group_size", "prompts_per_step")
"""The keys that mostly decide how long a step takes: a run's shape."""


@dataclass(frozen=True)
class RunEstimate:
    """The progress of one run of a plan.

    Attributes:
        run_id: its latest attempt in the store; None without one.
        status: its status in the store, or `missing` or `unevaluated`.
        step: training steps done.
        steps_left: training steps to do; 0 also if an earlier run of the plan is the same
            training.
        seconds_left: the time they should take; None if it is unknown.
        guess: the backend's first guess of that time in seconds; None if it has none.
    """

    run_id: int | None
    status: str
    step: int
    steps_left: int
    seconds_left: float | None
    guess: float | None = None


@dataclass(frozen=True)
class TimeEstimate:
    """The time that a plan has left.

    Attributes:
        runs: one for each run of the plan, in its order.
        seconds: the time left, without the runs whose time is unknown; None if it is unknown for
            all of them.
        gpu_hours: the same in hours of all GPUs together; None if runs use no GPU.
        unknown: the number of runs with steps left whose time is unknown.
        sources: the number of earlier runs that it was estimated from.
        published: the sources of the published times that it was estimated from.
        guess: the time left by the backends' first guesses, if `seconds` is unknown; None also if
            a backend has none.
    """

    runs: Sequence[RunEstimate]
    seconds: float | None
    gpu_hours: float | None
    unknown: int
    sources: int
    published: Sequence[str] = ()
    guess: float | None = None

    @property
    def states(self) -> Counter[str]:
        """The number of runs of each status."""
        return Counter(run.status for run in self.runs)

    @property
    def steps(self) -> int:
        """Training steps left."""
        return sum(run.steps_left for run in self.runs)


def estimate(plan: Plan, store: Store | None, slots: int, *, force: bool = False) -> TimeEstimate:
    """Estimate the time that a plan has left.

    Args:
        store: None if it does not exist yet.
        slots: workers side by side.
        force: count completed runs as runs to be trained again.
    """
    records = [] if store is None else store.runs.outlines()
    latest = {record.identity: record for record in records}
    times = StepTimes(store, records)
    gpus = plan.executor.resources.gpus
    seen: set[str] = set()
    published: dict[str, None] = {}
    runs = []
    for planned in plan.runs:
        identity = planned.run.identity
        record = latest.get(identity)
        rule = plan.stopping.rule() if plan.stopping else None
        left = 0 if identity in seen else _steps_left(planned, record, rule, force=force)
        seen.add(identity)
        seconds = times.seconds(planned.config, left) if left else 0.0
        if seconds is None and planned.published is not None and gpus:
            per_step = planned.published.gpu_hours * 3600 / planned.published.steps / gpus
            seconds = left * per_step
            published[planned.published.source] = None
        runs.append(
            RunEstimate(
                run_id=None if record is None else record.id,
                status=_status(planned, record, store),
                step=0 if record is None else record.step,
                steps_left=left,
                seconds_left=seconds,
                guess=guess_seconds(planned, left),
            )
        )
    return replace(combine([runs], slots, gpus, times.sources), published=list(published))


def guess_seconds(planned: PlannedRun, steps: int) -> float | None:
    """Return the backend's first guess of the seconds of a run's steps; None if it has none."""
    rough = planned.run.backend.rough_seconds(planned.run)
    return None if rough is None else rough * steps / planned.run.steps


class StepTimes:
    """The time of training steps, measured by the completed runs of a store."""

    def __init__(self, store: Store | None, records: Sequence[RunRecord | RunOutline]) -> None:
        self._rates = {} if store is None else _rates(store, records)
        self._medians = {shape: statistics.median(found) for shape, found in self._rates.items()}
        self._used: set[str] = set()

    @property
    def sources(self) -> int:
        """The number of runs behind the times that were returned so far."""
        return sum(len(self._rates[shape]) for shape in self._used)

    def seconds(self, config: Mapping[str, Any], steps: int) -> float | None:
        """Estimate the seconds of a run's steps; None without an earlier run of its shape."""
        shape = _shape(config)
        if shape not in self._medians:
            return None
        self._used.add(shape)
        return steps * self._medians[shape]

    def seconds_of_any(self, steps: int) -> float | None:
        """Estimate the seconds of steps from runs of any shape; None without any."""
        if not self._rates:
            return None
        self._used.update(self._rates)
        return steps * statistics.median(itertools.chain.from_iterable(self._rates.values()))


def combine(
    batches: Sequence[Sequence[RunEstimate]], slots: int, gpus: float, sources: int
) -> TimeEstimate:
    """Add up the time that runs have left.

    Args:
        batches: runs in batches. A batch starts when the batch before it has ended; its runs
            start as soon as a slot is free.
        gpus: GPUs of each run.
    """
    runs = [run for batch in batches for run in batch]
    known = [[r.seconds_left for r in batch if r.seconds_left is not None] for batch in batches]
    total = sum(map(sum, known))
    unknown = len(runs) - sum(map(len, known))
    is_known = unknown == 0 or total > 0
    guesses = [[r.guess for r in batch if r.guess is not None] for batch in batches]
    is_guessed = not is_known and sum(map(len, guesses)) == len(runs)
    return TimeEstimate(
        runs=runs,
        seconds=sum(_makespan(batch, slots) for batch in known) if is_known else None,
        gpu_hours=gpus * total / 3600 if is_known and gpus else None,
        unknown=unknown,
        sources=sources,
        guess=sum(_makespan(batch, slots) for batch in guesses) if is_guessed else None,
    )


def _steps_left(
    planned: PlannedRun, record: RunOutline | None, rule: Plain | None, *, force: bool
) -> int:
    if record is None or (force and record.status in (Status.DONE, Status.PRUNED)):
        return planned.run.steps
    # A run that the rule of this plan has stopped is not trained further.
    over = record.status is Status.PRUNED and record.stopping == rule
    return 0 if over or record.status is Status.DONE else record.steps - record.step


def _status(planned: PlannedRun, record: RunOutline | None, store: Store | None) -> str:
    if record is None or store is None:
        return MISSING
    if record.status is Status.DONE and planned.config.get("evaluation") != record.config.get(
        "evaluation"
    ):
        evaluator = Evaluator(store, planned.run, record.id, record.attempt)
        if evaluator.missing():
            return UNEVALUATED
    return record.status.value


def _makespan(durations: Iterable[float], slots: int) -> float:
    """Return when the last ends, if each starts in its turn as soon as a slot is free."""
    free = [0.0] * slots
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def _shape(config: Mapping[str, Any]) -> str:
    return repr([config.get(key) for key in _SHAPE])


def _rates(store: Store, records: Sequence[RunRecord | RunOutline]) -> dict[str, list[float]]:
    """Return the seconds per step of completed runs, by shape."""
    done = [record for record in records if record.status is Status.DONE]
    summaries = store.metrics.summaries([record.id for record in done])
    rates: dict[str, list[float]] = {}
    for record in done:
        took = summaries.get(record.id, {}).get(RUN_SECONDS)
        if took is not None:
            rates.setdefault(_shape(record.config), []).append(took / record.steps)
    return rates
