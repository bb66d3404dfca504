"""`advsweep estimators`: list every estimator by family, with its formula and source."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli.shared.output import echo

if TYPE_CHECKING:
    from advsweep.estimators import Estimator

app = typer.Typer(help="List, show, apply and plot estimators.")


class TableFormat(Enum):
    """How the table of estimators is printed."""

    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    output: Annotated[
        TableFormat,
        typer.Option(
            "--format", help="table for people; markdown for a page; csv or json for programs."
        ),
    ] = TableFormat.TABLE,
) -> None:
    """List every estimator by family, with its formula and source."""
    if context.invoked_subcommand is not None:
        return
    from advsweep.cli.shared.options import ListFormat
    from advsweep.cli.shared.output import print_listing

    if output is TableFormat.MARKDOWN:
        echo(markdown_table(), nl=False)
        return
    print_listing(_records(), ListFormat(output.value))
    if output is TableFormat.TABLE:
        _print_refused()


def markdown_table() -> str:
    """Returns the table of estimators in the README, in GitHub's Markdown."""
    from advsweep.cli.shared.output import to_markdown

    rows = [
        [
            record["family"],
            ", ".join(f"`{name}`" for name in (record["name"], *record["aliases"])),
            record["formula"].replace("|", r"\|"),
            record["source"],
            record["held"] + "".join(f"; `{option}`" for option in record["released"]),
        ]
        for record in _records()
    ]
    return to_markdown(("family", "name, aliases", "advantage", "source", "held to"), rows)


def held(cls: type[Estimator]) -> str:
    """Names what the defaults of an estimator follow: a paper, released code, or our reading."""
    return ", ".join(where.value for where in cls.provenance) or "not stated"


def _records() -> list[dict[str, Any]]:
    from advsweep.estimators import ESTIMATORS

    aliases = ESTIMATORS.aliases()
    return [
        {
            "name": c.name,
            "aliases": sorted(alias for alias, name in aliases.items() if name == c.name),
            "family": c.family,
            "formula": c.formula,
            "source": f"{c.paper}, {c.equation}",
            "held": held(c),
            "released": list(c.released_options),
        }
        for c in sorted(ESTIMATORS.classes(), key=lambda c: (c.family, c.name))
    ]


def _print_refused() -> None:
    from advsweep.estimators import ESTIMATORS

    names = ", ".join(sorted(ESTIMATORS.unavailable()))
    echo(
        f"\nNamed in papers but not defined there: {names}\n"
        "(advsweep estimators show NAME explains what is missing)",
        err=True,
    )
