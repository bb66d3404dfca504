"""Runs and sweeps as they go into the store and come out of it: frozen dataclasses.

Configs and environments are mappings of JSON types. Times are in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from advsweep.failures import Failure
from advsweep.store.seeds import SeedKey, UnknownSeed


class Status(Enum):
    """The status of a run.

    `PRUNED`: an early-stopping rule ended the run, with a checkpoint and a reason. `LOST`: the
    lease expired before an outcome was recorded. It is never stored, but derived when a run is
    read, so that no record claims to be running when nothing runs it.
    """

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    PRUNED = "pruned"
    LOST = "lost"


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


@dataclass(frozen=True)
class StepCounts:
    """The steps of some runs.

    Attributes:
        done: trained ones, of which a retry would keep the results.
        planned: those of all runs.
    """

    done: int
    planned: int


@dataclass(frozen=True)
class RunProgress:
    """How far a run is, without its config.

    Attributes:
        step: training steps done.
        steps: training steps planned.
        stage: what it is doing, such as `training`; None if unknown.
        stop_requested: the run is to stop, or not to start, until it is requested again.
    """

    id: int
    status: Status
    step: int
    steps: int
    stage: str | None
    stop_requested: bool


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
    def is_conclusive(self) -> bool:
        """Whether a retry would end the same way; a killed run says nothing about its config."""
        is_error = self.status is Status.FAILED and self.failure is Failure.ERROR
        return is_error or self.status in (Status.DONE, Status.PRUNED)


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """A stored sweep.

    Attributes:
        spec: the overrides and settings that were given.
        note: what its user notes of it; empty for nothing.
        tags: sorted.
        runs: number of its runs by status; statuses without runs are left out.
    """

    id: int
    name: str
    spec: dict[str, Any]
    created: datetime
    note: str = ""
    tags: tuple[str, ...] = ()
    runs: Mapping[Status, int] = field(default_factory=dict)

    @property
    def head(self) -> tuple[str, ...]:
        """Its note and its tags, a line each; empty without any."""
        lines = [f"note: {' '.join(self.note.split())}"] if self.note else []
        return tuple([*lines, f"tags: {' '.join(self.tags)}"] if self.tags else lines)
