"""`advsweep show`: print everything that the store holds about one run."""

from __future__ import annotations

from advsweep.cli import options
from advsweep.cli.options import RecordFormat


def show(
    run: options.RunKey, store: options.Store = None, output: options.Record = RecordFormat.TEXT
) -> None:
    """Examples:
    advsweep show last
    advsweep show 12 --format json
    """
    from advsweep.cli import runs
    from advsweep.cli.output import print_json
    from advsweep.store import open_store

    opened = open_store(store, create=False)
    record = opened.runs.find(run)
    if output is RecordFormat.JSON:
        print_json(runs.full_record(opened, record))
    else:
        runs.print_run(opened, record)
