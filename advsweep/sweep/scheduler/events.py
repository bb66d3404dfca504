"""What an execution tells whoever watches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advsweep.store import RunRecord


class EventKind(Enum):
    """What happened to a run; `RETRYING` is a failure after which it is tried again."""

    SKIPPED = "skipped"
    STARTED = "started"
    SUBMITTED = "submitted"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    RETRYING = "retrying"
    INTERRUPTED = "interrupted"
    PRUNED = "pruned"


@dataclass(frozen=True)
class RunEvent:
    """Something happened to a run.

    Attributes:
        run: the run's record just after it.
        message: why, for people; empty where the kind says it all.
    """

    kind: EventKind
    run: RunRecord
    message: str = ""


@dataclass(frozen=True)
class SweepProgress:
    """How far an execution is; sent several times a second.

    Attributes:
        active: ids of the runs whose workers are alive.
        waiting: ids of the runs that another execution works on.
        queued: runs that have not been started, or are to be started again.
        stopping: true while the runs are being stopped.
    """

    active: Sequence[int]
    waiting: Sequence[int]
    queued: int
    stopping: bool


@dataclass(frozen=True)
class RunsAdded:
    """Runs join an execution that is under way.

    Attributes:
        message: which, for people.
        labels: what to call each of them, by identity.
        total: runs of the execution in all, as far as is known.
    """

    message: str
    labels: Mapping[str, str]
    total: int


Event = RunEvent | SweepProgress | RunsAdded


@dataclass(frozen=True)
class SweepResult:
    """What came of an execution.

    Attributes:
        run_ids: the plan's runs in the store, each once, in the plan's order.
        done: runs that this execution brought to their end.
        skipped: runs that were done before.
        failed: why runs failed, by id.
        pruned: why runs were stopped early, now or before, by id.
        unfinished: runs that were interrupted or never started.
        stopped: true when the user asked to stop.
        halted: true when so many runs failed that no more were started.
        submitted: runs that were handed to a queue, which starts them when it pleases.
        queued: runs that a queue, or another process, had before.
    """

    run_ids: Sequence[int]
    done: int
    skipped: int
    failed: dict[int, str]
    unfinished: int
    stopped: bool
    halted: bool = False
    submitted: int = 0
    queued: int = 0
    pruned: dict[int, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 all is well, 1 a run failed or is unfinished, 130 stopped by the user."""
        if self.stopped:
            return 130
        return 1 if self.failed or self.unfinished else 0
