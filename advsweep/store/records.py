"""Records that go into the store and come out of it: frozen dataclasses, no ORM objects.

Configs, settings and environments are mappings of JSON types. Times are in UTC.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from advsweep.errors import first_of

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

# Whether a run's policy collapsed in training, 0 or 1: a metric of the last step, a summary.
COLLAPSED = "collapse/detected"


# The step with the best pass@1 on validation problems: a metric of the last step, a summary.
SELECTED = "selected/step"


class Status(Enum):
    """The status of a run.

    `PRUNED`: an early-stopping rule ended the run, with a checkpoint and a reason. `LOST`: the
    lease expired before an outcome was recorded. It is never stored, but derived when a run is
    read, so that no record claims to be running for ever.
    """

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    PRUNED = "pruned"
    LOST = "lost"


class Failure(Enum):
    """The class of a failure, which decides whether the run is retried.

    `OOM`: out of memory. `TIMEOUT`: a time limit. `KILLED`: a signal from outside, or no
    heartbeat. `DISK`: a full disk, a quota or a limit on the size of files. `ERROR`: everything
    else, such as an exception or an exit.
    """

    OOM = "oom"
    TIMEOUT = "timeout"
    KILLED = "killed"
    DISK = "disk"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """A planned run.

    Attributes:
        identity: sha256, in hex, of everything that can change the result of the training.
        config_hash: the same without the seed; runs that share it are replicates.
        config: the resolved config.
        steps: training steps.
        estimator: the estimator's name.
        backend: the backend's name.
    """

    identity: str
    config_hash: str
    seed: int
    config: Mapping[str, Any]
    steps: int
    estimator: str
    backend: str


# How every command writes the seed of a run that nobody knows.
UNKNOWN_SEED = "?"


@dataclass(frozen=True, order=True)
class UnknownSeed:
    """The seed of a run that nobody knows: equal to that of no other run, so that no two pair."""

    run_id: int

    def __str__(self) -> str:
        return f"{UNKNOWN_SEED} (run {self.run_id})"


# What runs are paired by.
SeedKey = int | UnknownSeed


def seed_order(key: SeedKey) -> tuple[bool, int]:
    """Return the sort key of seeds: known ones ascending, then the others by run."""
    if isinstance(key, UnknownSeed):
        return True, key.run_id
    return False, key


def show_seed(seed: int | None) -> str:
    """Return a seed as commands print it."""
    return UNKNOWN_SEED if seed is None else str(seed)


@dataclass(frozen=True)
class StepCounts:
    """The steps of some runs.

    Attributes:
        done: trained ones, of which a retry would keep the results.
        planned: those of all runs.
        left: what runs that have not ended have still to train.
    """

    done: int
    planned: int
    left: int


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A stored run.

    Attributes:
        attempt: 1, or more for a repetition of a done run.
        seed: None if nobody knows it, as of imported logs that do not say.
        sweeps: sorted names of its sweeps.
        estimator: its name, with the title of the run's control: `grpo (placebo)`.
        step: training steps done.
        stage: what it is doing, such as `training`; None if unknown.
        started: when it was first claimed; None before.
        finished: when it last ended; None while it is pending or running.
        heartbeat: when its process last renewed the lease.
        host, pid: the process that holds, or last held, the lease.
        failure: the class of the failure; None unless it failed.
        stop_requested: the run is to stop, or not to start, until it is requested again.
        stopping: the early-stopping rule as its config node; None for no rule.
        directory: the run's folder, for checkpoints and its log.
        method: the preset `method=NAME` by which a sweep named it, where that is asked for.
    """

    id: int
    identity: str
    attempt: int
    config_hash: str
    seed: int | None
    sweeps: tuple[str, ...]
    estimator: str
    backend: str
    status: Status
    step: int
    steps: int
    stage: str | None
    config: dict[str, Any]
    created: datetime
    started: datetime | None
    finished: datetime | None
    heartbeat: datetime | None
    host: str | None
    pid: int | None
    stop_requested: bool
    failure: Failure | None
    stopping: dict[str, Any] | None
    error: str | None
    traceback: str | None
    directory: Path
    method: str | None = None

    @property
    def seed_key(self) -> SeedKey:
        """What the run is paired by with runs of other settings."""
        return UnknownSeed(self.id) if self.seed is None else self.seed

    @property
    def is_over(self) -> bool:
        """Whether another try would end alike: one that was killed says nothing of its config."""
        is_error = self.status is Status.FAILED and self.failure is Failure.ERROR
        return is_error or self.status in (Status.DONE, Status.PRUNED)


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """A stored sweep.

    Attributes:
        spec: the overrides and settings that were given.
        runs: number of its runs by status; statuses without runs are left out.
    """

    id: int
    name: str
    spec: dict[str, Any]
    created: datetime
    runs: Mapping[Status, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint of a run.

    Attributes:
        step: number of training steps of its weights.
    """

    step: int
    path: Path
    created: datetime


@dataclass(frozen=True, kw_only=True)
class NewAnalysis:
    """An analysis of a run's weights to add.

    Attributes:
        kind: what is analysed, `weights` or `hidden_states`.
        step: number of training steps of the weights.
        settings: everything that can change its result, in JSON types.
        result: the result in JSON types; NaN and infinities are stored as null.
        directions: concatenated unit vectors; None without any.
    """

    kind: str
    step: int
    settings: Mapping[str, Any]
    result: Mapping[str, Any]
    directions: Float[np.ndarray, " features"] | None = None

    @property
    def identity(self) -> str:
        """sha256, in hex, of the kind, the step and the settings; unique within a run."""
        content = json.dumps([self.kind, self.step, dict(self.settings)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class AnalysisRecord(NewAnalysis):
    """A stored analysis of a run's weights."""

    run_id: int
    created: datetime


# The key of a sweep's spec.
TUNE_KEY = "tune"


class ValueState(StrEnum):
    """How far the runs of an arm with one value are.

    `OPEN`: some are still to be trained. `FAILED`, `PRUNED`: some failed or were stopped early.
    `UNMEASURED`: some lack a finite value of the metric. Only those that are `DONE` may be chosen.
    """

    OPEN = "open"
    DONE = "done"
    FAILED = "failed"
    PRUNED = "pruned"
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, kw_only=True)
class TunedValue:
    """One value of an arm's grid.

    Attributes:
        scores: the metric of each tuning seed, in their order; empty unless its runs are done.
    """

    value: float
    state: ValueState
    scores: tuple[float, ...] = ()

    @property
    def score(self) -> float | None:
        """The mean over the tuning seeds."""
        return math.fsum(self.scores) / len(self.scores) if self.scores else None


@dataclass(frozen=True, kw_only=True)
class TunedArm:
    """The tuning of one arm.

    Attributes:
        name: the arm, such as `grpo` or `grpo group_size=8`.
        grid: its values, ascending.
        chosen: None before all its runs are over, or if none of its values may be chosen.
    """

    name: str
    grid: Sequence[TunedValue]
    chosen: float | None = None

    @property
    def is_open(self) -> bool:
        return any(each.state is ValueState.OPEN for each in self.grid)

    @property
    def choice(self) -> str:
        """Its choice in words: `0.0004`, `0.0004 (edge)` of the grid, `none` or `open`."""
        if self.chosen is None:
            return "open" if self.is_open else "none"
        at_edge = self.chosen in (self.grid[0].value, self.grid[-1].value)
        return f"{self.chosen:g}{' (edge)' if at_edge else ''}"


@dataclass(frozen=True, kw_only=True)
class TuningRecord:
    """The tuning of a sweep.

    Attributes:
        key: the key that was tuned.
        metric: what decided, at the last step.
        lower: whether a lower metric is better.
        seeds: the tuning seeds.
        sweep: the sweep of the tuning runs.
        arms: in the order of the sweep.
    """

    key: str
    metric: str
    lower: bool
    seeds: tuple[int, ...]
    sweep: str
    arms: Sequence[TunedArm]

    @property
    def is_over(self) -> bool:
        """Whether every arm has its choice, or can have none."""
        return not any(arm.is_open for arm in self.arms)

    @property
    def title(self) -> str:
        """What was tuned, and how."""
        seeds = first_of(map(str, self.seeds), 4)
        return f"{self.key} tuned for each arm by {self.metric} on seeds {seeds} ({self.sweep})"

    @property
    def text(self) -> str:
        """The choices in a line."""
        return f"{self.title}: {', '.join(f'{arm.name} {arm.choice}' for arm in self.arms)}"

    def plain(self) -> dict[str, Any]:
        """Return the record in JSON types."""
        return asdict(self)

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any]) -> Self | None:
        """Return the tuning in the spec of a sweep; None without one that advsweep wrote."""
        try:
            node = spec[TUNE_KEY]
            arms = []
            for arm in node["arms"]:
                grid = [
                    TunedValue(
                        value=_number(each["value"]),
                        state=ValueState(each["state"]),
                        scores=tuple(map(_number, each["scores"])),
                    )
                    for each in arm["grid"]
                ]
                chosen = next((each.value for each in grid if each.value == arm["chosen"]), None)
                arms.append(TunedArm(name=str(arm["name"]), grid=grid, chosen=chosen))
            return cls(
                key=str(node["key"]),
                metric=str(node["metric"]),
                lower=bool(node["lower"]),
                seeds=tuple(map(int, node["seeds"])),
                sweep=str(node["sweep"]),
                arms=arms,
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(value)
    return value
