"""`advsweep watch`: a full-screen view of a store's runs."""

from __future__ import annotations

import sys

from advsweep.cli.shared import options
from advsweep.errors import ConfigError


def watch(
    sweep: options.SweepName = None,
    store: options.Store = None,
    run_code: options.RunCode = False,
    run_code_as_root: options.RunCodeAsRoot = False,
) -> None:
    """Watch runs in a full-screen view: progress, curves, logs; stop and restart them.

    Keys: / filter, enter log, s stop, r start again, q leave. Leaving stops nothing.
    """
    from advsweep.store import open_store

    # Runs that are started again are children of this process.
    options.give_consent(run_code, run_code_as_root)
    if not sys.stdout.isatty():
        raise ConfigError("expected a terminal, got none; `advsweep status` prints how runs stand")
    with open_store(store, create=False) as opened:
        opened.runs.count_by_status(sweep)  # refuses an unknown sweep before the screen opens
        from advsweep.cli.shared.screen import Watch

        Watch(opened, sweep).run()
