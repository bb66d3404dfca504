"""Estimates the time that a plan has left: the steps to do, by what a step of such a run took."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from advsweep.components import Plain
from advsweep.evaluation.run_evaluator import Evaluator
from advsweep.store import Status
from advsweep.sweep.worker.environment import RUN_SECONDS

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.planning.plan import Plan, PlannedRun

# Status of a planned run that is not in the store.
MISSING = "missing"

# Status of a run that is trained and lacks evaluations of the plan.
UNEVALUATED = "unevaluated"

EARLIER = "earlier runs"
GUESS = "default estimate: no comparable run has finished yet"

# The keys that mostly decide how long a step takes: a run's shape.
_SHAPE = ("backend", "model", "task", "rollout", "group_size", "prompts_per_step")


@dataclass(frozen=True)
class TimeEstimate:
    """The time that a plan has left.

    Attributes:
        runs: a row for each run of the plan, in its order: `id` of its latest attempt in the store,
            or None; `status` there, or `missing` or `unevaluated`; training steps done (`step`)
            and left (`steps_left`), none left also if an earlier run of the plan is the same
            training; and the time that they should take (`seconds_left`), None if it is unknown.
        sources: where the times come from: earlier runs of a shape in the store, or else the
            backend's default estimate.
        seconds: the time left, without the runs whose time is unknown; None if it is unknown for
            all of them.
        gpu_hours: the same in hours of all GPUs together; None if runs use no GPU.
        runs_without_estimate: the number of runs with steps left whose time is unknown.
    """

    runs: Sequence[Plain]
    sources: Sequence[str]
    seconds: float | None
    gpu_hours: float | None
    runs_without_estimate: int

    @property
    def states(self) -> Counter[str]:
        """The number of runs of each status."""
        return Counter(run["status"] for run in self.runs)

    @property
    def steps(self) -> int:
        """Training steps left."""
        return sum(run["steps_left"] for run in self.runs)


def estimate(
    plan: Plan,
    store: Store | None,
    slots: int,
    *,
    force: bool = False,
    records: Sequence[RunRecord] | None = None,
) -> TimeEstimate:
    """Estimate the time that a plan has left.

    Args:
        store: None if it does not exist yet.
        slots: workers side by side.
        force: count completed runs as runs to be trained again.
        records: all runs of the store; None: they are read.
    """
    if records is None:
        records = [] if store is None else store.runs.select(newest_first=False)
    latest = {record.identity: record for record in records}
    step_seconds = _seconds_per_step(store, records)
    rule = plan.stopping.rule() if plan.stopping else None
    seen: set[str] = set()
    runs: list[Plain] = []
    sources: dict[str, None] = {}
    times: list[float] = []
    for planned in plan.runs:
        identity = planned.run.identity
        record = latest.get(identity)
        left = 0
        # What was seen is another evaluation of the same training.
        if identity not in seen:
            left = _steps_left(planned.run, record, rule, force=force)
        seen.add(identity)
        seconds, source = _seconds_left(planned, left, step_seconds)
        if seconds is not None:
            times.append(seconds)
        if source is not None:
            sources[source] = None
        state = _state(planned, record, store)
        runs.append({**state, "steps_left": left, "seconds_left": seconds})
    total = sum(times)
    gpus = plan.executor.resources.gpus
    is_known = len(times) == len(runs) or total > 0
    return TimeEstimate(
        runs=runs,
        sources=list(sources),
        seconds=max(max(times, default=0.0), total / slots) if is_known else None,
        gpu_hours=gpus * total / 3600 if is_known and gpus else None,
        runs_without_estimate=len(runs) - len(times),
    )


def _seconds_per_step(store: Store | None, records: Sequence[RunRecord]) -> dict[str, float]:
    """Return how long a step took in the median of the completed runs of each shape."""
    if store is None:
        return {}
    done = {record.id: record for record in records if record.status is Status.DONE}
    rates: dict[str, list[float]] = defaultdict(list)
    for run_id, values in store.metrics.summaries(list(done)).items():
        if RUN_SECONDS in values:
            record = done[run_id]
            rates[_shape(record.config)].append(values[RUN_SECONDS] / record.steps)
    return {shape: statistics.median(seconds) for shape, seconds in rates.items()}


def _steps_left(run: Run, record: RunRecord | None, rule: Plain | None, *, force: bool) -> int:
    """Return the training steps that a run has left.

    Args:
        record: its latest attempt; None if the store has none.
        rule: the plan's rule for early stopping.
        force: whether completed runs are trained again.
    """
    if record is None:
        return run.steps
    if force and record.status in (Status.DONE, Status.PRUNED):
        return run.steps
    if record.status is Status.DONE:
        return 0
    # A run that the rule of this plan has stopped is not trained further.
    if record.status is Status.PRUNED and record.stopping == rule:
        return 0
    return record.steps - record.step


def _seconds_left(
    planned: PlannedRun, left: int, step_seconds: Mapping[str, float]
) -> tuple[float | None, str | None]:
    """Return the time of a run's remaining steps, None if unknown, and where it comes from."""
    if not left:
        return 0.0, None
    # A plan may have thousands of runs, and most stores nothing to compare them with.
    rate = step_seconds.get(_shape(planned.config)) if step_seconds else None
    if rate is not None:
        return left * rate, EARLIER
    run = planned.run
    rough = run.backend.rough_seconds(run)
    if rough is None:
        return None, None
    return left * rough / run.steps, GUESS


def _state(planned: PlannedRun, record: RunRecord | None, store: Store | None) -> Plain:
    """Return the id, the status and the step of a planned run in the store."""
    if record is None or store is None:
        return {"id": None, "status": MISSING, "step": 0}
    return {"id": record.id, "status": _status(planned, record, store), "step": record.step}


def _status(planned: PlannedRun, record: RunRecord, store: Store) -> str:
    wanted = planned.config.get("evaluation")
    if record.status is Status.DONE and wanted != record.config.get("evaluation"):
        evaluator = Evaluator(store, planned.run, record.id, record.attempt)
        if evaluator.missing():
            return UNEVALUATED
    return record.status.value


def _shape(config: Mapping[str, Any]) -> str:
    return repr([config.get(key) for key in _SHAPE])
