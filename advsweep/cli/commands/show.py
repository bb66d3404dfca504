"""`advsweep show`: shows everything that the store holds of one run."""

from __future__ import annotations

from advsweep.cli.shared import options
from advsweep.cli.shared.options import RecordFormat


def show(
    run: options.RunKey, store: options.Store = None, output: options.Record = RecordFormat.TEXT
) -> None:
    """Show a run: its config, where and how it ran, its metrics and its evaluations."""
    from advsweep.cli.shared import run_record
    from advsweep.cli.shared.output import print_json
    from advsweep.store import open_store

    opened = open_store(store, create=False)
    record = opened.runs.find(run)
    if output is RecordFormat.JSON:
        print_json(run_record.whole(opened, record))
    else:
        run_record.print_whole(opened, record)
