"""`advsweep report`: the table of a sweep, made from the store alone."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_sweep


class ReportFormat(Enum):
    """How a report is printed."""

    TABLE = "table"
    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"
    JSON = "json"


def report(
    sweep: Annotated[
        str | None,
        typer.Argument(
            metavar="[SWEEP]",
            help="A sweep's name (default: every run).",
            autocompletion=complete_sweep,
        ),
    ] = None,
    store: options.Store = None,
    output: Annotated[
        ReportFormat, typer.Option("--format", help="How to print it.")
    ] = ReportFormat.TABLE,
) -> None:
    """Compare estimators by ACR, pass@k and entropy, with 95 % intervals over seeds."""
    from advsweep.report import build_report, render
    from advsweep.store import open_store

    opened = open_store(store, create=False)
    typer.echo(render(build_report(opened, sweep), output.value), nl=False)
