"""Patience: how calls to a store that is unavailable are repeated.

A call that fails because the store is unreachable, locked or full is repeated with growing
pauses. The connection may break during a commit, so a repeated call may find its own effect. It
must have the same result the second time (see `Patience.repeats`).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from advsweep.errors import StoreUnavailableError

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
# A process that waited for the store this long does not trust old heartbeats in it.
WAITED_SECONDS = 5.0

# How quickly `stop` ends a pause.
POLL_SECONDS = 0.2

_log = logging.getLogger(__name__)

T = TypeVar("T")


def is_long_wait(seconds: float) -> bool:
    """Return whether others may have missed their heartbeats while a process waited this long."""
    return seconds > WAITED_SECONDS


class Patience:
    """The retries of all threads that use one store.

    Attributes:
        seconds: how long a call is repeated, counted from its start.
        is_away: whether the last call of some thread failed and none has succeeded since.
        returned: when the store was last available again after a failure or a long wait, in
            seconds of the monotonic clock; minus infinity if that never happened.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_away = False
        self.returned = float("-inf")
        self._failed = 0.0
        self._reported = False
        self._stopped = False
        self._thread = threading.local()

    @property
    def repeats(self) -> bool:
        """Whether this thread repeats a call whose first try may have taken effect."""
        return getattr(self._thread, "repeats", False)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Return a context in which this thread tries every call once."""
        self._thread.suspended = True
        try:
            yield
        finally:
            self._thread.suspended = False

    def stop(self) -> None:
        """End the retries of all threads, now and later; safe in a signal handler."""
        self._stopped = True

    def call(self, function: Callable[[], T]) -> T:
        """Call a function, and repeat it while the store is unavailable.

        Raises:
            StoreUnavailableError: the store is unavailable for longer than `seconds`.
        """
        began = time.monotonic()
        is_nested = self.repeats
        pause = FIRST_PAUSE
        try:
            while True:
                try:
                    result = function()
                except StoreUnavailableError as error:
                    self._note_failure(began)
                    # The outer call that is being repeated repeats this one too.
                    if is_nested:
                        raise
                    self._report_or_give_up(error, began)
                else:
                    self._note_success()
                    return result
                # From here on the function may find the effect of its own first try.
                self._thread.repeats = True
                # Random pauses, so that processes do not return to the server all at once.
                random_pause = pause * random.uniform(0.5, 1)
                self._sleep(min(time.monotonic() + random_pause, began + self.seconds))
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            self._thread.repeats = is_nested

    def note_long_wait(self) -> None:
        """Note that a transaction waited long before it began.

        Other processes may have waited too, unable to renew their leases.
        """
        self.returned = time.monotonic()

    def _note_failure(self, began: float) -> None:
        if not self.is_away:
            self.is_away = True
            self._failed = began

    def _note_success(self) -> None:
        if not self.is_away:
            return
        self.is_away = False
        self.returned = time.monotonic()
        if self._reported:
            away = self.returned - self._failed
            _log.warning("the store can be used again after %.0f s", away)
        self._reported = False

    def _report_or_give_up(self, error: StoreUnavailableError, began: float) -> None:
        """Say once that the store is away; raise the error where this call tries no more."""
        is_suspended = getattr(self._thread, "suspended", False)
        is_over = self._stopped or time.monotonic() >= began + self.seconds
        if is_over and not is_suspended:
            if not self.repeats:
                raise error
            tried = f"{error} (tried for {self.seconds:.0f} s)"
            raise StoreUnavailableError(tried) from error
        if not self._reported:
            self._reported = True
            _log.warning("%s; trying again for up to %.0f s", error, self.seconds)
        if is_suspended:
            raise error

    def _sleep(self, until: float) -> None:
        while not self._stopped and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, POLL_SECONDS))
