"""`advsweep show`: everything about a run."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli import options, runs
from advsweep.cli.output import print_json
from advsweep.store import open_store

EXAMPLES = (
    "advsweep show last",
    "advsweep show last --full",
    "advsweep show 12 --format json",
)


def show(
    run: options.Run,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Print every config key, the environment and all metrics.",
        ),
    ] = False,
    store: options.Store = None,
    output_format: options.RecordFormat = "text",
) -> None:
    """Show a run: what is special about its config, and its results.

    Also says where its folder and its checkpoints are, and why it failed. The defaults are those
    of a run without any setting, for each component that it has.
    """
    opened = open_store(store, create=False)
    record = opened.runs.find(run)
    if output_format == "json":
        print_json(runs.full_record(opened, record))
    else:
        runs.print_run(opened, record, full=full)
