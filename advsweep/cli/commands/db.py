"""`advsweep db`: the schema of a store."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from advsweep.cli import options
from advsweep.cli.output import echo, echo_line
from advsweep.store import open_store

EXAMPLES = (
    "advsweep db version",
    "advsweep db upgrade --store advsweep.db",
)


def db(
    action: Annotated[
        Literal["version", "upgrade"],
        typer.Argument(
            show_default=False,
            metavar="version|upgrade",
            help="Print it, or upgrade the store.",
        ),
    ],
    store: options.Store = None,
) -> None:
    """Upgrade the store's schema or print its version.

    An upgrade lists the changes of the schema; data stay as they are.
    """
    opened = open_store(store, create=False, upgrade=action == "upgrade")
    if action == "version":
        echo(opened.schema_version())
        return
    for line in opened.upgraded:
        echo(line)
    if not opened.upgraded:
        echo_line(f"{opened.name} is up to date (schema {opened.schema_version()})")
