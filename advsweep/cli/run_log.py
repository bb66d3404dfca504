"""Read the log of a run, also while its process is writing it."""

from __future__ import annotations

import codecs
import io
import os
import stat
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advsweep.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from advsweep.store import RunRecord, Store

POLL_SECONDS = 0.25

READ_BYTES = 1 << 20
"""Maximum bytes of a log in memory at a time."""


def log_path(run: RunRecord) -> Path:
    """Returns the path of a run's log.

    Raises:
        StoreError: the path is a symbolic link, which could expose any file, or a special file.
    """
    path = run.directory / "log.txt"
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise StoreError(f"{path}: expected a regular file, got a link or a special file")
    return path


def follow_log(store: Store, run: RunRecord) -> Iterator[str]:
    """Yields the log of a run as it grows, until the run ends.

    Waits for a run that has not started.
    """
    tail = Tail(log_path(run))
    while True:
        # Check before reading: everything written before the end is then read below.
        ended = _has_ended(store, run.id)
        while text := tail.read():
            yield text
        if ended:
            return
        time.sleep(POLL_SECONDS)


def _has_ended(store: Store, run_id: int) -> bool:
    from advsweep.store import Status

    [run] = store.runs.select(ids=[run_id])
    return run.status not in (Status.PENDING, Status.RUNNING)


class Tail:
    """Reads a growing file; starts over if the file is truncated or replaced.

    Converts every line ending to a line feed: after a carriage return a terminal would
    overwrite the line.

    Args:
        last: start this many bytes before the end (default: at the beginning).
    """

    def __init__(self, path: Path, last: int | None = None) -> None:
        self._path = path
        self._last = last
        self._read = 0
        self._file_number: int | None = None
        utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder = io.IncrementalNewlineDecoder(utf8, translate=True)

    def read(self) -> str:
        """Returns up to `READ_BYTES` of new text; empty if there is none, or no file."""
        # Bytes may decode to nothing yet: part of a character or of a line ending.
        while data := self._read_new_bytes():
            if text := self._decoder.decode(data):
                return text
        return ""

    def _read_new_bytes(self) -> bytes:
        try:
            # Opening a FIFO would block until it has a writer, and a device has no end.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return b""
        with open(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                return b""
            if self._file_number is None and self._last is not None:
                self._file_number, self._read = state.st_ino, max(0, state.st_size - self._last)
            if state.st_ino != self._file_number or state.st_size < self._read:
                self._file_number, self._read = state.st_ino, 0
                self._decoder.reset()
            file.seek(self._read)
            data = file.read(READ_BYTES)
        self._read += len(data)
        return data
