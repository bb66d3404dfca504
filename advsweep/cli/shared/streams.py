"""Keep commands alive when a standard stream is closed or breaks.

A daemon or cron may start a command without standard streams, and the reader of a long sweep's
messages (a terminal or `tee`) may exit before the sweep does.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Any

_STREAMS = {0: ("stdin", "r"), 1: ("stdout", "w"), 2: ("stderr", "w")}


def open_closed_streams() -> None:
    """Opens the null device in place of each closed standard stream.

    Otherwise a file opened later would get descriptor 1 or 2, and messages would go into it.
    """
    for descriptor in _STREAMS:
        try:
            os.fstat(descriptor)
        except OSError:
            _discard(descriptor)
    for name, mode in _STREAMS.values():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def discard_stdout() -> None:
    """Discards all further output to stdout, including the flush at process exit.

    Leaves `sys.stdout` alone if it was replaced, as in tests.
    """
    own = sys.__stdout__
    if own is not None and sys.stdout is own:
        _discard(own.fileno())


def stdout_has_no_reader() -> bool:
    """Returns whether stdout is a pipe whose other end is closed."""
    own = sys.__stdout__
    if own is None:
        return False
    poll = select.poll()
    poll.register(own.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def tolerate_broken_stderr() -> None:
    """Makes the command continue without messages once writing to stderr fails.

    Leaves `sys.stderr` alone if it was replaced, as in tests.
    """
    own = sys.__stderr__
    if own is None or sys.stderr is not own:
        return
    raw = _Messages(own.fileno(), "w", closefd=False)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=own.encoding, errors=own.errors, line_buffering=True
    )


class _Messages(io.FileIO):
    """A stream that discards everything after the first failed write."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            _discard(self.fileno())
            return super().write(data)


def _discard(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null == descriptor:
        os.set_inheritable(descriptor, True)
        return
    os.dup2(null, descriptor)
    os.close(null)
