"""`advsweep metrics`: the raw numbers of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.options import ListFormat
from advsweep.errors import NotFoundError, nearest


def metrics(
    run: options.RunKey,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="Only this metric; may be repeated (default: all)."),
    ] = None,
    store: options.Store = None,
    output: options.Listing = ListFormat.TABLE,
) -> None:
    """Print every metric point of a run; csv has one row per step and metric, unrounded."""
    from advsweep.cli.shared.output import print_columns, print_csv, print_json
    from advsweep.store import open_store

    opened = open_store(store, create=False)
    record = opened.runs.find(run)
    known = opened.metrics.names(record.id)
    for wanted in name or ():
        if wanted not in known:
            hint = nearest(wanted, known)
            raise NotFoundError(f"run {record.id} has no metric '{wanted}'; {hint}")
    points = opened.metrics.points(record.id, name)
    if output is ListFormat.CSV:
        print_csv(("name", "step", "value"), points)
    elif output is ListFormat.JSON:
        print_json([{"name": n, "step": step, "value": value} for n, step, value in points])
    else:
        print_columns(("name", "steps", "first", "last", "mean"), _summaries(points))


def _summaries(points: list[tuple[str, int, float]]) -> list[list[str]]:
    series: dict[str, list[float]] = {}
    for name, _, value in points:
        series.setdefault(name, []).append(value)
    return [
        [name, *(f"{x:.6g}" for x in (len(v), v[0], v[-1], sum(v) / len(v)))]
        for name, v in sorted(series.items())
    ]
