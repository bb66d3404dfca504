"""What goes into the store and comes out of it: frozen records, no ORM objects.

Configs, settings and environments are plain mappings of JSON types; times are in UTC.
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


class Status(Enum):
    """Where a run stands.

    `PRUNED` is a run that a rule for early stopping ended, with a checkpoint and its reason.
    `LOST` is what a run is called whose process ended, or fell silent, without a word. It is
    found out when a run is read, so that no record claims to be running for ever.
    """

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    PRUNED = "pruned"
    LOST = "lost"


class Failure(Enum):
    """The class of what a run failed of, by which it is tried again or not.

    `OOM` is a want of memory, `TIMEOUT` a time limit, `KILLED` a signal from outside or a
    process that fell silent, `DISK` a full disk, a quota or a limit on the size of files, and
    `ERROR` everything else: an exception, an exit.
    """

    OOM = "oom"
    TIMEOUT = "timeout"
    KILLED = "killed"
    DISK = "disk"
    ERROR = "error"


def parse_status(text: str | None) -> Status | None:
    """A status by its name; None for None.

    Raises:
        ConfigError: there is no such status; the message offers the nearest.
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
        identity: sha256, in hex, of all that can change the training's result.
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
    """A run as the store has it.

    Attributes:
        attempt: 1, or more for a run that was made again though it was done.
        sweeps: names of the sweeps that it is part of, sorted.
        step: training steps done.
        stage: what it is at, such as `training`; None before it says so.
        started: when it was first taken up; None before.
        finished: when it last came to an end; None while it is pending or running.
        heartbeat: when its process last gave a sign of life.
        host, pid: the process that has, or last had, it.
        failure: the class of what it failed of; None unless it failed.
        stop_requested: somebody wants it stopped, or not started, until it is asked for again.
        stopping: the rule that may stop it early, as its config node; None for no rule.
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
    """A run in a line: where it stands, but not what it is; attributes as in `RunRecord`."""

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
    """What many runs are chosen, counted and estimated by; attributes as in `RunRecord`.

    It takes a third of the time and a quarter of the memory of a record.
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
    """A run as a rule for early stopping sees it; attributes as in `RunRecord`.

    Attributes:
        done: true when it was trained to its last step.
    """

    id: int
    config_hash: str
    step: int
    steps: int
    done: bool


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """A sweep as the store has it.

    Attributes:
        spec: what was asked for.
        runs: how many of its runs are in each state; states without runs are left out.
    """

    id: int
    name: str
    spec: dict[str, Any]
    created: datetime
    runs: Mapping[Status, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A point that a search asked for.

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
        step: training steps that its weights have seen.
    """

    step: int
    path: Path
    created: datetime


@dataclass(frozen=True, kw_only=True)
class NewAnalysis:
    """An analysis of a run's weights to keep.

    Attributes:
        kind: what was analysed, `weights` or `hidden_states`.
        step: training steps that the weights have seen.
        settings: all that can change its result, in JSON types.
        result: what came out, in JSON types; NaN and infinities are kept as null.
        directions: unit vectors, one after another; None where there are none.
    """

    kind: str
    step: int
    settings: Mapping[str, Any]
    result: Mapping[str, Any]
    directions: Float[np.ndarray, " features"] | None = None

    @property
    def identity(self) -> str:
        """sha256, in hex, of the kind, the step and the settings; one of a kind in a run."""
        material = json.dumps([self.kind, self.step, dict(self.settings)], sort_keys=True)
        return hashlib.sha256(material.encode()).hexdigest()


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
    """What n samples of one problem came to.

    Attributes:
        problem_id: stable name of the problem within its task.
        n: samples that were scored, fewer than were drawn where the verifier failed.
        c: correct ones among them.
        distinct: different answers among the samples.
        unscorable: the other samples: the verifier failed, or cannot read the gold answer.
        answer_entropy: of the answers' empirical distribution, in nats.
        token_entropy: mean per generated token, in nats; None where nobody can tell.
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


@dataclass(frozen=True, kw_only=True)
class NewEvaluation:
    """An evaluation to keep.

    Attributes:
        identity: sha256, in hex, of the weights, the problems and the sampling.
        subject: names the weights, such as `RUN_IDENTITY@STEP`, `base:KEY` or `model:KEY`.
        run_id: the run that it belongs to; None leaves that to `link_evaluation`, or has none.
        step: training steps that the weights have seen; 0 is the base model.
        task: the task's name.
        settings: how it was sampled, such as `{"n": 128, "temperature": 1.0, "seed": 0}`.
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

    One that several runs share (of their base model) comes once for each of them.

    Attributes:
        run_id: None where it was asked for without a run.
        problem_ids, prompts, levels: the problems; the arrays after them are in their order.
        n, c: samples that were drawn, and correct ones among them. Both are 0 for a problem none
            of whose samples could be scored, as a rule for its gold answer: it has no scores.
        unscorable: samples that the verifier failed on; they count as not correct.
        answer_entropy, token_entropy: in nats; token_entropy is NaN where nobody can tell.
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

    @property
    def unjudged(self) -> tuple[str, ...]:
        """The ids of problems none of whose samples could be scored."""
        return tuple(self.problem_ids[i] for i in np.flatnonzero(self.n == 0))

    def scores(self, ks: Sequence[int] | None = None) -> dict[str, float]:
        """pass@k, answer and token entropy: means over the problems that have them, by name.

        Where the verifier failed on samples, also `evaluation/unscorable`, their share.

        Args:
            ks: the k of pass@k; by default those that the evaluation was first asked for.
                Runs share the evaluation of their base whatever their own k.
        """
        # Imports scipy, which opening a store must not.
        from advsweep.statistics import mean_over_problems, pass_at_k

        ks = self.settings["k"] if ks is None else ks
        return {
            **{f"pass@{k}": float(mean_over_problems(pass_at_k(self.n, self.c, k))) for k in ks},
            "entropy/answer": float(self.answer_entropy.mean()),
            "entropy/token": float(self.token_entropy.mean()),
            **({"evaluation/unscorable": share} if (share := unscorable_share([self])) else {}),
        }


def unscorable_share(evaluations: Sequence[EvaluationRecord]) -> float:
    """The share of samples that the verifier failed on, of the problems that have scores."""
    drawn = sum(int(e.n.sum()) for e in evaluations)
    failed = sum(int(e.unscorable[e.n > 0].sum()) for e in evaluations)
    return failed / drawn if drawn else 0.0
