"""Requests to stop a training, from a signal or from another thread."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RunStopped(BaseException):
    """Unwinds a training that was asked to stop where it has nothing to save.

    Like KeyboardInterrupt it is no Exception, so that no handler of a backend holds it up.
    """


class StopRequest:
    """Whether the process was asked to stop, and why.

    A training looks at it after each step and ends with a checkpoint. Within a stretch that
    `interruptible` marks, where that would take long and nothing is lost, `RunStopped` is
    raised in the main thread at once.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._interruptible = False
        self._raised = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Takes SIGTERM, and Ctrl-C where there is a terminal, as requests."""
        before = {n: signal.signal(n, lambda *_: self._received()) for n in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def request(self, reason: str) -> None:
        """Asks to stop, from any thread."""
        self.reason = self.reason or reason
        # Only a signal reaches into whatever the main thread is busy with.
        os.kill(os.getpid(), signal.SIGTERM)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Marks a stretch that a request ends by `RunStopped`, at its start if it came before."""
        outer, self._interruptible = self._interruptible, True
        try:
            if self.reason is not None:
                self._raise(self.reason)
            yield
        finally:
            self._interruptible = outer

    def protect(self) -> None:
        """Ends the stretch that was marked: from here on there is something to save."""
        self._interruptible = False

    def _received(self) -> None:
        self.reason = self.reason or "asked to stop"
        # Once only: a second request must not break into the unwinding of the first.
        if self._interruptible and not self._raised:
            self._raise(self.reason)

    def _raise(self, reason: str) -> None:
        self._raised = True
        raise RunStopped(reason)
