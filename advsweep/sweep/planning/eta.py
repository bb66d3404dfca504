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
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.planning.plan import Plan, PlannedRun

# Status of a planned run that is not in the store.
MISSING = "missing"

# Status of a run that is trained and lacks evaluations of the plan.
UNEVALUATED = "unevaluated"

EARLIER = "earlier runs"
GUESS = "a first guess for an idle machine: no run of this kind has finished in this store"

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
            backend's first guess.
        seconds: the time left, without the runs whose time is unknown; None if it is unknown for
            all of them.
        gpu_hours: the same in hours of all GPUs together; None if runs use no GPU.
        unknown: the number of runs with steps left whose time is unknown.
    """

    runs: Sequence[Plain]
    sources: Sequence[str]
    seconds: float | None
    gpu_hours: float | None
    unknown: int

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
    done = {record.id: record for record in records if record.status is Status.DONE}
    summaries = {} if store is None else store.metrics.summaries(list(done))
    times: dict[str, list[float]] = defaultdict(list)
    for run_id, values in summaries.items():
        if RUN_SECONDS in values:
            times[_shape(done[run_id].config)].append(values[RUN_SECONDS] / done[run_id].steps)
    # Once for each shape: a plan may have thousands of runs of one.
    rates = {shape: statistics.median(each) for shape, each in times.items()}
    gpus = plan.executor.resources.gpus
    rule = plan.stopping.rule() if plan.stopping else None
    seen: set[str] = set()
    runs: list[Plain] = []
    sources: list[str] = []
    known: list[float] = []
    for planned in plan.runs:
        run, record = planned.run, latest.get(planned.run.identity)
        left = 0
        if run.identity in seen:
            pass  # another evaluation of the same training
        elif record is None or (force and record.status in (Status.DONE, Status.PRUNED)):
            left = run.steps
        # A run that the rule of this plan has stopped is not trained further.
        elif record.status is not Status.DONE and not (
            record.status is Status.PRUNED and record.stopping == rule
        ):
            left = record.steps - record.step
        seen.add(run.identity)
        seconds = None if left else 0.0
        rough = run.backend.rough_seconds(run)
        rate = rates.get(_shape(planned.config)) if left and rates else None
        if rate is not None:
            seconds = left * rate
            sources.append(EARLIER)
        elif left and rough is not None:
            seconds = left * rough / run.steps
            sources.append(GUESS)
        if seconds is not None:
            known.append(seconds)
        runs.append(
            {
                "id": None if record is None else record.id,
                "status": _status(planned, record, store),
                "step": 0 if record is None else record.step,
                "steps_left": left,
                "seconds_left": seconds,
            }
        )
    is_known = len(known) == len(runs) or any(known)
    return TimeEstimate(
        runs=runs,
        sources=list(dict.fromkeys(sources)),
        seconds=max(max(known, default=0.0), sum(known) / slots) if is_known else None,
        gpu_hours=gpus * sum(known) / 3600 if is_known and gpus else None,
        unknown=len(runs) - len(known),
    )


def _status(planned: PlannedRun, record: RunRecord | None, store: Store | None) -> str:
    if record is None or store is None:
        return MISSING
    wanted = planned.config.get("evaluation")
    if record.status is Status.DONE and wanted != record.config.get("evaluation"):
        evaluator = Evaluator(store, planned.run, record.id, record.attempt)
        if evaluator.missing():
            return UNEVALUATED
    return record.status.value


def _shape(config: Mapping[str, Any]) -> str:
    return repr([config.get(key) for key in _SHAPE])
