"""`advsweep help`: the help of a command, as `--help` prints it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from advsweep.cli.commands import BY_NAME
from advsweep.cli.output import echo

EXAMPLES = (
    "advsweep help",
    "advsweep help sweep",
)


def _complete_command() -> list[str]:
    return list(BY_NAME)


def help_(
    ctx: typer.Context,
    command: Annotated[
        str | None,
        typer.Argument(
            show_default=False,
            metavar="[COMMAND]",
            autocompletion=_complete_command,
            help="The command (default: all of them).",
        ),
    ] = None,
) -> None:
    """Print the help of a command, or of all."""
    parent: Any = ctx.parent
    if command is None:
        echo(parent.get_help())
        return
    name, named, _ = parent.command.resolve_command(parent, [command])
    echo(named.get_help(typer.Context(named, info_name=name, parent=parent)))
