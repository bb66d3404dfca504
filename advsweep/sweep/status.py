"""The status of a sweep, or of a whole store: how far it is, and what failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING

from advsweep.components import Plain
from advsweep.errors import counted
from advsweep.names import COLLAPSED, STEP_SECONDS
from advsweep.store import Status
from advsweep.store.races import RaceRecord, read_race
from advsweep.store.seeds import show_seed
from advsweep.sweep.planning.rates import is_time
from advsweep.sweep.planning.stored import time_of_stored

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.store.tuning_records import TuningRecord

# Number of a run's newest steps from which its speed is computed.
RECENT_STEPS = 20

# The error of a lost run: its lease expired before an outcome was recorded.
LOST_REASON = "its process exited or stopped its heartbeat without recording an outcome"

_SHOWN_FIELDS = ("id", "estimator", "seed", "host", "pid", "step", "steps", "stage")


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """The state of all runs.

    Attributes:
        states: number of runs in each state, zeros included.
        trained, steps: how many steps the runs have done, and should do.
        seconds_left: the time for what running and waiting runs have left, evaluations included;
            None if no run is trained, or a kind of work has not been measured yet.
        running: a row for each run that a process trains: the seconds since its process's last
            heartbeat, the speed over its newest steps without evaluations, and the seconds that
            the run has left, evaluations included; None if missing.
        failures: the lost ones and the newest failures; each has an error.
        collapsed: ids of the finished runs whose policy collapsed in training.
        tuning: what was chosen for each arm of the sweep; None without a tuning.
        race: how its arms stand; None without a race.
    """

    runs: int
    states: Mapping[Status, int]
    trained: int
    steps: int
    seconds_left: float | None
    running: Sequence[Plain]
    failures: Sequence[RunRecord]
    collapsed: Sequence[int] = ()
    tuning: TuningRecord | None = None
    race: RaceRecord | None = None

    @property
    def counts(self) -> str:
        """The number of runs, and that in each state that has some."""
        states = [f"{count} {state.value}" for state, count in self.states.items() if count]
        return ", ".join([counted(self.runs, "run"), *states])


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
    ids = [run.id for run in running]
    remaining = time_of_stored(store, sweep, running)
    seconds_of = {} if remaining is None else dict(zip(ids, remaining.of_runs, strict=False))
    now = datetime.now(UTC)
    rows = []
    for run in running:
        took = times.get(run.id)
        age = None if run.heartbeat is None else max(0.0, (now - run.heartbeat).total_seconds())
        rows.append(
            {
                **{key: getattr(run, key) for key in _SHOWN_FIELDS},
                "heartbeat_age": age,
                "steps_per_second": 1 / took if took else None,
                "seconds_left": seconds_of.get(run.id),
                "stop_requested": run.stop_requested,
            }
        )
    counts = store.runs.count_steps(sweep)
    return SweepStatus(
        runs=sum(states.values()),
        states=states,
        trained=counts.done,
        steps=counts.planned,
        seconds_left=None if remaining is None else remaining.seconds,
        running=rows,
        failures=[*(replace(run, error=LOST_REASON) for run in lost), *failed][:failures],
        collapsed=sorted(i for i, values in summaries.items() if values.get(COLLAPSED)),
        tuning=None if sweep is None else store.sweeps.tuning(sweep),
        race=None if sweep is None else read_race(store, sweep),
    )


def describe_failure(run: RunRecord) -> str:
    """Return a line on a run that failed or was lost; its texts may be somebody else's."""
    reason = (run.error or "").partition("\n")[0]
    return (
        f"run {run.id} ({run.estimator} seed={show_seed(run.seed)}) "
        f"{run.status.value} at step {run.step}/{run.steps}: {reason}"
    )


def seconds_per_step(store: Store, running: Sequence[RunRecord]) -> dict[int, float]:
    """Return the time of a training step of each run; runs without steps are left out.

    Runs that one process trains together wait for each other: each step takes as long as the
    steps of all of them.
    """
    of_run: dict[int, float] = {}
    for run in running:
        times: dict[str, list[float]] = defaultdict(list)
        for name, _, seconds in store.metrics.points(
            run.id, STEP_SECONDS, since=run.step - RECENT_STEPS + 1
        ):
            if is_time(seconds):
                times[name].append(seconds)
        if times:
            of_run[run.id] = sum(map(fmean, times.values()))
    of_process: dict[tuple[str | None, int | None], float] = defaultdict(float)
    for run in running:
        of_process[run.host, run.pid] += of_run.get(run.id, 0.0)
    return {run.id: of_process[run.host, run.pid] for run in running if run.id in of_run}
