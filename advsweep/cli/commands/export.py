"""`advsweep export`: write a run's weights in a format that other programs load."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.output import echo, echo_line


class ExportFormat(Enum):
    """Format of an export."""

    HF = "hf"


def export(
    run: options.RunKey,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create.")],
    to: Annotated[
        ExportFormat, typer.Option("--to", help="hf: a folder that transformers loads.")
    ] = ExportFormat.HF,
    step: Annotated[
        int | None,
        typer.Option(
            "--step", min=0, help="Use the weights after this step (default: last; 0: base model)."
        ),
    ] = None,
    store: options.Store = None,
) -> None:
    """Write a checkpoint as a folder that transformers loads."""
    from advsweep.backends.build import build_run
    from advsweep.store import open_store

    opened = open_store(store, create=False)
    record = opened.runs.find(run)
    spec = build_run(record.config)
    last = record.step if step is None else step
    spec.backend.export(spec, record.directory, last, directory)
    echo_line(f"Wrote run {record.id} after step {last} to {directory}.", err=True)
    echo(str(directory))
