"""`advsweep watch`: watch runs in a full-screen view."""

from __future__ import annotations

import sys

from advsweep.cli import options
from advsweep.errors import ConfigError


def watch(
    sweep: options.SweepName = None,
    store: options.Store = None,
    run_code: options.RunCode = False,
) -> None:
    """Shows progress, curves and logs. Keys: / filter, enter log, s stop, r restart, q quit.
    Quitting stops no run.

    Examples:
        advsweep watch
        advsweep watch demo
    """
    from advsweep.store import open_store

    # Restarted runs are children of this process and inherit its consent.
    options.give_consent(run_code)
    if not sys.stdout.isatty():
        raise ConfigError("expected a terminal, got none; use `advsweep status` instead")
    with open_store(store, create=False) as opened:
        opened.runs.count_by_status(sweep)  # raises for an unknown sweep
        from advsweep.cli.screen import Watch

        Watch(opened, sweep).run()
