"""The thread that keeps a worker's lease and watches its parent."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from advsweep.errors import LeaseLostError, StoreError, StoreUnavailableError
from advsweep.sweep.exit_codes import ELSEWHERE, ORPHANED

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.stop_request import StopRequest

BEAT_SECONDS = 5.0
STOP_SECONDS = 1.0
"""How often a request to stop is looked for."""
PARENT_SECONDS = 0.5
ORPHAN_SECONDS = 10.0
"""What a run whose parent is gone has to write a checkpoint, before it is ended."""

_log = logging.getLogger(__name__)


class Heartbeat(threading.Thread):
    """Beats for a run while it is open as a context manager.

    Args:
        run_id: the run whose lease is kept; None to watch the parent alone.
        parent_pid: ends the process when that is no longer its parent; None: never.
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
        self._orphaned: float | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        beaten = looked = time.monotonic()
        while not self._ended.wait(PARENT_SECONDS):
            self._watch_parent()
            now = time.monotonic()
            if now - looked >= STOP_SECONDS:
                looked = now
                self._try(self._look)
            if now - beaten >= BEAT_SECONDS:
                beaten = now
                self._try(self._beat)

    def _try(self, act: Callable[[], None]) -> None:
        """Uses the store once; it may recover before the next time comes."""
        try:
            with self._store.without_retries():
                act()
        except StoreUnavailableError:
            pass  # of which the store has written to the log
        except StoreError as error:
            _log.warning("no heartbeat: %s", error)

    def _look(self) -> None:
        if self._run_id is not None and self._store.leases.stop_requested(self._run_id):
            self._stop_request.request("asked to stop")

    def _beat(self) -> None:
        if self._run_id is None:
            return
        try:
            self._store.leases.heartbeat(self._run_id)
        except LeaseLostError as error:
            _log.error("%s", error)
            os._exit(ELSEWHERE)

    def _watch_parent(self) -> None:
        if self._parent_pid is None or os.getppid() == self._parent_pid:
            return
        now = time.monotonic()
        if self._orphaned is None:
            self._orphaned = now
            _log.warning("the process that started this run is gone")
            self._stop_request.request("the process that started it is gone")
        elif now - self._orphaned > ORPHAN_SECONDS:
            _log.error("still busy %g s after the parent's end: ending now", ORPHAN_SECONDS)
            os._exit(ORPHANED)
