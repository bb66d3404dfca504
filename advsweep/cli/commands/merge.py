"""`advsweep merge`: what another store holds, put into this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.options import RecordFormat
from advsweep.cli.shared.output import echo, echo_line
from advsweep.errors import StoreError

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.store.merge import MergeResult

LISTED = 20


def merge(
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The store to read: a path or a URL.")
    ],
    store: options.Store = None,
    other_runs: Annotated[
        Path | None,
        typer.Option(
            "--other-runs", metavar="DIR", help="The folder of its runs (default: beside it)."
        ),
    ] = None,
    folders: Annotated[
        bool,
        typer.Option("--folders/--no-folders", help="Copy the runs' folders, with checkpoints."),
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")
    ] = False,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Put the runs, evaluations and sweeps of another store into this one.

    A run is known by its identity. One that is done in both stays as it is here, and the
    results are compared; a done one takes the place of an unfinished one, and of two unfinished
    ones the one with more steps stays. Runs that are being trained are left out, and so is
    whatever advsweep cannot have written. Executors and trackers of sweeps are left behind.
    Merging again changes nothing, and the other store stays as it is.

    The folders of the runs that are taken, with logs and checkpoints, are copied as well. With
    --no-folders such runs can be reported, but not exported, and unfinished ones begin anew.
    """
    from advsweep.cli.shared.output import print_json
    from advsweep.store import open_store
    from advsweep.store.merge import merge as merge_stores

    with (
        open_store(other, create=False) as source,
        open_store(store, create=not dry_run) as target,
        _progress() as on_run,
    ):
        if folders:
            source.runs_directory = _folder(other, source, other_runs)
        merged = merge_stores(target, source, folders=folders, dry_run=dry_run, on_run=on_run)
    if output is RecordFormat.JSON:
        print_json(_record(merged))
    else:
        _print(merged, f"{source.name} into {target.name}", dry_run=dry_run)


def _folder(other: str, source: Store, chosen: Path | None) -> Path:
    """The folder of the other store's runs; $ADVSWEEP_RUNS is that of the store merged into."""
    if chosen is not None:
        return chosen.absolute()
    beside = Path(other).absolute()
    beside = beside.with_name(f"{beside.stem}-runs")
    if beside.is_symlink():
        raise StoreError(
            f"{beside}: expected a folder, got a link, which may lead anywhere; if you made it, "
            f"give --other-runs {beside.resolve()}, else --no-folders"
        )
    return beside if beside.is_dir() else source.runs_directory


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("runs")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _record(merged: MergeResult) -> dict[str, Any]:
    return {
        **{fate.name.lower(): ids for fate, ids in merged.ids().items()},
        "reasons": merged.left_out,
        "differing": merged.differing,
        "without_folder": [run.id for run in merged.without_folder],
        "refused": merged.refused,
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
        echo_line(f"advsweep: its run {run_id} was left out: {reason}", err=True)
    for line in merged.refused[:LISTED]:
        echo_line(f"advsweep: left out: {line}", err=True)
    if (more := len(merged.refused) - LISTED) > 0:
        echo_line(f"advsweep: left out: {more} more; --format json has them all", err=True)
    for run_id, difference in merged.differing.items():
        echo_line(f"advsweep: its run {run_id} is done in both and differs: {difference}", err=True)
    if merged.without_folder:
        echo(
            f"advsweep: {len(merged.without_folder)} runs came without their folder (checkpoints "
            "and logs)",
            err=True,
        )
