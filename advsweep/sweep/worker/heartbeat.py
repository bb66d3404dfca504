"""The thread that renews a worker's leases and watches its parent."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from advsweep.errors import StoreError, StoreUnavailableError
from advsweep.sweep.exit_codes import ELSEWHERE, ORPHANED

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.stop_request import StopRequest
    from advsweep.sweep.worker.run import WorkerRun

BEAT_SECONDS = 5.0
STOP_SECONDS = 1.0
"""Interval at which the store is checked for requests to stop."""
PARENT_SECONDS = 0.5
ORPHAN_SECONDS = 10.0
"""Time that a run without a parent has to write a checkpoint before it is ended."""

_log = logging.getLogger(__name__)


class Heartbeat(threading.Thread):
    """Renews the leases of runs while it is open as a context manager.

    Args:
        parent_pid: the process ends when this is no longer its parent; None: never.
    """

    def __init__(
        self,
        store: Store,
        runs: Sequence[WorkerRun],
        stop: StopRequest,
        parent_pid: int | None,
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._store = store
        self._runs = {run.run_id: run for run in runs}
        self._stop_request = stop
        self._parent_pid = parent_pid
        self._ended = threading.Event()
        self._orphaned_since: float | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        # One thread for all runs: a stack of hundreds must not need as many.
        beaten = checked = time.monotonic()
        while not self._ended.wait(PARENT_SECONDS):
            self._watch_parent()
            now = time.monotonic()
            if now - checked >= STOP_SECONDS:
                checked = now
                self._try(self._check_stop_requests)
            if now - beaten >= BEAT_SECONDS:
                beaten = now
                self._try(self._renew_leases)

    def _try(self, act: Callable[[], None]) -> None:
        """Use the store without waiting for it: it may recover before the next attempt."""
        try:
            with self._store.patience.suspended():
                act()
        except StoreUnavailableError:
            pass  # the store has logged it
        except StoreError as error:
            _log.warning("no heartbeat: %s", error)

    def _check_stop_requests(self) -> None:
        # A request to the only run may interrupt whatever its process is busy with.
        alone = len(self._runs) == 1
        for run_id in self._store.leases.stops_requested(self._open_ids()):
            (self._stop_request if alone else self._runs[run_id].stop).request("asked to stop")

    def _renew_leases(self) -> None:
        open_ids = self._open_ids()
        lost = self._store.leases.renew(open_ids)
        for run_id in lost:
            # Its next write would fail; the other runs of a stack go on.
            self._runs.pop(run_id).stop_as_lost()
        if lost and len(lost) == len(open_ids):
            # Others train all of its runs now: this process must not write any more.
            os._exit(ELSEWHERE)
        # The calibrations that this process makes for its runs.
        self._store.leases.renew([i for i in list(self._store.leases.held) if i not in self._runs])

    def _open_ids(self) -> list[int]:
        return [run_id for run_id, run in self._runs.items() if run.is_open]

    def _watch_parent(self) -> None:
        if self._parent_pid is None or os.getppid() == self._parent_pid:
            return
        now = time.monotonic()
        if self._orphaned_since is None:
            self._orphaned_since = now
            _log.warning("the process that started this run is gone")
            self._stop_request.request("the process that started it is gone")
        elif now - self._orphaned_since > ORPHAN_SECONDS:
            # Nobody is left to kill a run that hangs; its lease would stay valid for ever.
            _log.error("still busy %g s after the parent's end: ending now", ORPHAN_SECONDS)
            os._exit(ORPHANED)
