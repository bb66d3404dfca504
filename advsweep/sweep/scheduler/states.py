"""The states of a scheduler's runs: each run has one, so that it is in one place at a time.

Queued -> Active -> Ended     the usual way
Queued -> Ended               nothing of it is missing, it is not wanted, or it cannot be started
Active -> Paused -> Queued    it failed and is retried
Active -> Queued              its stack failed; it is trained again without the others
Queued or Active -> Waiting   another process trains it
Waiting -> Queued, Paused or Ended, by what that process has recorded
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast, get_args

if TYPE_CHECKING:
    from advsweep.store import Failure, Status
    from advsweep.sweep.events import EventKind
    from advsweep.sweep.scheduler.runs import ScheduledRun
    from advsweep.sweep.scheduler.workers import Worker


@dataclass(frozen=True)
class Queued:
    """It is started when there is room.

    Attributes:
        is_claimed: whether this process holds its lease, to hand it over to a worker.
    """

    is_claimed: bool = False


@dataclass(frozen=True)
class Active:
    """A worker has it."""

    worker: Worker


@dataclass(frozen=True)
class Waiting:
    """Another process trains it."""


@dataclass(frozen=True)
class Paused:
    """It failed and is queued again later.

    Attributes:
        until: the time of that, by the monotonic clock.
    """

    until: float


@dataclass(frozen=True)
class Ended:
    """Nothing more is done for it.

    Attributes:
        message: the reason, as in `RunEvent`.
        unrecorded: its end in the store, if the store could not take it yet.
    """

    kind: EventKind
    message: str = ""
    unrecorded: StoredEnd | None = None


@dataclass(frozen=True)
class StoredEnd:
    """The end of a run as the store has it, recorded by the scheduler for its worker."""

    status: Status
    failure: Failure | None
    error: str


State = Queued | Active | Waiting | Paused | Ended
S = TypeVar("S", Queued, Active, Waiting, Paused, Ended)


class RunStates:
    """The state of each run.

    Args:
        runs: the first runs, which are queued.
    """

    def __init__(self, runs: Iterable[ScheduledRun]) -> None:
        self._states: dict[ScheduledRun, State] = {}
        # The same once more by kind: a scheduler looks many times a second, and a plan may have
        # 100,000 runs.
        self._by_kind: dict[type[State], dict[ScheduledRun, State]] = {
            kind: {} for kind in get_args(State)
        }
        for run in runs:
            self.set(run, Queued())

    def set(self, run: ScheduledRun, state: State) -> None:
        """Change the state of a run, or add a run; it is the last one of its new kind."""
        before = self._states.get(run)
        if before is not None:
            del self._by_kind[type(before)][run]
        self._states[run] = state
        self._by_kind[type(state)][run] = state

    def remove(self, run: ScheduledRun) -> None:
        """Forget a run."""
        state = self._states.pop(run)
        del self._by_kind[type(state)][run]

    def of(self, run: ScheduledRun) -> State:
        """Return the state of a run."""
        return self._states[run]

    def all(self) -> dict[ScheduledRun, State]:
        """Return the state of each run, in the order in which the runs were added."""
        return dict(self._states)

    def having(self, kind: type[S]) -> dict[ScheduledRun, S]:
        """Return the runs in a kind of state, in the order in which they came to it."""
        return cast("dict[ScheduledRun, S]", dict(self._by_kind[kind]))

    def count(self, kind: type[State]) -> int:
        """Return the number of runs in a kind of state."""
        return len(self._by_kind[kind])

    def first(self, kind: type[State]) -> ScheduledRun:
        """Return the run that has been longest in a kind of state; there is one."""
        return next(iter(self._by_kind[kind]))
