"""`advsweep show`: everything about a run."""

from __future__ import annotations

from advsweep.cli import options, runs
from advsweep.cli.output import print_json
from advsweep.store import open_store

EXAMPLES = (
    "advsweep show last",
    "advsweep show 12 --format json",
)


def show(
    run: options.Run,
    store: options.Store = None,
    output_format: options.RecordFormat = "text",
) -> None:
    """Show a run: config, environment, metrics and evaluations.

    Also says where its folder and its checkpoints are, and why it failed.
    """
    opened = open_store(store, create=False)
    record = opened.runs.find(run)
    if output_format == "json":
        print_json(runs.full_record(opened, record))
    else:
        runs.print_run(opened, record)
