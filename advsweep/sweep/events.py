"""Events of a scheduler, and the result that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advsweep.store import RunRecord


class EventKind(Enum):
    """What happened to a run; `RETRYING` is a failure before another try."""

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
        message: the reason, for the user; empty where the kind says it all.
    """

    kind: EventKind
    run: RunRecord
    message: str = ""


@dataclass(frozen=True)
class SweepProgress:
    """The state of a sweep; sent several times a second.

    Attributes:
        active: ids of the runs whose workers are alive.
        waiting: ids of the runs that another process trains.
        queued: number of runs that are to be started, or started again.
        stopping: true while the runs are being stopped.
    """

    active: Sequence[int]
    waiting: Sequence[int]
    queued: int
    stopping: bool


@dataclass(frozen=True)
class RunsAdded:
    """Runs join a sweep that has started.

    Attributes:
        message: names them, for the user.
        labels: the label of each of them, by identity.
        total: number of runs in the sweep, as far as is known.
    """

    message: str
    labels: Mapping[str, str]
    total: int


Event = RunEvent | SweepProgress | RunsAdded


@dataclass(frozen=True)
class SweepResult:
    """The result of executing a plan.

    Attributes:
        run_ids: the plan's runs in the store, each once, in the plan's order.
        done: number of runs that were completed now.
        skipped: number of runs that were complete before.
        failed: reasons of failed runs, by id.
        pruned: reasons of runs that were stopped early, now or before, by id.
        unfinished: number of runs that were interrupted or never started.
        stopped: true when the user stopped the sweep.
        halted: true when too many failures kept further runs from starting.
        submitted: number of runs that were submitted to a queue now.
        queued: number of runs that a queue, or another process, has already.
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
        """0: success, 1: a run failed or is unfinished, 130: stopped by the user."""
        if self.stopped:
            return 130
        return 1 if self.failed or self.unfinished else 0
