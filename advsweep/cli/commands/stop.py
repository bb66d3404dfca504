"""`advsweep stop`: stop runs after they write a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli import options
from advsweep.cli.output import echo
from advsweep.errors import counted

if TYPE_CHECKING:
    from advsweep.store import Store


def stop(
    targets: options.Targets,
    kill: Annotated[
        bool,
        typer.Option("--kill", help="Kill processes on this machine now, without a checkpoint."),
    ] = False,
    store: options.Store = None,
) -> None:
    """The runs end as interrupted. Also prevents pending, interrupted and lost runs from being
    started by a worker or a queued job. The runs stay stopped until `advsweep retry`, or their
    `run` or `sweep` command, starts them again.

    Examples:
        advsweep stop 12
        advsweep stop demo
    """
    from advsweep.cli.runs import find_targets
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
        f"Requested a stop of {len(running)} running and {counted(len(waiting), 'waiting run')}; "
        f"{len(runs) - len(running) - len(waiting)} had already ended.",
        err=True,
    )
    if kill:
        left = len(running) - len(killed)
        rest = (
            f"; {left} are on other machines, have just ended, or are not advsweep" if left else ""
        )
        echo(f"Killed {counted(len(killed), 'process', 'processes')}{rest}.", err=True)


def _kill(store: Store, run_id: int) -> bool:
    """Kills the process of a run; returns whether it was running on this machine."""
    import os
    import signal

    owner = store.leases.owner(run_id)
    # The system may have reused the pid, and other users may write to the store.
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
    """Returns whether a command line names advsweep; true if the system does not show it."""
    import os
    from pathlib import Path

    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return not Path("/proc/self/cmdline").exists()
    # Compare file names only: the interpreter may be installed below a folder of that name.
    return any(b"advsweep" in os.path.basename(word) for word in words)
