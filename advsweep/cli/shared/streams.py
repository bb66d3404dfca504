"""Standard streams that are closed or broken end no command.

A daemon or cron may start a command without them, and what reads a long sweep's messages, a
terminal or `tee`, may end before the sweep does.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Any

_STREAMS = {0: ("stdin", "r"), 1: ("stdout", "w"), 2: ("stderr", "w")}


def open_closed_streams() -> None:
    """Puts the null device in place of standard streams that are closed.

    A file that is opened later would have their descriptors otherwise, and be written to by
    whatever writes messages there.
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
    """Sends what is still to be written to stdout, at the end of the process too, nowhere.

    Where something else stands in place of stdout, as in tests, it stays.
    """
    own = sys.__stdout__
    if own is not None and sys.stdout is own:
        _discard(own.fileno())


def stdout_has_no_reader() -> bool:
    """Whether stdout is a pipe whose other end is closed."""
    own = sys.__stdout__
    if own is None:
        return False
    poll = select.poll()
    poll.register(own.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def tolerate_broken_stderr() -> None:
    """Lets messages get lost, and the command go on, once stderr cannot be written.

    Where something else stands in place of stderr, as in tests, it stays.
    """
    own = sys.__stderr__
    if own is None or sys.stderr is not own:
        return
    raw = _Messages(own.fileno(), "w", closefd=False)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=own.encoding, errors=own.errors, line_buffering=True
    )


class _Messages(io.FileIO):
    """A stream that sends everything nowhere after the first failure to write."""

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
