"""`advsweep tag`: words by which sweeps are found again."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.output import echo_line
from advsweep.errors import NotFoundError, nearest
from advsweep.store import open_store

EXAMPLES = (
    "advsweep tag demo paper table-2",
    "advsweep tag demo table-2 --remove",
)


def tag(
    sweep: options.NamedSweep,
    tags: Annotated[
        list[str] | None,
        typer.Argument(
            show_default=False,
            metavar="[TAG]...",
            help="Tags that it gets (default: print those it has).",
        ),
    ] = None,
    remove: Annotated[
        bool,
        typer.Option(
            "--remove",
            help="Take these tags off instead.",
        ),
    ] = False,
    store: options.Store = None,
) -> None:
    """Tag a sweep, or print its tags.

    `advsweep ls --tag TAG` lists the runs of the sweeps with a tag. Prints the tags that the sweep
    has then, a line each.
    """
    with open_store(store, create=False) as opened:
        had = set(opened.sweeps.find(sweep).tags)
        given = set(tags or ())
        if remove and (missing := sorted(given - had)):
            raise NotFoundError(
                f"sweep {sweep} has no tag '{missing[0]}'; {nearest(missing[0], had)}"
            )
        has = had - given if remove else had | given
        if has != had:
            opened.sweeps.set_tags(sweep, has)
    for name in sorted(has):
        echo_line(name)
