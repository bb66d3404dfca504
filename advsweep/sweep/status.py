"""Read the status of a sweep or of a whole store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING

from advsweep.store import Status
from advsweep.store.records import COLLAPSED

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.store.records import TuningRecord

STEP_TIMES = ("time/rollout", "time/reward", "time/estimator", "time/update")
"""The metrics whose sum is the time of a training step, in seconds."""

RECENT_STEPS = 20
"""Number of a run's newest steps from which its speed is computed."""

LOST_REASON = "its process exited or stopped its heartbeat without recording an outcome"
"""The error of a lost run: its lease expired before an outcome was recorded."""


@dataclass(frozen=True, kw_only=True)
class ActiveRun:
    """A run that a process trains.

    Attributes:
        heartbeat_age: seconds since the last heartbeat of its process.
        steps_per_second: over its newest steps, without evaluations; None before the first.
        seconds_left: time of its remaining training steps at that speed.
    """

    id: int
    estimator: str
    seed: int
    host: str | None
    pid: int | None
    step: int
    steps: int
    stage: str | None
    heartbeat_age: float | None
    steps_per_second: float | None
    seconds_left: float | None
    stop_requested: bool


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """The state of all runs.

    Attributes:
        states: number of runs in each state, zeros included.
        failures: the lost ones and the newest failures; each has an error.
        collapsed: ids of the finished runs whose policy collapsed in training.
        tuning: what was chosen for each arm of the sweep; None without a tuning.
    """

    runs: int
    states: Mapping[Status, int]
    running: Sequence[ActiveRun]
    failures: Sequence[RunRecord]
    collapsed: Sequence[int] = ()
    tuning: TuningRecord | None = None


def read_status(store: Store, sweep: str | None = None, *, failures: int) -> SweepStatus:
    """Read the status of a sweep, or of the whole store.

    Args:
        failures: maximum number of failures in it.

    Raises:
        NotFoundError: there is no such sweep.
    """
    states = store.runs.count_by_status(sweep)
    running = store.runs.select(sweep=sweep, status=Status.RUNNING, newest_first=False)
    lost = store.runs.select(sweep=sweep, status=Status.LOST, limit=failures)
    failed = store.runs.select(ids=store.runs.last_finished(Status.FAILED, sweep, limit=failures))
    times = seconds_per_step(store, running)
    done = store.runs.last_finished(Status.DONE, sweep, limit=states[Status.DONE])
    summaries = store.metrics.summaries(done)
    now = datetime.now(UTC)
    return SweepStatus(
        runs=sum(states.values()),
        states=states,
        running=[_running(run, times.get(run.id), now) for run in running],
        failures=[*(replace(run, error=LOST_REASON) for run in lost), *failed][:failures],
        collapsed=sorted(i for i, values in summaries.items() if values.get(COLLAPSED)),
        tuning=None if sweep is None else store.sweeps.tuning(sweep),
    )


def seconds_per_step(store: Store, running: Sequence[RunRecord]) -> dict[int, float]:
    """Return the time of a training step of each run; runs without steps are left out.

    Runs that one process trains together wait for each other: each step takes as long as the
    steps of all of them.
    """
    own: dict[int, float] = {}
    for run in running:
        times: dict[str, list[float]] = defaultdict(list)
        for name, _, seconds in store.metrics.points(
            run.id, STEP_TIMES, since=run.step - RECENT_STEPS + 1
        ):
            times[name].append(seconds)
        if times:
            own[run.id] = sum(map(fmean, times.values()))
    of_process: dict[tuple[str | None, int | None], float] = defaultdict(float)
    for run in running:
        of_process[run.host, run.pid] += own.get(run.id, 0.0)
    return {run.id: of_process[run.host, run.pid] for run in running if run.id in own}


def _running(run: RunRecord, step_seconds: float | None, now: datetime) -> ActiveRun:
    age = None if run.heartbeat is None else max(0.0, (now - run.heartbeat).total_seconds())
    return ActiveRun(
        id=run.id,
        estimator=run.estimator,
        seed=run.seed,
        host=run.host,
        pid=run.pid,
        step=run.step,
        steps=run.steps,
        stage=run.stage,
        heartbeat_age=age,
        steps_per_second=1 / step_seconds if step_seconds else None,
        seconds_left=None if step_seconds is None else (run.steps - run.step) * step_seconds,
        stop_requested=run.stop_requested,
    )
