"""Requests that runs stop, for `advsweep stop` and the live page."""

from __future__ import annotations

from collections.abc import Iterable

from advsweep.errors import counted
from advsweep.store import RunProgress, RunRecord, Status, Store

# They could be claimed a moment later.
_WAITING = (Status.PENDING, Status.INTERRUPTED, Status.LOST)


def request_stops(store: Store, runs: Iterable[RunRecord | RunProgress]) -> str:
    """Request that running runs stop and that waiting ones do not start; return what was done."""
    listed = list(runs)
    running = [run for run in listed if run.status is Status.RUNNING]
    waiting = [run for run in listed if run.status in _WAITING]
    for run in [*running, *waiting]:
        store.leases.request_stop(run.id)
    return (
        f"Requested a stop of {len(running)} running and {counted(len(waiting), 'waiting run')}; "
        f"{len(listed) - len(running) - len(waiting)} had already ended."
    )
