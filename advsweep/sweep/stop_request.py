"""Requests to stop, from signals and from the store: what happens at SIGTERM.

The scheduler's process turns SIGINT, SIGTERM and SIGHUP into `Scheduler.request_stop`
(`handle_stop_signals`) and sends SIGTERM to its workers. In a worker, `StopRequest` receives the
signal. The training checks `reason` after each step, writes a checkpoint and returns; where it
has nothing to save, within `interruptible`, `RunStopped` unwinds it at once.
`worker/run.py` then records the run as interrupted.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_WORKER_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SCHEDULER_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def handle_stop_signals(handler: Callable[[], None]) -> Iterator[None]:
    """Calls a handler at each stop signal, in a scheduler's process.

    Only the main thread can do so; in others this does nothing. Ignored signals stay ignored:
    that is how `nohup` and `&` keep a sweep running.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    # A handler only notes the request: the scheduler's loop acts on it between two steps.
    def handle(number: int, frame: FrameType | None) -> None:
        handler()

    handled = [n for n in _SCHEDULER_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class RunStopped(BaseException):
    """Unwinds a stopped training that has nothing to save.

    Like KeyboardInterrupt it is no Exception, so that no handler of a backend catches it.
    """


class StopRequest:
    """Whether a worker's process should stop, and why.

    A training checks `reason` after each step and ends with a checkpoint. Within a block that
    `interruptible` marks, where a step would take long and nothing is lost, a request raises
    `RunStopped` in the main thread at once.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._interruptible = False
        self._raised = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Treats SIGTERM, and Ctrl-C in a terminal, as requests."""
        before = {n: signal.signal(n, lambda *_: self._receive()) for n in _WORKER_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def request(self, reason: str) -> None:
        """Requests a stop, from any thread."""
        # The first reason counts: it is what the run's record will say.
        self.reason = self.reason or reason
        # Only a signal interrupts what the main thread is busy with.
        os.kill(os.getpid(), signal.SIGTERM)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Marks a block that a request ends by `RunStopped`; an earlier request, at its start."""
        # The flag is set before the check: a signal in between raises by itself.
        outer = self._interruptible
        self._interruptible = True
        try:
            if self.reason is not None:
                self._raise(self.reason)
            yield
        finally:
            self._interruptible = outer

    def protect(self) -> None:
        """Ends the interruptible part of a block: from now on there is something to save."""
        self._interruptible = False

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Marks a block within an interruptible one that no request interrupts."""
        outer = self._interruptible
        self._interruptible = False
        try:
            yield
        finally:
            self._interruptible = outer

    def _receive(self) -> None:
        self.reason = self.reason or "asked to stop"
        # Once only: a second request must not interrupt the unwinding of the first.
        if self._interruptible and not self._raised:
            self._raise(self.reason)

    def _raise(self, reason: str) -> None:
        self._raised = True
        raise RunStopped(reason)


class RunStopRequest:
    """Whether one of the runs of a process should stop, alone or with the whole process.

    A request to the run alone interrupts nothing: it is checked after each step, and at the
    start of an interruptible block.

    Args:
        process: the request to the process.
    """

    def __init__(self, process: StopRequest) -> None:
        self._process = process
        self._own: str | None = None

    @property
    def reason(self) -> str | None:
        return self._own or self._process.reason

    def request(self, reason: str) -> None:
        """Requests a stop of the run, from any thread."""
        self._own = self._own or reason

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """As `StopRequest.interruptible`."""
        if self._own is not None:
            raise RunStopped(self._own)
        with self._process.interruptible():
            yield

    def protect(self) -> None:
        """As `StopRequest.protect`."""
        self._process.protect()


AnyStopRequest = StopRequest | RunStopRequest
