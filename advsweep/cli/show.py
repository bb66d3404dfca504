"""`advsweep show`: everything that the store holds of one run."""

from __future__ import annotations

from advsweep.cli import options
from advsweep.cli.options import RecordFormat


def show(
    run: options.RunKey, store: options.Store = None, output: options.Record = RecordFormat.TEXT
) -> None:
    """Show a run: its config, where and how it ran, its metrics and its evaluations."""
    from advsweep.cli import records
    from advsweep.cli.output import print_json
    from advsweep.store import open_store

    opened = open_store(store, create=False)
    record = opened.find_run(run)
    if output is RecordFormat.JSON:
        print_json(records.whole(opened, record))
    else:
        records.print_whole(opened, record)
