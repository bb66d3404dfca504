"""Records that go into the store and come out of it: frozen dataclasses, no ORM objects.

Configs, settings and environments are mappings of JSON types. Times are in UTC.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from advsweep.errors import ConfigError, nearest

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float


COLLAPSED = "collapse/detected"
"""Whether a run's policy collapsed in training, 0 or 1: a metric of the last step, a summary."""


SELECTED = "selected/step"
"""The step with the best pass@1 on validation problems: a metric of the last step, a summary."""


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


def parse_status(text: str | None) -> Status | None:
    """Returns a status by its name; None for None.

    Raises:
        ConfigError: there is no such status; the message suggests the nearest.
    """
    if text is None:
        return None
    known = {status.value: status for status in Status}
    if text not in known:
        raise ConfigError(
            f"status: expected one of {', '.join(known)}, got {text!r}; {nearest(text, known)}"
        )
    return known[text]


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


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A stored run.

    Attributes:
        attempt: 1, or more for a repetition of a done run.
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
    """

    id: int
    identity: str
    attempt: int
    config_hash: str
    seed: int
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


class RunOutline(NamedTuple):
    """A run without its times and checked paths; attributes as in `RunRecord`.

    For work on all runs: it takes a third of the time and a quarter of the memory of a record.
    """

    id: int
    identity: str
    attempt: int
    config_hash: str
    seed: int
    estimator: str
    step: int
    steps: int
    stage: str | None
    config: dict[str, Any]
    stopping: dict[str, Any] | None
    stop_requested: bool
    error: str | None
    pid: int | None
    host: str | None
    status: Status
    sweeps: tuple[str, ...]


class Peer(NamedTuple):
    """A run as an early-stopping rule sees it; attributes as in `RunRecord`.

    Attributes:
        done: whether it was trained to its last step.
    """

    id: int
    config_hash: str
    step: int
    steps: int
    done: bool


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
class TrialRecord:
    """A point that a search proposed.

    Attributes:
        number: counted from 0 within the sweep.
        params: values by dotted key.
        config_hash: that of its runs, which differ by their seeds.
    """

    number: int
    params: dict[str, Any]
    config_hash: str


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
class AnalysisRecord:
    """An analysis of a run's weights; attributes as in `NewAnalysis`."""

    run_id: int
    identity: str
    kind: str
    step: int
    settings: dict[str, Any]
    created: datetime
    result: dict[str, Any]
    directions: Float[np.ndarray, " features"] | None
