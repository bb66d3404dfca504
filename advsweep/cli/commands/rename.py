"""`advsweep rename`: give a sweep another name."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_sweep
from advsweep.cli.output import echo_line
from advsweep.store import open_store

EXAMPLES = ("advsweep rename demo rates",)


def rename(
    old: Annotated[
        str,
        typer.Argument(
            show_default=False,
            metavar="OLD",
            autocompletion=complete_sweep,
            help="The sweep.",
        ),
    ],
    new: Annotated[
        str,
        typer.Argument(
            show_default=False,
            metavar="NEW",
            help="Its new name.",
        ),
    ],
    store: options.Store = None,
) -> None:
    """Give a sweep another name.

    Its runs, their folders and their numbers stay as they are. Start it again with --name NEW, or
    by `advsweep sweep NEW`.
    """
    with open_store(store, create=False) as opened:
        opened.sweeps.rename(old, new)
    echo_line(f"sweep {old} is now {new}", err=True)
