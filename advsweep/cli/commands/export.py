"""`advsweep export`: weights, tables, or runs for a tracker."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_target
from advsweep.cli.output import echo, echo_line, echo_rendered, progress_bar
from advsweep.cli.runs import find_targets
from advsweep.config.overrides import parse_assignments
from advsweep.errors import ConfigError, nearest
from advsweep.store import RunRecord, Store, open_store
from advsweep.sweep.planning.resume import trained_run
from advsweep.sweep.registry import TRACKINGS
from advsweep.sweep.tracking.base import Tracking, sync
from advsweep.sweep.watch import without_prompts
from advsweep.synonyms import VALUES

# An empty folder within the target of an export to a tracker.
_MARK = ".advsweep"

# Files by which the folder of an earlier export is known.
_WRITTEN = {_MARK, "config.json"}

_LISTED = 20

EXAMPLES = (
    "advsweep export last weights",
    "advsweep export demo tables --to parquet",
    "advsweep export demo --to csv --table metrics > metrics.csv",
    "advsweep export demo boards --to tensorboard",
    "advsweep export demo --to wandb --set project=mine",
)


def export(
    target: Annotated[
        str,
        typer.Argument(
            show_default=False,
            metavar="RUN|SWEEP",
            autocompletion=complete_target,
            help="A run's id, the start of its identity, or 'last'; or a sweep's name.",
        ),
    ],
    directory: Annotated[
        Path | None,
        typer.Argument(
            show_default=False,
            metavar="[DIR]",
            help="The folder to create or to add to. Without it trackers get runs in their own "
            "place or on their server, and --table is printed.",
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="hf: a run's weights, in a folder that transformers loads. parquet, csv: tables "
            "of runs, metrics, evaluations and problems. wandb, trackio, tensorboard, or a "
            "plug-in's tracker.",
        ),
    ] = "hf",
    table: Annotated[
        Literal["runs", "metrics", "evaluations", "problems"] | None,
        typer.Option(
            "--table",
            metavar="runs|metrics|evaluations|problems",
            help="csv without DIR: print this table.",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            metavar="N",
            min=0,
            help="hf: use the weights after this step (default: last; 0: base model).",
        ),
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Trackers: set a field of tracking=FORMAT, such as project=mine; may be "
            "repeated (default: the tracker's defaults).",
        ),
    ] = None,
    store: options.Store = None,
) -> None:
    """Write weights or tables of runs, or send runs to a tracker.

    Tables are replaced when a sweep is exported again. Trackers get the runs that are done,
    pruned, failed or interrupted: what they lack of each, or all of it where the tracker cannot
    tell. In a folder no tracker needs an account or a network. Exits with code 1 if a run cannot
    be sent.
    """
    from advsweep.report.data.export import FORMATS, export_tables

    _check_options(to, directory, table=table, step=step, fields=fields)
    opened = open_store(store, create=False)
    if directory is not None and to not in FORMATS:
        _refuse_other_files(directory)
    if to == "hf":
        _refuse_sweep(opened, target)
        run = opened.runs.find(target)
        if directory is None:
            raise ConfigError("DIR: expected a folder for the weights, got none")
        _export_weights(opened, run, step, directory)
        return
    runs = find_targets(opened, [target]).runs
    if to in TRACKINGS:
        tracking = _tracking(to, fields or [], directory)
        raise typer.Exit(int(_send(opened, runs, tracking, directory)))
    if directory is None:
        assert table is not None
        _print_table(opened, runs, table)
        return
    with progress_bar("runs", len(runs)) as on_run:
        rows = export_tables(opened, runs, directory, to, on_run)
    counts = ", ".join(f"{count} {name}" for name, count in rows.items())
    echo_line(f"Wrote {counts} to {directory}.", err=True)
    echo(str(directory))


def _check_options(
    to: str,
    directory: Path | None,
    *,
    table: str | None,
    step: int | None,
    fields: Sequence[str] | None,
) -> None:
    """Refuse an unknown format, and options that do not apply to the format.

    Raises:
        ConfigError: there is one.
    """
    from advsweep.report.data.export import FORMATS

    names = ["hf", *FORMATS, *(name for name in TRACKINGS if name != "none")]
    if to not in names:
        raise ConfigError(f"--to: no format is called '{to}'; {nearest(to, names, f'{VALUES}.to')}")
    if step is not None and to != "hf":
        raise ConfigError(f"--step: expected --to hf, got --to {to}")
    if fields and to not in TRACKINGS:
        raise ConfigError(f"--set: expected --to with a tracker, got --to {to}")
    if to in FORMATS and directory is None:
        fits = to == "csv" and table is not None
    else:
        fits = table is None
    if not fits:
        raise ConfigError("--table: expected it with --to csv and without DIR, and DIR otherwise")


def _refuse_sweep(store: Store, target: str) -> None:
    """Refuse a sweep where the weights of a run are meant.

    Raises:
        ConfigError: it is one.
    """
    if target in store.sweeps.names():
        raise ConfigError(
            f"expected a run, whose weights are written, got the sweep {target}; `--to csv` and "
            "`--to parquet` write its tables, `--to wandb` sends it to a tracker"
        )


def _refuse_other_files(directory: Path) -> None:
    """Refuse a folder with files that no export has written.

    Raises:
        ConfigError: there are such files.
    """
    if not directory.is_dir():
        return
    names = sorted(path.name for path in directory.iterdir())
    if names and not _WRITTEN.intersection(names):
        raise ConfigError(
            f"DIR: expected a new folder, an empty one, or that of an earlier export, got "
            f"{directory} with other files, such as {names[0]}; name another folder"
        )


def _export_weights(store: Store, record: RunRecord, step: int | None, directory: Path) -> None:
    run = trained_run(record, store)
    last = record.step if step is None else step
    run.backend.export(run, record.directory, last, directory)
    echo_line(f"Wrote run {record.id} after step {last} to {directory}.", err=True)
    echo(str(directory))


def _print_table(store: Store, runs: Sequence[RunRecord], table: str) -> None:
    """Print a table as CSV."""
    from advsweep.report.data.export import export_tables

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "tables"
        with progress_bar("runs", len(runs)) as on_run:
            export_tables(store, runs, folder, "csv", on_run)
        with (folder / f"{table}.csv").open(encoding="utf-8", newline="") as file:
            while text := file.read(1 << 20):
                echo_rendered(text)


def _tracking(name: str, fields: Sequence[str], directory: Path | None) -> Tracking:
    """Return the tracking that writes to a folder, or to the tracker's own place.

    Raises:
        ConfigError: a field does not exist, has no value or several, or the folder decides it.
    """
    settings = parse_assignments(fields)
    tracking: Tracking = TRACKINGS.build({**settings, "name": name}, where="tracking")
    if directory is not None:
        before = tracking.plain()
        tracking = tracking.in_folder(directory)
        after = tracking.plain()
        decided = [key for key in settings if before[key] != after[key]]
        if decided:
            raise ConfigError(
                f"--set {decided[0]}: expected other fields, as DIR decides where runs go; omit DIR"
            )
    tracking.check()
    return tracking


def _send(
    store: Store, runs: Sequence[RunRecord], tracking: Tracking, directory: Path | None
) -> bool:
    """Send runs to a tracker; return whether one could not be sent."""
    if directory is not None:
        (directory / _MARK).mkdir(parents=True, exist_ok=True)
    with without_prompts(), progress_bar("runs", len(runs)) as on_run:
        results = []
        for result in sync(store, runs, tracking):
            results.append(result)
            on_run(len(results))
    counts = Counter(what for _, what, _ in results)
    shown = ", ".join(f"{count} {what}" for what, count in counts.items()) or "no runs"
    echo_line(f"{tracking.name}: {shown}", err=True)
    for run_id, what, reason in [each for each in results if each[2]][:_LISTED]:
        echo_line(f"  run {run_id} {what}: {reason}", err=True)
    if directory is not None:
        echo(str(directory))
    return counts["failed"] > 0
