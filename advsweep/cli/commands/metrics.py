"""`advsweep metrics`: print the metric points of a run or a sweep."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_target
from advsweep.errors import ConfigError, NotFoundError, nearest

if TYPE_CHECKING:
    from pandas import DataFrame

    from advsweep.store import Store


class MetricsFormat(Enum):
    """Output format of metric points."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def metrics(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|SWEEP",
            help="A run's id, the start of its identity, or 'last'; or a sweep's name.",
            autocompletion=complete_target,
        ),
    ],
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="Print only this metric; may be repeated (default: all)."),
    ] = None,
    store: options.Store = None,
    output: Annotated[
        MetricsFormat,
        typer.Option("--format", help="table for people; csv, json or parquet for programs."),
    ] = MetricsFormat.TABLE,
    file: Annotated[
        Path | None, typer.Option("--output", help="Write the parquet file here.")
    ] = None,
) -> None:
    """The table has a row per metric, with its first, last and mean value; csv has all points,
    unrounded.

    Examples:
        advsweep metrics last --name reward/mean
        advsweep metrics demo --format csv > demo.csv
    """
    from advsweep.cli.output import print_columns, print_csv, print_json
    from advsweep.store import open_store

    if file is not None and output is not MetricsFormat.PARQUET:
        raise ConfigError("--output: expected --format parquet; the other formats go to stdout")
    opened = open_store(store, create=False)
    run_id = _find_run(opened, target)
    if run_id is None:
        _print_frame(_sweep_points(opened, target, name), output, file)
        return
    known = opened.metrics.names(run_id)
    for metric in name or ():
        if metric not in known:
            hint = nearest(metric, known)
            raise NotFoundError(f"run {run_id} has no metric '{metric}'; {hint}")
    points = opened.metrics.points(run_id, name)
    columns = ("name", "step", "value")
    if output is MetricsFormat.CSV:
        print_csv(columns, points)
    elif output is MetricsFormat.JSON:
        print_json([dict(zip(columns, point, strict=True)) for point in points])
    elif output is MetricsFormat.PARQUET:
        from pandas import DataFrame

        _write_parquet(DataFrame(points, columns=columns), file)
    else:
        print_columns(("name", "steps", "first", "last", "mean"), _summaries(points))


def _find_run(store: Store, target: str) -> int | None:
    """Returns the id of the run, or None if the target names a sweep."""
    try:
        return store.runs.find(target).id
    except NotFoundError:
        if target in [sweep.name for sweep in store.sweeps.select()]:
            return None
        raise


def _summaries(points: list[tuple[str, int, float]]) -> list[list[str]]:
    series: dict[str, list[float]] = {}
    for name, _, value in points:
        series.setdefault(name, []).append(value)
    return [
        [name, *(f"{x:.6g}" for x in (len(v), v[0], v[-1], sum(v) / len(v)))]
        for name, v in sorted(series.items())
    ]


def _sweep_points(store: Store, sweep: str, names: list[str] | None) -> DataFrame:
    from advsweep.report.data.frame import metric_frame

    runs = store.runs.select(sweep=sweep, newest_first=False)
    frame = metric_frame(store, runs, names, wide=False)
    for key in [key for key in frame if frame[key].dtype == object]:
        # A Parquet column has a single type, and CSV cannot hold lists.
        frame[key] = frame[key].map(_text, na_action="ignore")
    return frame


def _print_frame(frame: DataFrame, output: MetricsFormat, file: Path | None) -> None:
    """Prints the points of a sweep's runs; a table has one row per run and metric."""
    from advsweep.cli.output import print_columns, print_csv, print_json, show_number

    if output is MetricsFormat.PARQUET:
        _write_parquet(frame, file)
        return
    if output is not MetricsFormat.TABLE:
        # A config key that a run lacks is empty in CSV and null in JSON.
        plain = frame.astype(object).where(frame.notna(), None)
        if output is MetricsFormat.CSV:
            rows = plain.itertuples(index=False)
            print_csv(list(frame), (["" if v is None else v for v in row] for row in rows))
        else:
            print_json(plain.to_dict("records"))
        return
    keys = [name for name in frame if name not in ("step", "value")]
    values = frame.groupby(keys, sort=False, dropna=False)["value"]
    shown = values.agg(["size", "first", "last", "mean"]).reset_index()
    rows = [
        [*map(_text, row[: len(keys) + 1]), *map(show_number, row[len(keys) + 1 :])]
        for row in shown.itertuples(index=False)
    ]
    print_columns([*keys, "steps", "first", "last", "mean"], rows)


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    return json.dumps(value) if isinstance(value, tuple) else str(value)


def _write_parquet(frame: DataFrame, file: Path | None) -> None:
    if file is None and sys.stdout.isatty():
        raise ConfigError(
            "--format parquet: expected --output FILE, or stdout redirected to a file"
        )
    try:
        frame.to_parquet(sys.stdout.buffer if file is None else file, index=False, engine="pyarrow")
    except ImportError as error:
        from advsweep.packages import extra_command

        raise ConfigError(
            f"--format parquet: expected pyarrow; install it with `{extra_command('data')}`"
        ) from error
