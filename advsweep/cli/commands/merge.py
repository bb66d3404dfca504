"""`advsweep merge`: copy another store into this one."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.output import echo_line, progress_bar, warn
from advsweep.store import open_store
from advsweep.store.merge import merge as merge_stores

EXAMPLES = (
    "advsweep merge ../other/advsweep.db --dry-run",
    "advsweep merge ../other/advsweep.db",
)


def merge(
    other: Annotated[
        str,
        typer.Argument(
            show_default=False,
            metavar="OTHER",
            help="The store to read: a path or a URL.",
        ),
    ],
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print what would change; change nothing.",
        ),
    ] = False,
    store: options.Store = None,
) -> None:
    """Copy the contents of another store into this one.

    Copies runs, evaluations and sweeps. Runs are matched by identity. If both stores have the
    run done, this store's copy stays. A done run replaces an unfinished one; of two unfinished ones
    the one with more steps stays. Running runs are skipped. Executors and trackers of sweeps are
    not copied. A store with a value that advsweep cannot have written, or with another schema, is
    refused as a whole. Merging again changes nothing; the other store never changes.

    The folders of runs, with logs and checkpoints, stay where they are. Copied runs can be
    reported; to resume or export them, copy their folders into this store's folder of runs.
    """
    with (
        open_store(other, create=False) as source,
        open_store(store, create=not dry_run) as target,
        progress_bar("runs") as on_run,
    ):
        merged = merge_stores(target, source, dry_run=dry_run, on_run=on_run)
    counts = ", ".join(f"{len(runs)} {fate.value}" for fate, runs in merged.runs.items() if runs)
    unchanged = " (nothing was changed)" if dry_run else ""
    echo_line(f"{source.name} into {target.name}{unchanged}")
    echo_line(f"  runs: {counts or 'none'}")
    echo_line(f"  sweeps added: {', '.join(merged.sweeps) or 'none'}")
    for run_id, reason in merged.left_out.items():
        warn(f"skipped run {run_id} of the other store: {reason}")
