"""`advsweep logs`: what a run's process wrote."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli import options
from advsweep.cli.output import echo
from advsweep.errors import NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

    from advsweep.store import RunRecord, Store

LOOK_SECONDS = 0.25


def logs(
    run: options.RunKey,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Go on as it grows, until the run is at its end."),
    ] = False,
    store: options.Store = None,
) -> None:
    """Print the log of a run's process."""
    from advsweep.store import open_store

    with open_store(store, create=False) as opened:
        record = opened.find_run(run)
        path = log_path(record)
        if follow:
            try:
                for text in followed(opened, record):
                    echo(text, nl=False)
            except KeyboardInterrupt:
                raise typer.Exit(130) from None
            return
    if not path.exists():
        raise NotFoundError(
            f"run {record.id} has no log at {path}: it has not been started on this machine yet, "
            "or its folder was removed"
        )
    echo(path.read_text(encoding="utf-8", errors="replace"), nl=False)


def log_path(run: RunRecord) -> Path:
    """Where a run's process writes."""
    return run.directory / "log.txt"


def followed(store: Store, run: RunRecord) -> Iterator[str]:
    """What a run's process has written and writes, until the run is at an end.

    A run that has not begun is waited for.
    """
    tail = Tail(log_path(run))
    while True:
        # The state first: what was written before the end is read after it.
        ended = _has_ended(store, run.id)
        if text := tail.read():
            yield text
        if ended:
            return
        time.sleep(LOOK_SECONDS)


def _has_ended(store: Store, run_id: int) -> bool:
    from advsweep.store import Status

    [run] = store.runs(ids=[run_id])
    return run.status not in (Status.PENDING, Status.RUNNING)


class Tail:
    """Reads a file that grows, from its beginning, and again when it was cut or replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._file_number: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def read(self) -> str:
        """What has come since the last time; nothing where there is no file."""
        try:
            file = open(self._path, "rb")  # noqa: SIM115 - closed by the `with` below
        except FileNotFoundError:
            return ""
        with file:
            state = os.fstat(file.fileno())
            if state.st_ino != self._file_number or state.st_size < self._read:
                self._file_number, self._read = state.st_ino, 0
                self._decoder.reset()
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        return self._decoder.decode(data)
