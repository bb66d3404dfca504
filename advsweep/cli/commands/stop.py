"""`advsweep stop`: has runs write a checkpoint and end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.output import echo, echo_line

if TYPE_CHECKING:
    from advsweep.store import Store


def stop(
    targets: options.Targets,
    kill: Annotated[
        bool,
        typer.Option("--kill", help="End processes of this machine at once, without a checkpoint."),
    ] = False,
    store: options.Store = None,
) -> None:
    """Stop runs: they write a checkpoint and end as interrupted.

    Runs that wait for their turn, or could be taken up again by a worker or by a job that is
    queued, are not started. All stay so until they are started again by `advsweep retry`, or by
    the `run` or `sweep` that made them.
    """
    from advsweep.cli.shared.targets import find_targets
    from advsweep.store import Status, open_store

    with open_store(store, create=False) as opened:
        runs = find_targets(opened, targets).runs
        running = [run for run in runs if run.status is Status.RUNNING]
        open_ = (Status.PENDING, Status.INTERRUPTED, Status.LOST)
        waiting = [run for run in runs if run.status in open_]
        for run in [*running, *waiting]:
            opened.leases.request_stop(run.id)
        killed = [run for run in running if kill and _kill(opened, run.id)]
    echo(
        f"asked {len(running)} running and {len(waiting)} waiting runs to stop; "
        f"{len(runs) - len(running) - len(waiting)} had ended before",
        err=True,
    )
    if kill:
        elsewhere = len(running) - len(killed)
        rest = f"; {elsewhere} are elsewhere, not advsweep's, or just ended" if elsewhere else ""
        echo_line(f"killed {len(killed)} processes{rest}", err=True)


def _kill(store: Store, run_id: int) -> bool:
    """Whether there was a process on this machine to kill."""
    import os
    import signal

    owner = store.leases.owner(run_id)
    # The pid alone may be another process's by now, and others may write to the store.
    if owner is None or not owner.is_here() or owner.has_ended():
        return False
    if not _is_advsweep(owner.pid):
        return False
    try:
        os.kill(owner.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _is_advsweep(pid: int) -> bool:
    """Whether a process's command line names advsweep; true where the system does not tell."""
    import os
    from pathlib import Path

    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return not Path("/proc/self/cmdline").exists()
    # Not the folders: Python itself may lie below one of that name.
    return any(b"advsweep" in os.path.basename(word) for word in words)
