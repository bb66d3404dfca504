"""`advsweep db`: the schema of a store."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.output import echo, echo_line


class DbAction(Enum):
    """What to do with the schema."""

    VERSION = "version"
    UPGRADE = "upgrade"


def db(
    action: Annotated[
        DbAction, typer.Argument(metavar="version|upgrade", help="Print it, or upgrade the store.")
    ],
    store: options.Store = None,
) -> None:
    """An upgrade lists the changes of the schema; data stay as they are.

    Examples:
        advsweep db version
        advsweep db upgrade --store advsweep.db
    """
    from advsweep.store import open_store

    if action is DbAction.VERSION:
        echo(open_store(store, create=False).schema_version())
        return
    opened = open_store(store, create=False, upgrade=True)
    for line in opened.upgraded:
        echo(line)
    if not opened.upgraded:
        echo_line(f"{opened.name} is up to date (schema {opened.schema_version()})")
