"""The pages of sweeps, rendered again when the store has changed.

Rendering takes a tenth of a second for a few runs, and seconds for thousands. It happens in one
thread, only while somebody looks, and takes at most a tenth of one core's time, which the runs
need.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from advsweep.report.html import render_live_page
from advsweep.store import Store

# The smallest time from one rendering to the next, in seconds and in CPU times of a rendering.
PAUSE = 5.0
_PAUSE_FACTOR = 10

# Sweeps whose pages are kept.
_KEPT = 4


@dataclass(frozen=True)
class LivePage:
    """A rendered page.

    Attributes:
        version: a hash of its text.
        mark: what the store was like before it was rendered.
        pause: seconds from the end of a rendering to the next one.
        due: when it may be rendered again, by the clock of `Pages`.
    """

    text: bytes
    version: str
    mark: str
    pause: float
    due: float

    def is_stale(self, mark: str, now: float) -> bool:
        """Return whether the store has changed, and the page may be rendered again."""
        return self.mark != mark and now >= self.due


class Pages:
    """The newest page of each sweep that is looked at.

    Args:
        clock: returns seconds.
        spent: returns the CPU seconds of the thread that calls it.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._store = store
        self._clock = clock
        self._spent = spent
        self._thread = ThreadPoolExecutor(1, "advsweep pages")
        self._newest: dict[str | None, LivePage] = {}
        self._rendering: dict[str | None, Future[LivePage]] = {}

    def version(self, sweep: str | None, mark: str) -> str | None:
        """Return the version of the newest page, and render another if the store has changed.

        Does not wait for it. None before a sweep's first page.
        """
        self._collect(sweep)
        page = self._newest.get(sweep)
        if page is None:
            return None
        if page.is_stale(mark, self._clock()):
            self._start(sweep, mark)
        return page.version

    def render(self, sweep: str | None, mark: str) -> Future[LivePage]:
        """Return a page that is as new as it may be; a `NotFoundError` without the sweep."""
        self._collect(sweep)
        page = self._newest.get(sweep)
        if page is None or page.is_stale(mark, self._clock()):
            return self._start(sweep, mark)
        known: Future[LivePage] = Future()
        known.set_result(page)
        return known

    def _start(self, sweep: str | None, mark: str) -> Future[LivePage]:
        if sweep not in self._rendering:
            self._rendering[sweep] = self._thread.submit(self._render, sweep, mark)
        return self._rendering[sweep]

    def _collect(self, sweep: str | None) -> None:
        """Keep the page of a rendering that has ended; a failed one leaves the old page."""
        future = self._rendering.get(sweep)
        if future is None or not future.done():
            return
        del self._rendering[sweep]
        page = self._newest.pop(sweep, None)
        if not future.cancelled() and future.exception() is None:
            page = future.result()
        elif page is not None:
            # The next try may fail as well, and takes as long.
            page = replace(page, due=self._clock() + page.pause)
        if page is None:
            return
        self._newest[sweep] = page
        while len(self._newest) > _KEPT:
            del self._newest[next(iter(self._newest))]

    def _render(self, sweep: str | None, mark: str) -> LivePage:
        before = self._spent()
        text = render_live_page(self._store, sweep)
        version = hashlib.sha256(text.encode()).hexdigest()[:16]
        # The page's script compares its own version with the newest one.
        text = text.replace('data-version=""', f'data-version="{version}"', 1)
        pause = max(PAUSE, _PAUSE_FACTOR * (self._spent() - before))
        return LivePage(text.encode(), version, mark, pause, self._clock() + pause)
