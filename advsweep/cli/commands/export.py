"""`advsweep export`: write weights, or the data of runs, in a format that other programs load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_export_format, complete_target
from advsweep.cli.output import echo, echo_line, progress_bar
from advsweep.errors import ConfigError, nearest

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.tracking.base import Tracking

WEIGHTS = "hf"

_MARK = ".advsweep"
"""An empty folder within the target of an export to a tracker."""

_WRITTEN = {_MARK, "config.json"}
"""Files by which the folder of an earlier export is known."""


def export(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|SWEEP",
            help="A run's id, the start of its identity, or 'last'; or a sweep's name.",
            autocompletion=complete_target,
        ),
    ],
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder to create or to add to.")
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="hf: a run's weights, in a folder that transformers loads. parquet, csv: tables "
            "of runs, metrics, evaluations and problems. wandb, trackio, mlflow, tensorboard: "
            "the runs in the tracker's own files.",
            autocompletion=complete_export_format,
        ),
    ] = WEIGHTS,
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            min=0,
            help="hf: use the weights after this step (default: last; 0: base model).",
        ),
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--option",
            metavar="FIELD=VALUE",
            help="Trackers: set a field of tracking=FORMAT, such as project=mine; may be "
            "repeated (default: the tracker's defaults).",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="hf and trackers: write into a folder that has other files."),
    ] = False,
    store: options.Store = None,
) -> None:
    """Tables are replaced when a sweep is exported again; trackers show each run once.
    No tracker needs an account or a network; `advsweep sync` sends runs to servers. Trackers get no
    pending and running runs. Exits with code 1 if a run cannot be exported.

    Examples:
        advsweep export last weights
        advsweep export demo tables --to parquet
        advsweep export demo boards --to tensorboard
    """
    from advsweep.cli.runs import find_targets
    from advsweep.report.data.table_files import TABLE_FILES
    from advsweep.store import open_store
    from advsweep.sweep.registry import TRACKINGS

    if step is not None and to != WEIGHTS:
        raise ConfigError(f"--step: expected --to {WEIGHTS}, got --to {to}")
    if fields and to not in TRACKINGS:
        raise ConfigError(f"--option: expected --to with a tracker, got --to {to}")
    opened = open_store(store, create=False)
    if to not in TABLE_FILES and not force:  # tables are refused where they are written
        _refuse_other_files(directory)
    if to == WEIGHTS:
        _export_weights(opened, target, directory, step)
        return
    if to in TABLE_FILES:
        _export_tables(opened, find_targets(opened, [target]).runs, directory, to)
        return
    names = [WEIGHTS, *TABLE_FILES, *(name for name in TRACKINGS if name != "none")]
    if to not in names:
        raise ConfigError(f"--to: no format is called '{to}'; {nearest(to, names)}")
    tracking = _tracking(to, fields or [], directory)
    failed = _export_runs(opened, find_targets(opened, [target]).runs, tracking, directory)
    raise typer.Exit(1 if failed else 0)


def _refuse_other_files(directory: Path) -> None:
    """Refuses a folder with files, unless an export wrote some of them."""
    found = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    if found and not _WRITTEN.intersection(found):
        raise ConfigError(
            f"DIR: expected a new folder, an empty one, or that of an earlier export, got "
            f"{directory} with other files, such as {found[0]}; name another folder or pass --force"
        )


def _export_weights(store: Store, key: str, directory: Path, step: int | None) -> None:
    from advsweep.backends.build import build_run

    record = store.runs.find(key)
    spec = build_run(record.config)
    last = record.step if step is None else step
    spec.backend.export(spec, record.directory, last, directory)
    echo_line(f"Wrote run {record.id} after step {last} to {directory}.", err=True)
    echo(str(directory))


def _export_tables(store: Store, runs: Sequence[RunRecord], directory: Path, form: str) -> None:
    from advsweep.report.data.table_files import write_tables
    from advsweep.report.data.tidy_tables import tidy_tables

    with progress_bar("runs", len(runs)) as on_run:
        rows = write_tables(tidy_tables(store, runs, on_run), directory, form)
    counts = ", ".join(f"{count} {name}" for name, count in rows.items())
    echo_line(f"Wrote {counts} to {directory}.", err=True)
    echo(str(directory))


def _tracking(name: str, fields: Sequence[str], directory: Path) -> Tracking:
    """Returns the tracking that writes to a folder.

    Raises:
        ConfigError: a field does not exist, or the folder decides it.
    """
    from advsweep.cli.tracking_options import parse_fields
    from advsweep.sweep.registry import TRACKINGS

    given: Plain = parse_fields(fields)
    plain = TRACKINGS.build({"name": name, **given}, where="tracking")
    tracking = plain.in_folder(directory)
    before, after = plain.plain(), tracking.plain()
    decided = sorted(key for key in given if before[key] != after[key])
    if decided:
        raise ConfigError(
            f"--option {decided[0]}: expected other fields, as DIR decides where runs go; "
            f"`advsweep sync {name}` sends them elsewhere"
        )
    tracking.check()
    return tracking


def _export_runs(
    store: Store, runs: Sequence[RunRecord], tracking: Tracking, directory: Path
) -> bool:
    """Returns whether a run could not be exported."""
    from advsweep.cli.execution import without_prompts
    from advsweep.cli.tracking_options import print_synced
    from advsweep.sweep.tracking.client import sync

    (directory / _MARK).mkdir(parents=True, exist_ok=True)
    try:
        with without_prompts(), progress_bar("runs", len(runs)) as on_run:
            synced = sync(store, runs, lambda run: tracking, on_run)
    except KeyboardInterrupt:
        # A normal exit would wait for the tracker's service in its exit handlers.
        os._exit(130)
    print_synced(tracking.name, synced, err=True)
    echo(str(directory))
    return bool(synced.failed)
