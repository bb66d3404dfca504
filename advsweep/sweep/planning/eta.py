"""Estimates the time that a plan has left.

The estimate follows earlier runs of the same shape in the store. Without any, it follows the
published time that the sweep file gives. Apart from it stands the guess of the backends, for a
store that tells nothing yet.
"""

from __future__ import annotations

import heapq
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from advsweep.components import Plain
from advsweep.evaluation.run_evaluator import Evaluator
from advsweep.store import Status
from advsweep.sweep.worker.environment import RUN_SECONDS

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
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
    records = [] if store is None else store.runs.select(newest_first=False)
    latest = {record.identity: record for record in records}
    rates = {} if store is None else _rates(store, records)
    gpus = plan.executor.resources.gpus
    rule = plan.stopping.rule() if plan.stopping else None
    seen: set[str] = set()
    used: set[str] = set()
    published: dict[str, None] = {}
    runs = []
    for planned in plan.runs:
        run, record = planned.run, latest.get(planned.run.identity)
        left = 0 if run.identity in seen else _steps_left(planned, record, rule, force=force)
        seen.add(run.identity)
        shape = _shape(planned.config)
        seconds = None if left else 0.0
        if left and shape in rates:
            seconds = left * statistics.median(rates[shape])
            used.add(shape)
        elif left and planned.published is not None and gpus:
            per_step = planned.published.gpu_hours * 3600 / planned.published.steps / gpus
            seconds = left * per_step
            published[planned.published.source] = None
        rough = run.backend.rough_seconds(run)
        runs.append(
            RunEstimate(
                run_id=None if record is None else record.id,
                status=_status(planned, record, store),
                step=0 if record is None else record.step,
                steps_left=left,
                seconds_left=seconds,
                guess=None if rough is None else rough * left / run.steps,
            )
        )
    known = [run.seconds_left for run in runs if run.seconds_left is not None]
    guesses = [run.guess for run in runs if run.guess is not None]
    unknown = len(runs) - len(known)
    is_known = unknown == 0 or sum(known) > 0
    is_guessed = not is_known and len(guesses) == len(runs)
    return TimeEstimate(
        runs=runs,
        seconds=_makespan(known, slots) if is_known else None,
        gpu_hours=gpus * sum(known) / 3600 if is_known and gpus else None,
        unknown=unknown,
        sources=sum(len(rates[shape]) for shape in used),
        published=list(published),
        guess=_makespan(guesses, slots) if is_guessed else None,
    )


def _steps_left(
    planned: PlannedRun, record: RunRecord | None, rule: Plain | None, *, force: bool
) -> int:
    if record is None or (force and record.status in (Status.DONE, Status.PRUNED)):
        return planned.run.steps
    # A run that the rule of this plan has stopped is not trained further.
    over = record.status is Status.PRUNED and record.stopping == rule
    return 0 if over or record.status is Status.DONE else record.steps - record.step


def _status(planned: PlannedRun, record: RunRecord | None, store: Store | None) -> str:
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


def _rates(store: Store, records: Sequence[RunRecord]) -> dict[str, list[float]]:
    """Return the seconds per step of completed runs, by shape."""
    done = [record for record in records if record.status is Status.DONE]
    summaries = store.metrics.summaries([record.id for record in done])
    rates: dict[str, list[float]] = {}
    for record in done:
        took = summaries.get(record.id, {}).get(RUN_SECONDS)
        if took is not None:
            rates.setdefault(_shape(record.config), []).append(took / record.steps)
    return rates
