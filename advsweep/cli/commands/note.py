"""`advsweep note`: what its user notes of a sweep."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.output import echo
from advsweep.store import open_store

EXAMPLES = (
    "advsweep note demo 'the rate of 3e-4 was too large for fade'",
    "advsweep note demo",
)


def note(
    sweep: options.NamedSweep,
    text: Annotated[
        list[str] | None,
        typer.Argument(
            show_default=False,
            metavar="[TEXT]",
            help="What replaces its note; '' removes it (default: print the note).",
        ),
    ] = None,
    store: options.Store = None,
) -> None:
    """Note something of a sweep, or print its note.

    `advsweep status SWEEP`, `advsweep ls --sweeps`, reports and pages show it.
    """
    with open_store(store, create=False) as opened:
        if text is None:
            echo(opened.sweeps.find(sweep).note)
            return
        opened.sweeps.set_note(sweep, " ".join(text))
