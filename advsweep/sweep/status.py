"""Reads the status of a sweep or of a whole store, and of the jobs that queues have for it."""

from __future__ import annotations

import json
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from advsweep.errors import AdvsweepWarning, ConfigError, StoreError
from advsweep.store import Status
from advsweep.store.records import COLLAPSED
from advsweep.sweep.executors.base import QueueExecutor

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.store.records import TuningRecord

STEP_TIMES = ("time/rollout", "time/reward", "time/estimator", "time/update")
"""The metrics whose sum is the time of a training step, in seconds."""

RECENT_STEPS = 20
"""Number of a run's newest steps from which its speed is computed."""

_JOB = re.compile(r"[0-9]+([_+][0-9]+|@[0-9.]+|@None)?")
"""Names of jobs: `123_4` in Slurm, `PID@STARTED` for processes of this machine."""

LOST_REASON = "its process ended, or fell silent, without a word"
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
class FailedRun:
    """A run that failed or was lost, and the reason."""

    id: int
    estimator: str
    seed: int
    status: Status
    step: int
    steps: int
    finished: datetime | None
    error: str


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """The state of all runs.

    Attributes:
        states: number of runs in each state, zeros included.
        failures: the lost ones and the newest failures.
        collapsed: ids of the finished runs whose policy collapsed in training.
        tuning: what was chosen for each arm of the sweep; None without a tuning.
    """

    runs: int
    states: Mapping[Status, int]
    running: Sequence[ActiveRun]
    failures: Sequence[FailedRun]
    collapsed: Sequence[int] = ()
    tuning: TuningRecord | None = None


def read_status(store: Store, sweep: str | None = None, *, failures: int) -> SweepStatus:
    """Reads the status of a sweep, or of the whole store.

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
        failures=[_failure(run) for run in [*lost, *failed]][:failures],
        collapsed=sorted(i for i, values in summaries.items() if values.get(COLLAPSED)),
        tuning=None if sweep is None else store.sweeps.tuning(sweep),
    )


def seconds_per_step(store: Store, running: Sequence[RunRecord]) -> dict[int, float]:
    """Returns the time of a training step of each run; runs without steps are left out.

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


def _failure(run: RunRecord) -> FailedRun:
    return FailedRun(
        id=run.id,
        estimator=run.estimator,
        seed=run.seed,
        status=run.status,
        step=run.step,
        steps=run.steps,
        finished=run.finished,
        error=LOST_REASON if run.status is Status.LOST else run.error or "",
    )


@dataclass(frozen=True)
class Submission:
    """Jobs of a queue that were submitted together, and the runs that they share."""

    jobs: Sequence[str]
    runs: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job in a queue.

    Attributes:
        executor: name of the executor that submitted it.
        job: its name in the queue.
        state, reason: see `executors.base.QueueEntry`.
        runs: number of runs that it shares with the other jobs of its submission.
    """

    executor: str
    job: str
    state: str
    reason: str
    runs: int


def queued_jobs(store: Store, sweep: str | None = None) -> list[QueuedJob]:
    """Return the jobs that a queue still has for runs of a sweep, or of the store.

    Each queue is queried once, and only if submitted runs of it have not ended.

    Raises:
        ConfigError: a queue cannot be queried.
        NotFoundError: there is no such sweep.
    """
    submitted = list(_submitted(store))
    if not submitted:
        return []
    ended = (Status.DONE, Status.PRUNED)
    open_ = {line.id for line in store.runs.select(sweep=sweep) if line.status not in ended}
    found = []
    for executor, submissions in submitted:
        jobs = {
            name: len(each.runs)
            for each in submissions
            if open_.intersection(each.runs)
            for name in each.jobs
        }
        for name, entry in (executor.queued(jobs) if jobs else {}).items():
            found.append(
                QueuedJob(
                    executor=executor.name,
                    job=name,
                    state=entry.state,
                    reason=entry.reason,
                    runs=jobs[name],
                )
            )
    return found


def _submitted(store: Store) -> Iterator[tuple[QueueExecutor, Sequence[Submission]]]:
    """Yield each queue that has jobs of this store."""
    if not any(store.runs_directory.glob("*/jobs.json")):
        return
    # It takes longer to import than the status to read.
    from advsweep.sweep.registry import EXECUTORS

    for name in EXECUTORS.names():
        if submissions := read_submissions(store.runs_directory / name):
            try:
                executor = EXECUTORS.build(name)
            except ConfigError as error:  # Another package's, which cannot be used here.
                warnings.warn(f"not asking for the jobs of {error}", AdvsweepWarning, stacklevel=2)
                continue
            # A store of unknown origin may hold such a file for any executor.
            if isinstance(executor, QueueExecutor):
                yield executor, submissions


def read_submissions(folder: Path) -> list[Submission]:
    """Read the submissions of a queue.

    Raises:
        StoreError: advsweep did not write the file.
    """
    path = folder / "jobs.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(known, dict):  # a job for each run, as earlier versions have them
            known = [{"jobs": [name], "runs": [int(run_id)]} for run_id, name in known.items()]
        found = [Submission(each["jobs"], each["runs"]) for each in known]
        sound = all(
            isinstance(name, str) and _JOB.fullmatch(name) for each in found for name in each.jobs
        ) and all(isinstance(run_id, int) for each in found for run_id in each.runs)
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, LookupError, RecursionError):
        sound = False
    if not sound:
        raise StoreError(f"{path}: expected the names of jobs and their runs; remove the file")
    return found
