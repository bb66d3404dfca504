"""`advsweep logs`: prints what a run's process wrote."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.output import echo
from advsweep.cli.shared.run_log import Tail, followed, log_path
from advsweep.errors import NotFoundError


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
        record = opened.runs.find(run)
        path = log_path(record)
        if follow:
            try:
                for text in followed(opened, record):
                    echo(text, nl=False)
            except KeyboardInterrupt:
                raise typer.Exit(130) from None
            return
    if not path.is_file():
        raise NotFoundError(
            f"run {record.id} has no log at {path}: it has not been started on this machine yet, "
            "or its folder was removed"
        )
    tail = Tail(path)
    while text := tail.read():
        echo(text, nl=False)
