"""Exit codes of workers, scheduler events and the sweep's result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advsweep.store import RunRecord

# Each run has its own outcome in the store, and the process takes another job.
DONE = 0
# The run failed; the store has the error.
FAILED = 10
# The runs were stopped on request, with a checkpoint if they had progress to save.
STOPPED = 11
# Another process holds the run.
ELSEWHERE = 12
# The store could not be written.
UNRECORDED = 13
# The parent process is gone and the run did not stop in time.
ORPHANED = 14
# The run ran out of memory; the store has the error.
OUT_OF_MEMORY = 15
# This machine lacks what the run needs: the run is given back, and the store has the reason.
UNFIT = 16
# The store could not be written: the disk is full, or a file may not grow.
DISK_FULL = 18

# Exit codes of jobs after which their process takes another one.
REUSABLE = frozenset({DONE, ELSEWHERE})


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


Event = RunEvent | SweepProgress


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

    @property
    def is_cut_short(self) -> bool:
        """Whether what depends on its runs has to wait."""
        return self.stopped or self.halted or self.submitted + self.queued > 0

    @property
    def summary(self) -> str:
        """How many runs came to what end, such as `3 done, 1 failed`."""
        counts = {
            "done": self.done,
            "done before": self.skipped,
            "failed": len(self.failed),
            "pruned": len(self.pruned),
            "unfinished": self.unfinished,
            "submitted": self.submitted,
            "queued or running": self.queued,
        }
        return ", ".join(f"{count} {state}" for state, count in counts.items() if count)

    @classmethod
    def of_stages(cls, results: Sequence[SweepResult]) -> SweepResult:
        """Return the result of several executions, one after the other."""
        return cls(
            run_ids=[run_id for result in results for run_id in result.run_ids],
            done=sum(result.done for result in results),
            skipped=sum(result.skipped for result in results),
            failed={i: error for result in results for i, error in result.failed.items()},
            unfinished=sum(result.unfinished for result in results),
            stopped=any(result.stopped for result in results),
            halted=any(result.halted for result in results),
            submitted=sum(result.submitted for result in results),
            queued=sum(result.queued for result in results),
            pruned={i: reason for result in results for i, reason in result.pruned.items()},
        )
