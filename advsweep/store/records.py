"""Records that go into the store and come out of it: frozen dataclasses, no ORM objects.

Configs, settings and environments are mappings of JSON types. Times are in UTC.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from advsweep.errors import ConfigError, nearest

if TYPE_CHECKING:
    from jaxtyping import Float, Int


COLLAPSED = "collapse/detected"
"""Whether a run's policy collapsed in training, 0 or 1: a metric of the last step, a summary."""


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


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """A run without its config, for listings; attributes as in `RunRecord`."""

    id: int
    identity: str
    estimator: str
    seed: int
    status: Status
    step: int
    steps: int
    stage: str | None
    stop_requested: bool
    error: str | None
    host: str | None
    pid: int | None


class RunOutline(NamedTuple):
    """A run with its config but without times and errors; attributes as in `RunRecord`.

    For work on all runs: it takes a third of the time and a quarter of the memory of a record.
    """

    id: int
    identity: str
    attempt: int
    config_hash: str
    seed: int
    step: int
    steps: int
    config: dict[str, Any]
    stopping: dict[str, Any] | None
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


@dataclass(frozen=True, kw_only=True)
class ProblemCounts:
    """Counts over n samples of one problem.

    Attributes:
        problem_id: stable name of the problem within its task.
        n: scored samples; fewer than were drawn if the verifier failed.
        c: correct samples.
        distinct: different answers among the samples.
        unscorable: the other samples: the verifier failed or could not read the reference answer.
        answer_entropy: entropy of the answers' empirical distribution, in nats.
        token_entropy: mean entropy per generated token, in nats; None if unknown.
        right_entropy: entropy of the right answers' empirical distribution, in nats; None if no
            answer was right, or if it is unknown.
    """

    problem_id: str
    prompt: str
    level: int
    n: int
    c: int
    distinct: int
    unscorable: int
    answer_entropy: float
    token_entropy: float | None = None
    right_entropy: float | None = None


@dataclass(frozen=True, kw_only=True)
class NewEvaluation:
    """An evaluation to add.

    Attributes:
        identity: sha256, in hex, of the weights, the problems and the sampling.
        subject: names the weights, such as `RUN_IDENTITY@STEP`, `base:KEY` or `model:KEY`.
        run_id: the run to link it to; None for no run, or one that `Evaluations.link` adds later.
        step: number of training steps of the weights; 0 is the base model.
        task: the task's name.
        settings: how it is sampled, such as `{"n": 128, "temperature": 1.0, "seed": 0}`.
    """

    identity: str
    subject: str
    run_id: int | None
    step: int
    task: str
    settings: Mapping[str, Any]
    problems: Sequence[ProblemCounts]


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """An evaluation of a run's weights after `step` steps, or of a model without a run.

    An evaluation that several runs share, such as that of their base model, has a record for each.

    Attributes:
        run_id: None for an evaluation of a model without a run.
        problem_ids, prompts, levels: the problems; the arrays below are in their order.
        n, c: samples and correct samples. Both are 0 for a problem without scored samples,
            usually because its reference answer is unreadable; such a problem has no scores.
        unscorable: samples that the verifier failed on; they count as not correct.
        answer_entropy, token_entropy, right_entropy: in nats; the last two are NaN if unknown,
            and the last for a problem without a right answer.
    """

    run_id: int | None
    step: int
    identity: str
    subject: str
    task: str
    settings: dict[str, Any]
    created: datetime
    problem_ids: tuple[str, ...]
    prompts: tuple[str, ...]
    levels: Int[np.ndarray, " problems"]
    n: Int[np.ndarray, " problems"]
    c: Int[np.ndarray, " problems"]
    distinct: Int[np.ndarray, " problems"]
    unscorable: Int[np.ndarray, " problems"]
    answer_entropy: Float[np.ndarray, " problems"]
    token_entropy: Float[np.ndarray, " problems"]
    right_entropy: Float[np.ndarray, " problems"]

    @property
    def columns(self) -> dict[str, Int[np.ndarray, " problems"] | Float[np.ndarray, " problems"]]:
        """The numbers of each problem, as columns of a table."""
        names = ["n", "c", "distinct", "unscorable"]
        names += ["answer_entropy", "token_entropy", "right_entropy"]
        return {"level": self.levels, **{name: getattr(self, name) for name in names}}

    @property
    def unjudged(self) -> tuple[str, ...]:
        """The ids of problems without scored samples."""
        return tuple(self.problem_ids[i] for i in np.flatnonzero(self.n == 0))

    def scores(self, ks: Sequence[int] | None = None) -> dict[str, float]:
        """Returns pass@k, answer entropy and token entropy by name, as means over problems.

        If the verifier failed on samples, also their share as `evaluation/unscorable`.

        Args:
            ks: the k of pass@k; by default those of the evaluation's own settings. Runs with
                other k share the evaluation of their base model.
        """
        # Imported here, because it loads scipy, which opening a store must not.
        from advsweep.statistics import mean_over_problems, pass_at_k

        ks = self.settings["k"] if ks is None else ks
        return {
            **{f"pass@{k}": float(mean_over_problems(pass_at_k(self.n, self.c, k))) for k in ks},
            "entropy/answer": float(self.answer_entropy.mean()),
            "entropy/token": float(self.token_entropy.mean()),
            **({"evaluation/unscorable": share} if (share := unscorable_share([self])) else {}),
        }


def unscorable_share(evaluations: Sequence[EvaluationRecord]) -> float:
    """Returns the share of samples that the verifier failed on, over problems with scores."""
    drawn = sum(int(e.n.sum()) for e in evaluations)
    failed = sum(int(e.unscorable[e.n > 0].sum()) for e in evaluations)
    return failed / drawn if drawn else 0.0
