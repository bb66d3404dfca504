"""`advsweep db`: upgrade the store's schema or print its version."""

from __future__ import annotations

from advsweep.cli.shared import options
from advsweep.cli.shared.help import App
from advsweep.cli.shared.output import echo, echo_line

app = App(no_args_is_help=True)


@app.callback()
def root() -> None:
    """Upgrade the store's schema or print its version.

    Examples:
        advsweep db version
        advsweep db upgrade
    """


@app.command("upgrade")
def upgrade(store: options.Store = None) -> None:
    """Upgrade a store to the current schema.

    Lists the changes. Data stay as they are.

    Examples:
        advsweep db upgrade --store advsweep.db
    """
    from advsweep.store import open_store

    opened = open_store(store, create=False, upgrade=True)
    for line in opened.upgraded:
        echo(line)
    if not opened.upgraded:
        echo_line(f"{opened.name} is up to date (schema {opened.schema_version()})")


@app.command("version")
def version(store: options.Store = None) -> None:
    """Print the store's schema version.

    Examples:
        advsweep db version
    """
    from advsweep.store import open_store

    echo(open_store(store, create=False).schema_version())
