"""`advsweep logs`: print the log of a run's process."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.output import echo
from advsweep.cli.run_log import Tail, follow_log, log_path
from advsweep.errors import NotFoundError


def logs(
    run: options.RunKey,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Keep printing new lines until the run ends."),
    ] = False,
    store: options.Store = None,
) -> None:
    """Examples:
    advsweep logs last
    advsweep logs 12 --follow
    """
    from advsweep.store import open_store

    with open_store(store, create=False) as opened:
        record = opened.runs.find(run)
        path = log_path(record)
        if follow:
            try:
                for text in follow_log(opened, record):
                    echo(text, nl=False)
            except KeyboardInterrupt:
                raise typer.Exit(130) from None
            return
    if not path.is_file():
        raise NotFoundError(
            f"run {record.id} has no log at {path}: the run has not started on this machine, or "
            "its folder was removed"
        )
    tail = Tail(path)
    while text := tail.read():
        echo(text, nl=False)
