"""`advsweep audit`: check a printed table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from advsweep.cli.output import echo_rendered
from advsweep.writing import write

EXAMPLES = (
    "advsweep audit table.csv",
    "advsweep audit table.csv --format markdown > audit.md",
)


def audit(
    table: Annotated[
        Path,
        typer.Argument(
            show_default=False,
            metavar="TABLE.csv",
            help="The numbers, all in percent or all as shares.",
        ),
    ],
    output_format: Annotated[
        Literal["table", "markdown", "json"],
        typer.Option(
            "--format",
            metavar="table|markdown|json",
            help="Choose the output format.",
        ),
    ] = "table",
) -> None:
    """Check a printed table: what cannot be, what is settled.

    TABLE.csv has a row for each number: name, benchmark and value, as printed, the size of the
    benchmark, and as far as they are known samples, k, seeds (runs whose mean it is), spread (the
    standard deviation over them), group (rows are compared within one) and bold. The benchmark
    of an average is `mean`. Exit code 1 if a number cannot be as it is printed.
    """
    from advsweep.report.audit import audit as check
    from advsweep.report.audit import lay_out, read_cells

    audited = check(read_cells(table))
    echo_rendered(write(audited if output_format == "json" else lay_out(audited), output_format))
    if audited.findings:
        raise typer.Exit(1)
