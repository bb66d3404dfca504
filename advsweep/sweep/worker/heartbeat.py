"""The thread that renews a worker's leases and watches its parent."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Self

from advsweep.errors import LeaseLostError, StoreError, StoreUnavailableError
from advsweep.sweep.exit_codes import ELSEWHERE, ORPHANED

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.stop_request import StopRequest

BEAT_SECONDS = 5.0
STOP_SECONDS = 1.0
"""Interval at which the store is checked for requests to stop."""
PARENT_SECONDS = 0.5
ORPHAN_SECONDS = 10.0
"""Time that a run without a parent has to write a checkpoint before it is ended."""

_log = logging.getLogger(__name__)


class Heartbeat(threading.Thread):
    """Renews the lease of a run while it is open as a context manager.

    Args:
        run_id: the run whose lease is renewed; None to watch the parent alone.
        parent_pid: the process ends when this is no longer its parent; None: never.
    """

    def __init__(
        self, store: Store, run_id: int | None, stop: StopRequest, parent_pid: int | None
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._store = store
        self._run_id = run_id
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
        """Uses the store without waiting for it: it may recover before the next attempt."""
        try:
            with self._store.without_retries():
                act()
        except StoreUnavailableError:
            pass  # the store has logged it
        except StoreError as error:
            _log.warning("no heartbeat: %s", error)

    def _check_stop_requests(self) -> None:
        if self._run_id is not None and self._store.leases.stop_requested(self._run_id):
            self._stop_request.request("asked to stop")

    def _renew_leases(self) -> None:
        if self._run_id is None:
            return
        try:
            self._store.leases.heartbeat(self._run_id)
        except LeaseLostError as error:
            # Another process trains the run now: this one must not write any more.
            _log.error("%s", error)
            os._exit(ELSEWHERE)
        self._renew_others({self._run_id})

    def _renew_others(self, own: Collection[int]) -> None:
        """Renews the leases of the calibrations that this process makes for its runs."""
        self._store.leases.renew([i for i in list(self._store.leases.held) if i not in own])

    def _watch_parent(self) -> None:
        if self._parent_pid is None or os.getppid() == self._parent_pid:
            return
        now = time.monotonic()
        if self._orphaned_since is None:
            self._orphaned_since = now
            _log.warning("the process that started this run is gone")
            self._stop_request.request("the process that started it is gone")
        elif now - self._orphaned_since > ORPHAN_SECONDS:
            _log.error("still busy %g s after the parent's end: ending now", ORPHAN_SECONDS)
            os._exit(ORPHANED)
