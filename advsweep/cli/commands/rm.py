"""`advsweep rm`: removes runs and all that there is of them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.output import echo, echo_line
from advsweep.errors import ConfigError, NotFoundError, StoreError

if TYPE_CHECKING:
    from advsweep.cli.shared.targets import Targets
    from advsweep.store import RunRecord, Store


def rm(
    targets: options.Targets,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Remove runs that are done, too.")] = False,
    models: Annotated[
        bool,
        typer.Option(
            "--models",
            help="Remove evaluations of models without a run, named as `ls --models` lists them: "
            "by the model or by the start of an identity.",
        ),
    ] = False,
    store: options.Store = None,
) -> None:
    """Remove runs: their records, metrics, evaluations, checkpoints and folders.

    A sweep goes with its runs, but for those that are part of another sweep too. Nothing can be
    brought back; running runs are refused.
    """
    from advsweep.cli.shared.targets import find_targets
    from advsweep.store import open_store

    with open_store(store, create=False) as opened:
        if models:
            _remove_models(opened, targets, yes=yes)
            return
        found = find_targets(opened, targets)
        runs = _removed(found)
        _refuse(runs, force=force)
        if not yes:
            _ask(runs, found.sweeps)
        opened.runs.remove([run.id for run in runs])
        for sweep in found.sweeps:
            opened.sweeps.remove(sweep)
        for run in runs:
            remove_folder(opened, run)
    kept = len(found.runs) - len(runs)
    echo(
        f"removed {len(runs)} runs" + (f"; kept {kept} that other sweeps share" if kept else ""),
        err=True,
    )


def _remove_models(store: Store, targets: Sequence[str], *, yes: bool) -> None:
    evaluations = store.evaluations.of_models()
    found: set[str] = set()
    for target in targets:
        named = [e.identity for e in evaluations if e.settings["model"] == target]
        begun = [e.identity for e in evaluations if e.identity.startswith(target)]
        if not named and len(begun) != 1:
            raise NotFoundError(
                f"expected a model that was evaluated or the start of one evaluation's identity, "
                f"got '{target}', which is that of {len(begun)}; `advsweep ls --models` lists them"
            )
        found.update(named or begun)
    if not yes:
        _confirm(f"{len(found)} evaluations of models")
    store.evaluations.remove_of_models(sorted(found))
    echo_line(f"removed {len(found)} evaluations of models", err=True)


def remove_folder(store: Store, run: RunRecord) -> None:
    """Deletes a run's folder, if it is one, lies where the store keeps its runs and is the run's.

    Raises:
        StoreError: it could not be deleted.
    """
    import shutil

    from advsweep.store.run_folders import owners

    directory = run.directory
    inside = directory.parent == store.runs_directory
    if not inside or directory.is_symlink() or not directory.is_dir():
        return
    if owners(directory) != {run.identity}:
        echo_line(
            f"advsweep: {directory} was left, as no manifest in it names run {run.id} alone; look "
            "at it and delete it yourself",
            err=True,
        )
        return
    try:
        shutil.rmtree(directory)
    except OSError as error:
        raise StoreError(
            f"{directory}: the run is removed from the store, but its folder could not be deleted "
            f"({error}); delete it yourself"
        ) from error


def _removed(found: Targets) -> list[RunRecord]:
    """The runs to remove: those that were named, and those of no other sweep."""
    return [
        run
        for run in found.runs
        if run.id in found.named or not set(run.sweeps) - set(found.sweeps)
    ]


def _refuse(runs: Sequence[RunRecord], *, force: bool) -> None:
    from advsweep.store import Status

    running = [run.id for run in runs if run.status is Status.RUNNING]
    if running:
        raise ConfigError(
            f"expected runs that no process has, got {len(running)} that are running, such as "
            f"{running[0]}; `advsweep stop {running[0]}` stops it"
        )
    done = [run.id for run in runs if run.status is Status.DONE]
    if done and not force:
        raise ConfigError(
            f"expected runs that came to no good end, got {len(done)} that are done, such as "
            f"{done[0]}; --force removes them too"
        )


def _ask(runs: Sequence[RunRecord], sweeps: Sequence[str]) -> None:
    states = Counter(run.status.value for run in runs)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    what = f"sweep {', '.join(sweeps)} and " if sweeps else ""
    _confirm(f"{what}{len(runs)} runs ({counts or 'none'})")


def _confirm(what: str) -> None:
    if not sys.stdin.isatty():
        raise ConfigError("expected a terminal to ask on, got none; --yes removes without asking")
    typer.confirm(f"remove {what} for good?", abort=True)
