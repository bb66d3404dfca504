"""Sends runs to a tracker after they have come to an end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from filelock import Timeout

from advsweep.errors import StoreError
from advsweep.store import Status
from advsweep.sweep.tracking.sender import Sender, in_a_line

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.tracking.base import Tracking

MOST_FAILURES = 3
"""After so many failures in a row the tracker is taken to be out of reach."""

_NO_END = {
    Status.PENDING: "it has not begun",
    Status.RUNNING: "it is being trained",
    Status.LOST: "its process is gone, and it is to be started again",
}


@dataclass(frozen=True)
class SyncResult:
    """What became of each run, by id.

    Attributes:
        sent: of which something was missing.
        before: that the tracker had.
        left_out: why they were not sent.
        failed: what the tracker, or the store, had against them.
    """

    sent: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    left_out: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)


def sync(
    store: Store,
    runs: Sequence[RunRecord],
    tracking_of: Callable[[RunRecord], Tracking],
    on_run: Callable[[int], None] = lambda done: None,
) -> SyncResult:
    """Sends what a tracker lacks of runs that are at an end: done, pruned, failed or interrupted.

    Args:
        on_run: is told how many runs were looked at.
    """
    synced = SyncResult()
    failures = 0
    for done, run in enumerate(runs, 1):
        if run.status in _NO_END:
            synced.left_out[run.id] = _NO_END[run.status]
        elif failures == MOST_FAILURES:
            synced.left_out[run.id] = f"the tracker failed {failures} times in a row before it"
        else:
            failed = _sync_one(store, run, tracking_of(run), synced)
            failures = failures + 1 if failed else 0
        on_run(done)
    return synced


def _sync_one(store: Store, run: RunRecord, tracking: Tracking, synced: SyncResult) -> bool:
    """Whether the tracker failed."""
    try:
        sender = Sender(store, run, tracking)
    except Timeout:
        synced.left_out[run.id] = "another process sends it"
        return False
    try:
        (synced.sent if sender.finish(run) else synced.before).append(run.id)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - a tracker's code may raise anything
        synced.failed[run.id] = in_a_line(error)
        return True
    finally:
        sender.release()
    return False
