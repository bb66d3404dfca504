"""Requests to stop a training, from a signal or from another thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Protocol

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RunStopped(BaseException):
    """Unwinds a training that was asked to stop where it has nothing to save.

    Like KeyboardInterrupt it is no Exception, so that no handler of a backend holds it up.
    """


class Stop(Protocol):
    """What a training looks at: whether it was asked to stop, and where that may break in."""

    @property
    def reason(self) -> str | None: ...

    def interruptible(self) -> AbstractContextManager[None]: ...

    def protect(self) -> None: ...


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

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Marks a stretch within another one that no request breaks into."""
        outer, self._interruptible = self._interruptible, False
        try:
            yield
        finally:
            self._interruptible = outer

    def _received(self) -> None:
        self.reason = self.reason or "asked to stop"
        # Once only: a second request must not break into the unwinding of the first.
        if self._interruptible and not self._raised:
            self._raise(self.reason)

    def _raise(self, reason: str) -> None:
        self._raised = True
        raise RunStopped(reason)


class RunStopRequest:
    """Whether one of the runs of a process was asked to stop, by itself or with all of them.

    A request to it alone breaks into nothing: it is looked at after a step, and before a stretch
    that is interruptible.

    Args:
        everyone: the request to the process.
    """

    def __init__(self, everyone: StopRequest) -> None:
        self._everyone = everyone
        self._own: str | None = None

    @property
    def reason(self) -> str | None:
        return self._own or self._everyone.reason

    def request(self, reason: str) -> None:
        """Asks it to stop, from any thread."""
        self._own = self._own or reason

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """As of the process's request."""
        if self._own is not None:
            raise RunStopped(self._own)
        with self._everyone.interruptible():
            yield

    def protect(self) -> None:
        """As of the process's request."""
        self._everyone.protect()


_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_signals_handled(handler: Callable[[], None]) -> Iterator[None]:
    """Takes the signals that ask to stop, in the main thread; elsewhere nobody can.

    Those that are ignored stay so: that is how `nohup` and `&` keep a sweep going.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        handler()

    taken = [number for number in _INTERRUPTS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in taken}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
