"""`advsweep estimators`: what can be compared."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from advsweep.cli import options
from advsweep.cli.options import ListFormat, RecordFormat

app = typer.Typer(help="List estimators and show what they compute.")


@app.callback(invoke_without_command=True)
def root(context: typer.Context, output: options.Listing = ListFormat.TABLE) -> None:
    """List every estimator by family, with its formula and source."""
    if context.invoked_subcommand is not None:
        return
    from advsweep.cli.output import print_listing
    from advsweep.estimators import ESTIMATORS

    classes = [ESTIMATORS.get(name) for name in ESTIMATORS]
    rows: list[dict[str, Any]] = [
        {
            "name": c.name,
            "family": c.family,
            "formula": c.formula,
            "source": ", ".join(filter(None, (c.paper, c.equation))),
        }
        for c in sorted(classes, key=lambda c: (c.family, c.name))
    ]
    print_listing(rows, output)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="An estimator's name or alias.")],
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Show an estimator's formula, parameters with ranges, and the inputs it needs."""
    from advsweep.cli.output import print_columns, print_json
    from advsweep.components import parameters
    from advsweep.estimators import ESTIMATORS

    cls = ESTIMATORS.get(name)
    rows = parameters(cls)
    if output is RecordFormat.JSON:
        print_json(
            {
                "name": cls.name,
                "family": cls.family,
                "formula": cls.formula,
                "paper": cls.paper,
                "equation": cls.equation,
                "needs": sorted(cls.needs),
                "minimum_group": cls.minimum_group,
                "binary_only": cls.binary_only,
                "stateful": cls.stateful,
                "parameters": rows,
            }
        )
        return
    typer.echo(f"{cls.name}: {cls.formula}")
    typer.echo(f"family: {cls.family}    source: {cls.paper}, {cls.equation}")
    typer.echo(f"needs: {', '.join(sorted(cls.needs)) or 'rewards alone'}")
    typer.echo(f"group size: at least {cls.minimum_group}")
    typer.echo("")
    if rows:
        columns = ("parameter", "type", "default", "range", "meaning")
        print_columns(columns, [[str(v) for v in row.values()] for row in rows])
    else:
        typer.echo("no parameters")
