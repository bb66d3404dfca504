"""Reads the log of a run, also while its process writes it."""

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
"""Bytes of a log that are in memory at a time."""


def log_path(run: RunRecord) -> Path:
    """Where a run's process writes.

    Raises:
        StoreError: there is a link, which may lead anywhere, or a special file.
    """
    path = run.directory / "log.txt"
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise StoreError(f"{path}: expected a regular file, got a link or a special file")
    return path


def followed(store: Store, run: RunRecord) -> Iterator[str]:
    """What a run's process has written and writes, until the run is at an end.

    A run that has not begun is waited for.
    """
    tail = Tail(log_path(run))
    while True:
        # The state first: what was written before the end is read after it.
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
    """Reads a file that grows, from its beginning, and again when it was cut or replaced.

    Every kind of line end is read as a line break: a terminal would print over the line after a
    carriage return.

    Args:
        last: begin so many bytes before the end; by default at the beginning.
    """

    def __init__(self, path: Path, last: int | None = None) -> None:
        self._path = path
        self._last = last
        self._read = 0
        self._file_number: int | None = None
        utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder = io.IncrementalNewlineDecoder(utf8, translate=True)

    def read(self) -> str:
        """What follows, `READ_BYTES` at most; nothing where nothing has come, or no file is."""
        # Some bytes may come to no text yet: a part of a character, or of a line's end.
        while data := self._more():
            if text := self._decoder.decode(data):
                return text
        return ""

    def _more(self) -> bytes:
        try:
            # Opening a FIFO would wait for a writer, and a device has no end.
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
