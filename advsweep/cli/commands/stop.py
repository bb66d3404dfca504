"""`advsweep stop`: ask runs to stop."""

from __future__ import annotations

from advsweep.cli import options, runs
from advsweep.cli.output import echo
from advsweep.store import open_store
from advsweep.sweep.stop_runs import request_stops

EXAMPLES = (
    "advsweep stop 12",
    "advsweep stop demo",
)


def stop(
    targets: options.Targets,
    store: options.Store = None,
) -> None:
    """Stop runs after each has written a checkpoint.

    The runs end as interrupted. Also prevents pending, interrupted and lost runs from being
    started by a worker or a queued job. The runs stay stopped until `advsweep retry`, or their
    `run` or `sweep` command, starts them again.
    """
    with open_store(store, create=False) as opened:
        done = request_stops(opened, runs.find_targets(opened, targets).runs)
    echo(done, err=True)
