"""What is left of a plan, and how long that should take.

Earlier runs of the same shape tell; before there are any, what the sweep file says that others
print.
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
"""The status of a planned run that the store has never seen."""

UNEVALUATED = "unevaluated"
"""The status of one that is trained but not evaluated as the plan wants it."""

_SHAPE = ("backend", "model", "task", "rollout", "group_size", "prompts_per_step")
"""What mostly decides how long a step takes."""


@dataclass(frozen=True)
class RunEstimate:
    """Where one run of a plan stands.

    Attributes:
        run_id: its latest attempt in the store; None where there is none.
        status: of the store, or `missing` or `unevaluated`.
        step: training steps done.
        steps_left: training steps to do; 0 too where an earlier run of the plan is the same
            training.
        seconds_left: how long they should take; None where no earlier run tells.
    """

    run_id: int | None
    status: str
    step: int
    steps_left: int
    seconds_left: float | None


@dataclass(frozen=True)
class TimeEstimate:
    """What is left of a plan.

    Attributes:
        runs: one for each run of the plan, in its order.
        seconds: how long what is left should take, runs of which nothing tells left out;
            None where nothing tells of any.
        gpu_hours: likewise, the hours of all GPUs together; None where runs ask for none.
        unknown: runs with steps left of which no earlier run tells how long they take.
        sources: earlier runs that this was estimated from.
        printed: what else it was: where times stand that others print.
    """

    runs: Sequence[RunEstimate]
    seconds: float | None
    gpu_hours: float | None
    unknown: int
    sources: int
    printed: Sequence[str] = ()

    @property
    def states(self) -> Counter[str]:
        """How many runs there are of each status."""
        return Counter(run.status for run in self.runs)

    @property
    def steps(self) -> int:
        """Training steps left."""
        return sum(run.steps_left for run in self.runs)


def estimate(plan: Plan, store: Store | None, slots: int, *, force: bool = False) -> TimeEstimate:
    """Compares a plan with a store; None is a store that does not exist yet.

    Args:
        slots: workers side by side.
        force: what is done is to be trained again.
    """
    records = [] if store is None else store.runs.outlines()
    latest = {record.identity: record for record in records}
    times = StepTimes(store, records)
    gpus = plan.executor.resources.gpus
    seen: set[str] = set()
    printed: dict[str, None] = {}
    runs = []
    for planned in plan.runs:
        identity = planned.run.identity
        record = latest.get(identity)
        rule = plan.stopping.rule() if plan.stopping else None
        left = 0 if identity in seen else _steps_left(planned, record, rule, force=force)
        seen.add(identity)
        seconds = times.seconds(planned.config, left) if left else 0.0
        if seconds is None and planned.published is not None and gpus:
            of_a_step = planned.published.gpu_hours * 3600 / planned.published.steps / gpus
            seconds = left * of_a_step
            printed[planned.published.source] = None
        runs.append(
            RunEstimate(
                run_id=None if record is None else record.id,
                status=_status(planned, record, store),
                step=0 if record is None else record.step,
                steps_left=left,
                seconds_left=seconds,
            )
        )
    return replace(combine([runs], slots, gpus, times.sources), printed=list(printed))


class StepTimes:
    """How long training steps take, by the runs of a store that are done.

    Attributes:
        sources: how many runs told of the steps that were asked for.
    """

    def __init__(self, store: Store | None, records: Sequence[RunRecord | RunOutline]) -> None:
        self._rates = {} if store is None else _rates(store, records)
        self._medians = {shape: statistics.median(found) for shape, found in self._rates.items()}
        self._used: set[str] = set()

    @property
    def sources(self) -> int:
        return sum(len(self._rates[shape]) for shape in self._used)

    def seconds(self, config: Mapping[str, Any], steps: int) -> float | None:
        """What some steps of a run should take; None where no earlier run tells."""
        shape = _shape(config)
        if shape not in self._medians:
            return None
        self._used.add(shape)
        return steps * self._medians[shape]

    def seconds_of_any(self, steps: int) -> float | None:
        """Likewise, of runs of whatever shape."""
        if not self._rates:
            return None
        self._used.update(self._rates)
        return steps * statistics.median(itertools.chain.from_iterable(self._rates.values()))


def combine(
    batches: Sequence[Sequence[RunEstimate]], slots: int, gpus: float, sources: int
) -> TimeEstimate:
    """What all runs come to.

    Args:
        batches: runs that are begun as slots are free, once those before have all ended.
        gpus: what each run occupies.
    """
    runs = [run for batch in batches for run in batch]
    told = [[r.seconds_left for r in batch if r.seconds_left is not None] for batch in batches]
    together = sum(map(sum, told))
    unknown = len(runs) - sum(map(len, told))
    known = unknown == 0 or together > 0
    return TimeEstimate(
        runs=runs,
        seconds=sum(_makespan(batch, slots) for batch in told) if known else None,
        gpu_hours=gpus * together / 3600 if known and gpus else None,
        unknown=unknown,
        sources=sources,
    )


def _steps_left(
    planned: PlannedRun, record: RunOutline | None, rule: Plain | None, *, force: bool
) -> int:
    if record is None or (force and record.status in (Status.DONE, Status.PRUNED)):
        return planned.run.steps
    # Stopped by the very rule of this plan, it stays so.
    over = record.status is Status.PRUNED and record.stopping == rule
    return 0 if over or record.status is Status.DONE else record.steps - record.step


def _status(planned: PlannedRun, record: RunOutline | None, store: Store | None) -> str:
    if record is None or store is None:
        return MISSING
    if record.status is Status.DONE and planned.config["evaluation"] != record.config["evaluation"]:
        evaluator = Evaluator(store, planned.run, record.id, record.attempt)
        if evaluator.missing():
            return UNEVALUATED
    return record.status.value


def _makespan(durations: Iterable[float], slots: int) -> float:
    """When the last of them ends, each begun in its turn as soon as one of the slots is free."""
    free = [0.0] * slots
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def _shape(config: Mapping[str, Any]) -> str:
    return repr([config[key] for key in _SHAPE])


def _rates(store: Store, records: Sequence[RunRecord | RunOutline]) -> dict[str, list[float]]:
    """Seconds per step of the runs that are done, by shape."""
    done = [record for record in records if record.status is Status.DONE]
    summaries = store.metrics.summaries([record.id for record in done])
    rates: dict[str, list[float]] = {}
    for record in done:
        took = summaries.get(record.id, {}).get(RUN_SECONDS)
        if took is not None:
            rates.setdefault(_shape(record.config), []).append(took / record.steps)
    return rates
