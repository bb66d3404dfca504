"""`advsweep stop`: ask runs to stop."""

from __future__ import annotations

from advsweep.cli import options, runs
from advsweep.cli.output import echo
from advsweep.errors import counted
from advsweep.store import Status, open_store

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
        meant = runs.find_targets(opened, targets).runs
        running = [run for run in meant if run.status is Status.RUNNING]
        open_ = (Status.PENDING, Status.INTERRUPTED, Status.LOST)
        waiting = [run for run in meant if run.status in open_]
        # A waiting run is marked, too: a worker could claim it a moment later.
        for run in [*running, *waiting]:
            opened.leases.request_stop(run.id)
    echo(
        f"Requested a stop of {len(running)} running and {counted(len(waiting), 'waiting run')}; "
        f"{len(meant) - len(running) - len(waiting)} had already ended.",
        err=True,
    )
