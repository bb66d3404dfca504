"""`advsweep logs`: what a run's process wrote."""

from __future__ import annotations

import typer

from advsweep.cli import options
from advsweep.errors import NotFoundError


def logs(run: options.RunKey, store: options.Store = None) -> None:
    """Print the log of a run's process."""
    from advsweep.store import open_store

    opened = open_store(store, create=False)
    record = opened.find_run(run)
    path = record.directory / "log.txt"
    if not path.exists():
        raise NotFoundError(
            f"run {record.id} has no log at {path}: it has not been started on this machine yet, "
            "or its folder was removed"
        )
    typer.echo(path.read_text(encoding="utf-8", errors="replace"), nl=False)
