"""What becomes of a run, decided from facts alone: before its start, while it waits, at its end.

The functions here change nothing. `Scheduler` collects the facts and acts on the verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from advsweep.store import Status
from advsweep.sweep import events
from advsweep.sweep.events import EventKind
from advsweep.sweep.scheduler.causes import FailureCause, recorded_cause

if TYPE_CHECKING:
    from advsweep.store import RunRecord


@dataclass(frozen=True)
class Start:
    """It is to be started."""


@dataclass(frozen=True)
class Wait:
    """Another process trains it."""


@dataclass(frozen=True)
class End:
    """Nothing more is done for it."""

    kind: EventKind
    message: str = ""


@dataclass(frozen=True)
class Fail:
    """It failed; whether it is retried depends on the policy."""

    cause: FailureCause


@dataclass(frozen=True)
class RecordEnd:
    """Its worker recorded no end, so that the scheduler has to.

    Attributes:
        cause: why the worker ended.
        is_stop: whether the worker was being stopped: the run then counts as interrupted.
    """

    cause: FailureCause
    is_stop: bool


@dataclass(frozen=True)
class TrainAlone:
    """It is to be started again without other runs in its process.

    Attributes:
        reason: why its stack ended.
    """

    reason: str


@dataclass(frozen=True)
class GiveUp:
    """Its machine lacks what it needs: it is left to others, and this one starts no more runs."""

    reason: str


Verdict = Start | Wait | End | Fail | RecordEnd | TrainAlone | GiveUp


class ExitKind(Enum):
    """What the exit code of a worker says.

    `WELL`: the worker did its job. `STOPPED`: it was asked to stop. `ELSEWHERE`: another process
    has the run. `UNFIT`: the machine lacks what the run needs. `STORE_LOST`: it could not write to
    the store. `FAILED`: everything else.
    """

    WELL = auto()
    STOPPED = auto()
    ELSEWHERE = auto()
    UNFIT = auto()
    STORE_LOST = auto()
    FAILED = auto()

    @classmethod
    def of_code(cls, code: int) -> ExitKind:
        """Return the kind of an exit code."""
        return _KINDS.get(code, cls.FAILED)


_KINDS = {
    events.DONE: ExitKind.WELL,
    events.STOPPED: ExitKind.STOPPED,
    events.ELSEWHERE: ExitKind.ELSEWHERE,
    events.UNFIT: ExitKind.UNFIT,
    events.UNRECORDED: ExitKind.STORE_LOST,
    events.DISK_FULL: ExitKind.STORE_LOST,
}


@dataclass(frozen=True, kw_only=True)
class Exit:
    """The end of a worker's process.

    Attributes:
        cause: why it ended, if it did not end well.
        is_stack: whether it was started with several runs.
        is_limit: whether the scheduler ended it, for its time limit or its silence.
        is_stop: whether the scheduler is stopping all workers.
        is_machine_fault: whether `cause` is a fault of the machine, which counts more than what
            the worker recorded.
    """

    kind: ExitKind
    cause: FailureCause
    is_stack: bool = False
    is_limit: bool = False
    is_stop: bool = False
    is_machine_fault: bool = False


def judge_start(record: RunRecord, *, is_complete: bool) -> Verdict:
    """Decide whether a run starts that nobody here has claimed.

    Args:
        is_complete: whether it is trained and has every evaluation that is wanted.
    """
    match record.status:
        case Status.DONE if is_complete:
            return End(EventKind.SKIPPED)
        case Status.PRUNED:
            return End(EventKind.PRUNED, record.error or "")
        case Status.RUNNING:
            return Wait()
    if record.stop_requested:
        return End(EventKind.INTERRUPTED, "asked to stop")
    return Start()


def judge_waiting(record: RunRecord, *, is_complete: bool) -> Verdict:
    """Decide what becomes of a run that another process trained when it was last looked at.

    Args:
        is_complete: as in `judge_start`.
    """
    match record.status:
        case Status.DONE if is_complete:
            return End(EventKind.DONE)
        case Status.FAILED:
            return Fail(recorded_cause(record))
        case Status.PRUNED:
            return End(EventKind.PRUNED, record.error or "")
        case Status.RUNNING:
            return Wait()
    # Its process was stopped or is gone: it resumes from that one's checkpoint.
    return Start()


def judge_exit(record: RunRecord, exit: Exit, *, has_ended: bool, is_complete: bool) -> Verdict:
    """Decide what becomes of a run whose worker has ended.

    An end that the worker recorded counts, however its process ended after that.

    Args:
        record: the run in the store, after the end of the process.
        has_ended: whether an end was recorded since the worker was started.
        is_complete: as in `judge_start`.
    """
    if exit.kind is ExitKind.ELSEWHERE and not exit.is_stack:
        return Wait()
    if exit.kind is ExitKind.UNFIT:
        return GiveUp(record.error or exit.cause.reason)
    # Only evaluated, a completed run has no new end.
    if has_ended or record.status is Status.DONE:
        verdict = _judge_recorded_end(record, exit, is_complete=is_complete)
        if verdict is not None:
            return verdict
    return _judge_missing_end(record, exit, has_ended=has_ended)


def _judge_recorded_end(record: RunRecord, exit: Exit, *, is_complete: bool) -> Verdict | None:
    """Decide by the end that a worker recorded; None if that is not the end of the run."""
    match record.status:
        case Status.DONE if is_complete or exit.kind is ExitKind.WELL:
            return End(EventKind.DONE)
        case Status.DONE if not _stopped_by_request(exit):
            # The training was complete before; only its evaluation failed.
            reason = f"evaluation: {exit.cause.reason}, see its log"
            return Fail(FailureCause(exit.cause.failure, reason))
        case Status.PRUNED:
            return End(EventKind.PRUNED, record.error or "")
        case Status.FAILED:
            return Fail(exit.cause if exit.is_machine_fault else recorded_cause(record))
        case Status.INTERRUPTED if _was_interrupted(record, exit):
            return End(EventKind.INTERRUPTED, record.error or "")
    return None


def _judge_missing_end(record: RunRecord, exit: Exit, *, has_ended: bool) -> Verdict:
    """Decide without an end that a worker recorded as the end of the run."""
    if _stopped_by_request(exit):
        return End(EventKind.INTERRUPTED, record.error or "")
    is_stop = exit.is_stop or record.stop_requested
    if not exit.is_stack or is_stop or exit.kind is ExitKind.STORE_LOST:
        return RecordEnd(exit.cause, is_stop)
    if record.status is Status.RUNNING:
        return Wait()
    # Which of them ended the process is unknown; alone, each answers for itself.
    if has_ended and record.status is Status.INTERRUPTED and record.error:
        return TrainAlone(record.error)
    return TrainAlone(exit.cause.reason)


def _stopped_by_request(exit: Exit) -> bool:
    """Return whether the worker of a single run was stopped, and not only for a limit."""
    is_stopped_run = exit.kind is ExitKind.STOPPED and not exit.is_stack
    return is_stopped_run and (exit.is_stop or not exit.is_limit)


def _was_interrupted(record: RunRecord, exit: Exit) -> bool:
    """Return whether a recorded interruption is the end of the run.

    A stack that failed as a whole leaves its runs interrupted, to be trained alone.
    """
    if exit.is_limit and not exit.is_stop:
        return False
    is_given_up = exit.is_stack and exit.kind not in (ExitKind.WELL, ExitKind.STOPPED)
    return exit.is_stop or record.stop_requested or not is_given_up
