"""`advsweep logs`: the log of a run's process."""

from __future__ import annotations

import codecs
import io
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.output import echo
from advsweep.errors import NotFoundError, StoreError
from advsweep.local_files import open_regular
from advsweep.names import RUN_LOG
from advsweep.store import RunRecord, Status, Store, open_store

POLL_SECONDS = 0.25

# Most bytes of a log in memory at a time.
READ_BYTES = 1 << 20

EXAMPLES = (
    "advsweep logs last",
    "advsweep logs 12 --follow",
)


def logs(
    run: options.Run,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Keep printing new lines until the run ends.",
        ),
    ] = False,
    store: options.Store = None,
) -> None:
    """Print the log of a run's process.

    The log is a file in the run's folder, on the machine that trained it.
    """
    with open_store(store, create=False) as opened:
        for text in read_log(opened, opened.runs.find(run), follow=follow):
            echo(text, nl=False)


def log_path(run: RunRecord) -> Path:
    """Return the path of a run's log.

    Raises:
        StoreError: the path is a symbolic link, which could expose any file, or a special file.
    """
    path = run.directory / RUN_LOG
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise StoreError(f"{path}: expected a regular file, got a link or a special file")
    return path


def read_log(store: Store, run: RunRecord, *, follow: bool) -> Iterator[str]:
    """Yield the log of a run in parts; with `follow` as it grows, until the run ends.

    Every line ending becomes a line feed: after a carriage return a terminal would overwrite the
    line. Workers only append to a log, so that what was read stays as it was.

    Raises:
        NotFoundError: there is no log, and `follow` does not wait for the run to start.
    """
    file = None
    # A character may be cut where the worker has written a part of a line.
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder("utf-8")("replace"), translate=True
    )
    with ExitStack() as opened:
        while True:
            # Check before reading: everything written before the end is then read below.
            [now] = store.runs.select(ids=[run.id]) if follow else [run]
            path = log_path(run)
            if file is None and path.exists():
                file = opened.enter_context(open_regular(path))
            while file is not None and (part := file.read(READ_BYTES)):
                yield decoder.decode(part)
            if follow and now.status in (Status.PENDING, Status.RUNNING):
                time.sleep(POLL_SECONDS)
                continue
            if file is None and not follow:
                raise NotFoundError(
                    f"run {run.id} has no log at {path}: the run has not started on this machine, "
                    "or its folder was removed"
                )
            yield decoder.decode(b"", final=True)
            return
