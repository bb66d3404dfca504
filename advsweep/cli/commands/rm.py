"""`advsweep rm`: delete runs, sweeps, or evaluations of models."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.output import echo, warn
from advsweep.cli.runs import find_targets
from advsweep.errors import ConfigError, NotFoundError, StoreError, counted, reason_of
from advsweep.store import RunRecord, Status, Store, open_store
from advsweep.store.run_folders import owner_of

EXAMPLES = (
    "advsweep rm 12 --force",
    "advsweep rm demo --force --yes",
)


def rm(
    targets: options.Targets,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Do not ask for confirmation.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also delete completed runs.",
        ),
    ] = False,
    models: Annotated[
        bool,
        typer.Option(
            "--models",
            help="Delete evaluations of models instead, named by model or start of an identity "
            "as in `ls --models`.",
        ),
    ] = False,
    store: options.Store = None,
) -> None:
    """Delete runs with their records, checkpoints and folders.

    Deleting a sweep deletes its runs, except those that another sweep shares. Deletion cannot be
    undone. Refuses to delete running runs.
    """
    with open_store(store, create=False) as opened:
        if models:
            _remove_models(opened, targets, yes=yes)
            return
        meant = find_targets(opened, targets)
        # Runs that were named individually, and those that no other sweep has.
        runs = [
            run
            for run in meant.runs
            if run.id in meant.named or not set(run.sweeps) - set(meant.sweeps)
        ]
        _refuse(runs, force=force)
        if not yes:
            states = Counter(run.status.value for run in runs)
            counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            sweeps = f"sweep {', '.join(meant.sweeps)} and " if meant.sweeps else ""
            _confirm(f"{sweeps}{counted(len(runs), 'run')} ({counts or 'none'})")
        # The store first: a folder without a run does no harm, a run without its folder does.
        opened.runs.remove([run.id for run in runs])
        for sweep in meant.sweeps:
            opened.sweeps.remove(sweep)
        for run in runs:
            remove_folder(opened, run)
    kept = len(meant.runs) - len(runs)
    shared = f"; kept {kept} that other sweeps share" if kept else ""
    echo(f"Deleted {counted(len(runs), 'run')}{shared}.", err=True)


def _refuse(runs: Sequence[RunRecord], *, force: bool) -> None:
    """Refuse to delete runs that are trained now, and without `force` those that are done.

    Raises:
        ConfigError: there are such runs.
    """
    running = [run.id for run in runs if run.status is Status.RUNNING]
    if running:
        raise ConfigError(
            f"refusing to delete {counted(len(running), 'running run')}, such as run "
            f"{running[0]}; stop it with `advsweep stop {running[0]}`"
        )
    done = [run.id for run in runs if run.status is Status.DONE]
    if done and not force:
        raise ConfigError(
            f"refusing to delete {counted(len(done), 'completed run')}, such as run {done[0]}; "
            "pass --force to delete them"
        )


def _remove_models(store: Store, targets: Sequence[str], *, yes: bool) -> None:
    evaluations = store.evaluations.of_models()
    identities: set[str] = set()
    for target in targets:
        named = [e.identity for e in evaluations if e.settings["model"] == target]
        matching = [e.identity for e in evaluations if e.identity.startswith(target)]
        if not named and len(matching) != 1:
            raise NotFoundError(
                f"expected an evaluated model or the start of one evaluation's identity, got "
                f"'{target}', which matches {len(matching)}; `advsweep ls --models` lists them"
            )
        identities.update(named or matching)
    if not yes:
        _confirm(f"{counted(len(identities), 'evaluation')} of models")
    store.evaluations.remove_of_models(sorted(identities))
    echo(f"Deleted {counted(len(identities), 'evaluation')} of models.", err=True)


def remove_folder(store: Store, run: RunRecord) -> None:
    """Delete a run's folder if it lies in the store's folder of runs and belongs to this run.

    The store may come from someone else, so its path alone is not a reason to delete a folder.

    Raises:
        StoreError: the folder could not be deleted.
    """

    directory = run.directory
    inside = directory.parent == store.runs_directory
    if not inside or directory.is_symlink() or not directory.is_dir():
        return
    if owner_of(directory) != run.identity:
        warn(
            f"kept {directory}: its manifest does not name run {run.id}; check the folder and "
            "delete it yourself"
        )
        return
    try:
        shutil.rmtree(directory)
    except OSError as error:
        raise StoreError(
            f"{directory}: the run is deleted from the store, but its folder could not be deleted "
            f"({reason_of(error)}); delete it yourself"
        ) from error


def _confirm(what: str) -> None:
    if not sys.stdin.isatty():
        raise ConfigError("expected a terminal to ask for confirmation, got none; pass --yes")
    typer.confirm(f"Permanently delete {what}?", abort=True)
