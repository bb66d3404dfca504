"""Where the lines of a worker's log go: those about one of several runs to the log of that run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from advsweep.private_files import open_private

LOG_NAME = "log.txt"

_log_file: ContextVar[Path | None] = ContextVar("log_file", default=None)


@contextmanager
def logging_to(file: Path) -> Iterator[None]:
    """The stretch in which what is logged, in this thread, is about one run alone."""
    token = _log_file.set(file)
    try:
        yield
    finally:
        _log_file.reset(token)


class RunLogs(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the file of the run that the work is on, and else to the process's output.

    The file is opened for each line: the runs of a process may be more than it may have files.
    """

    def emit(self, record: logging.LogRecord) -> None:
        file = _log_file.get()
        if file is None:
            super().emit(record)
            return
        try:
            with open_private(file, "a", encoding="utf-8") as log:
                log.write(self.format(record) + self.terminator)
        except OSError:
            self.handleError(record)
