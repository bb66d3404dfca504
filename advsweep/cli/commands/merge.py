"""`advsweep merge`: copy the contents of another store into this one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli import options
from advsweep.cli.options import RecordFormat
from advsweep.cli.output import echo_line, progress_bar, warn
from advsweep.errors import StoreError, counted

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.store.merge import MergeResult


def merge(
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The store to read: a path or a URL.")
    ],
    store: options.Store = None,
    other_runs: Annotated[
        Path | None,
        typer.Option(
            "--other-runs", metavar="DIR", help="Its folder of runs (default: next to the store)."
        ),
    ] = None,
    folders: Annotated[
        bool,
        typer.Option("--folders/--no-folders", help="Copy the runs' folders with checkpoints."),
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would change; change nothing.")
    ] = False,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Copies runs, evaluations and sweeps. Runs are matched by identity. If both stores have the
    run done, this store's copy stays and the results are compared. A done run replaces an
    unfinished one; of two unfinished ones the one with more steps stays. Running runs are skipped.
    Executors and trackers of sweeps are not copied. A store with a value that advsweep cannot have
    written, or with another schema, is refused as a whole. Merging again changes nothing; the other
    store never changes.

    The folders of copied runs, with logs and checkpoints, are copied too. With --no-folders, copied
    runs can be reported but not exported, and unfinished ones restart from step 0.

    Examples:
        advsweep merge ../other/advsweep.db --dry-run
        advsweep merge ../other/advsweep.db
    """
    from advsweep.cli.output import print_json
    from advsweep.store import open_store
    from advsweep.store.merge import merge as merge_stores

    with (
        open_store(other, create=False) as source,
        open_store(store, create=not dry_run) as target,
        progress_bar("runs") as on_run,
    ):
        if folders:
            source.runs_directory = _folder(other, source, other_runs)
        merged = merge_stores(target, source, folders=folders, dry_run=dry_run, on_run=on_run)
    if output is RecordFormat.JSON:
        print_json(_record(merged))
    else:
        _print(merged, f"{source.name} into {target.name}", dry_run=dry_run)


def _folder(other: str, source: Store, chosen: Path | None) -> Path:
    """Returns the other store's folder of runs; $ADVSWEEP_RUNS belongs to the target store."""
    if chosen is not None:
        return chosen.absolute()
    beside = Path(other).absolute()
    beside = beside.with_name(f"{beside.stem}-runs")
    if beside.is_symlink():
        raise StoreError(
            f"{beside}: expected a folder, got a symbolic link; if you created it, pass "
            f"--other-runs {beside.resolve()}, otherwise pass --no-folders"
        )
    return beside if beside.is_dir() else source.runs_directory


def _record(merged: MergeResult) -> dict[str, Any]:
    return {
        **{fate.name.lower(): ids for fate, ids in merged.ids().items()},
        "reasons": merged.left_out,
        "differing": merged.differing,
        "without_folder": [run.id for run in merged.without_folder],
        "not_copied": [str(path) for path in merged.not_copied],
        "sweeps": merged.sweeps,
        "evaluations": merged.evaluations,
    }


def _print(merged: MergeResult, what: str, *, dry_run: bool) -> None:
    counts = ", ".join(f"{len(ids)} {fate.value}" for fate, ids in merged.ids().items() if ids)
    parts = [f"runs: {counts or 'none'}"]
    parts.append(f"evaluations added: {merged.evaluations}")
    parts.append(f"sweeps added: {', '.join(merged.sweeps) or 'none'}")
    echo_line(f"{what}{' (nothing was changed)' if dry_run else ''}")
    for part in parts:
        echo_line(f"  {part}")
    for run_id, reason in merged.left_out.items():
        warn(f"skipped run {run_id} of the other store: {reason}")
    if merged.not_copied:
        warn(
            f"not copied: {counted(len(merged.not_copied), 'path')} (links, special files, outputs "
            f"of commands), first {merged.not_copied[0]}; --format json lists all"
        )
    for run_id, difference in merged.differing.items():
        warn(f"run {run_id} of the other store is done in both and differs: {difference}")
    if merged.without_folder:
        warn(
            f"{counted(len(merged.without_folder), 'run')} copied without a folder of checkpoints "
            "and logs"
        )
