"""`advsweep import`, `export`, `merge`, `rm` and `db`: what goes into a store and out of it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_export_format, complete_importer, complete_target
from advsweep.cli.options import RecordFormat
from advsweep.cli.output import echo, echo_line, echo_rendered, print_json, progress_bar, warn
from advsweep.errors import ConfigError, NotFoundError, StoreError, counted, first_of, nearest

if TYPE_CHECKING:
    from advsweep.importing import ImportSummary
    from advsweep.store import RunRecord, Store
    from advsweep.store.merge import MergeResult
    from advsweep.sweep.tracking.base import Tracking

_LISTED = 20


# import


def import_(
    form: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT",
            help="The format: csv, jsonl, lm-eval, tensorboard, trl, verl, wandb, or one of "
            "another package.",
            autocompletion=complete_importer,
        ),
    ],
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A file or a folder; for wandb also ENTITY/PROJECT."),
    ],
    sweep: str | None = None,
    assignments: list[str] | None = None,
    name_pattern: str | None = None,
    mapping: list[str] | None = None,
    by: str | None = None,
    rows: str | None = None,
    decimal: str | None = None,
    dry_run: bool = False,
    store: options.Store = None,
    how: options.Record = RecordFormat.TEXT,
) -> None:
    """Reports, plots and claims work on these runs as on others. Metrics get our names by the
    format's table; the others keep theirs. Values that are not numbers, incomplete lines and the
    like are left out and counted. Of a step that was logged twice the last value counts. Importing
    again adds what is new and nothing else. Imported runs are data: nothing in them is executed,
    and no worker trains them.

    Options:
        --sweep NAME: Add the runs to this sweep.
        --set KEY=VALUE (assignments): Set a config key of every run, such as
            estimator=grpo; may be repeated.
        --name-pattern PATTERN: Take config keys from the names of files or folders:
            '{estimator}-s{seed}'. Runs whose names do not match are left out.
        --map THEIRS=OURS (mapping): Rename a metric, as in train/score=reward/mean;
            NAME=step names the step. May be repeated; comes before the format's own table.
        --by COLUMN,...: Columns that tell the runs of one file apart (default: estimator,
            seed, run, run_id and run_name).
        --rows KEY,...: Config keys that alone tell settings apart (default: all that do not
            name folders, machines or times). Runs that differ in others are replicates.
        --decimal SIGN: The decimal sign of csv, . or , (default: a point, and no cell
            with a comma).
        --dry-run: Print what would be imported; change nothing.

    Examples:
        advsweep import csv log.csv --set estimator=grpo --set seed=0
        advsweep import tensorboard logs --name-pattern '{estimator}-s{seed}'
    """
    from advsweep.importing import import_runs
    from advsweep.logs import READERS
    from advsweep.logs.names import NamePattern, parse_settings
    from advsweep.store import open_store

    names = {}
    for text in mapping or ():
        # Names of metrics may have an = of their own, ours do not.
        theirs, _, ours = text.rpartition("=")
        if not theirs.strip() or not ours.strip():
            raise ConfigError(f"--map: expected THEIRS=OURS, got {text!r}")
        names[theirs.strip()] = ours.strip()
    node = form if decimal is None else {"name": form, "decimal": decimal}
    reader = READERS.build(node, where="FORMAT")
    settings = parse_settings(assignments or [])
    pattern = None if name_pattern is None else NamePattern(name_pattern)
    with open_store(store) as opened, progress_bar("runs") as on_run:
        summary = import_runs(
            opened,
            reader,
            source,
            settings=settings,
            pattern=pattern,
            names=names,
            by=_listed(by),
            rows=None if rows is None else _listed(rows),
            sweep=sweep,
            dry_run=dry_run,
            on_run=on_run,
        )
    if how is RecordFormat.JSON:
        print_json(
            {
                "runs": [
                    {
                        "source": source,
                        "id": written.run_id,
                        "action": written.action.value,
                        "seed": written.seed,
                        "steps": written.steps,
                        "new_steps": written.new_steps,
                        "points": written.points,
                        "evaluations": written.evaluations,
                    }
                    for source, written in summary.runs
                ],
                "renamed": summary.names.renamed,
                "kept": sorted(summary.names.kept),
                "left_out": summary.left_out,
                "unmatched": summary.unmatched,
                "notes": list(summary.notes),
            }
        )
    else:
        _print_imported(summary, dry_run=dry_run)


def _listed(text: str | None) -> list[str]:
    return [] if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _print_imported(summary: ImportSummary, *, dry_run: bool) -> None:
    def some(names: list[str]) -> str:
        return first_of(names, 8) or "nothing"

    actions = Counter(written.action for _, written in summary.runs)
    counts = ", ".join(f"{n} {action.value}" for action, n in actions.items())
    steps = sum(written.steps for _, written in summary.runs)
    new = sum(written.new_steps for _, written in summary.runs)
    evaluations = sum(written.evaluations for _, written in summary.runs)
    names = summary.names
    metrics = len({*names.kept, *names.renamed.values()})
    took = f"{counted(len(summary.runs), 'run')} ({counts or 'none'}), "
    took += f"{counted(f'{steps:,}', 'step')} ({new:,} new), {counted(metrics, 'metric')}"
    took += f", {counted(evaluations, 'evaluation')}" if evaluations else ""
    left = [f"{reason} ({count:,})" for reason, count in sorted(summary.left_out.items())]
    left += [f"name does not match: {some(summary.unmatched)}"] if summary.unmatched else []
    lines = [
        ("would take" if dry_run else "took", took),
        ("renamed", some([f"{a} -> {b}" for a, b in sorted(names.renamed.items())])),
        ("kept", some(sorted(names.kept))),
        ("left out", "; ".join(left) or "nothing"),
        *(("note", note) for note in summary.notes),
    ]
    for title, text in lines:
        echo_line(f"{title:<10} {text}")


# export

_MARK = ".advsweep"
"""An empty folder within the target of an export to a tracker."""

_WRITTEN = {_MARK, "config.json"}
"""Files by which the folder of an earlier export is known."""


class TableName(Enum):
    """Tables that are exported; see `report.data.export`."""

    RUNS = "runs"
    METRICS = "metrics"
    EVALUATIONS = "evaluations"
    PROBLEMS = "problems"


def export(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|SWEEP",
            help="A run's id, the start of its identity, or 'last'; or a sweep's name.",
            autocompletion=complete_target,
        ),
    ],
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="The folder to create or to add to. Without it trackers get runs in their own "
            "place or on their server, and --table is printed.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="hf: a run's weights, in a folder that transformers loads. parquet, csv: tables "
            "of runs, metrics, evaluations and problems. wandb, trackio, mlflow, tensorboard, or "
            "a plug-in's tracker.",
            autocompletion=complete_export_format,
        ),
    ] = "hf",
    table: TableName | None = None,
    step: int | None = None,
    fields: list[str] | None = None,
    store: options.Store = None,
) -> None:
    """Tables are replaced when a sweep is exported again. Trackers get the runs that are done,
    pruned, failed or interrupted: what they lack of each, or all of it where the tracker cannot
    tell. In a folder no tracker needs an account or a network. Exits with code 1 if a run cannot
    be sent.

    Options:
        --table: csv without DIR: print this table.
        --step N >= 0: hf: use the weights after this step (default: last; 0: base model).
        --set KEY=VALUE (fields): Trackers: set a field of tracking=FORMAT, such as
            project=mine; may be repeated (default: the tracker's defaults).

    Examples:
        advsweep export last weights
        advsweep export demo tables --to parquet
        advsweep export demo --to csv --table metrics > metrics.csv
        advsweep export demo boards --to tensorboard
        advsweep export demo --to wandb --set project=mine
    """
    from advsweep.cli.runs import find_targets
    from advsweep.report.data.export import FORMATS, export_tables
    from advsweep.store import open_store
    from advsweep.sweep.registry import TRACKINGS

    names = ["hf", *FORMATS, *(name for name in TRACKINGS if name != "none")]
    if to not in names:
        raise ConfigError(f"--to: no format is called '{to}'; {nearest(to, names)}")
    if step is not None and to != "hf":
        raise ConfigError(f"--step: expected --to hf, got --to {to}")
    if fields and to not in TRACKINGS:
        raise ConfigError(f"--set: expected --to with a tracker, got --to {to}")
    if (table is not None) is not (to in FORMATS and directory is None) or (
        table is not None and to != "csv"
    ):
        raise ConfigError("--table: expected it with --to csv and without DIR, and DIR otherwise")
    if directory is None and to == "hf":
        raise ConfigError("DIR: expected a folder for the weights, got none")
    opened = open_store(store, create=False)
    if directory is not None and to not in FORMATS:
        _refuse_other_files(directory)
    if to == "hf":
        assert directory is not None
        _export_weights(opened, target, directory, step)
        return
    runs = find_targets(opened, [target]).runs
    if to in TRACKINGS:
        tracking = _tracking(to, fields or [], directory)
        raise typer.Exit(int(_send(opened, runs, tracking, directory)))
    if directory is None:
        assert table is not None
        _print_table(opened, runs, table.value)
        return
    with progress_bar("runs", len(runs)) as on_run:
        rows = export_tables(opened, runs, directory, to, on_run)
    counts = ", ".join(f"{count} {name}" for name, count in rows.items())
    echo_line(f"Wrote {counts} to {directory}.", err=True)
    echo(str(directory))


def _refuse_other_files(directory: Path) -> None:
    """Refuse a folder with files, unless an export wrote some of them."""
    found = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    if found and not _WRITTEN.intersection(found):
        raise ConfigError(
            f"DIR: expected a new folder, an empty one, or that of an earlier export, got "
            f"{directory} with other files, such as {found[0]}; name another folder"
        )


def _export_weights(store: Store, key: str, directory: Path, step: int | None) -> None:
    from advsweep.backends.build import build_run

    record = store.runs.find(key)
    spec = build_run(record.config)
    last = record.step if step is None else step
    spec.backend.export(spec, record.directory, last, directory)
    echo_line(f"Wrote run {record.id} after step {last} to {directory}.", err=True)
    echo(str(directory))


def _print_table(store: Store, runs: Sequence[RunRecord], name: str) -> None:
    """Print one table as the file of an export has it."""
    from advsweep.report.data.export import export_tables

    with tempfile.TemporaryDirectory() as folder:
        export_tables(store, runs, Path(folder) / "tables", "csv")
        with (Path(folder) / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            while text := file.read(1 << 20):
                echo_rendered(text)


def _tracking(name: str, fields: Sequence[str], directory: Path | None) -> Tracking:
    """Return the tracking that writes to a folder, or to the tracker's own place.

    Raises:
        ConfigError: a field does not exist, has no value or several, or the folder decides it.
    """
    from advsweep.config.overrides import parse_assignments
    from advsweep.sweep.registry import TRACKINGS

    given = parse_assignments(fields)
    tracking: Tracking = TRACKINGS.build({**given, "name": name}, where="tracking")
    if directory is not None:
        before, tracking = tracking.plain(), tracking.in_folder(directory)
        decided = sorted(key for key in given if before[key] != tracking.plain()[key])
        if decided:
            raise ConfigError(
                f"--set {decided[0]}: expected other fields, as DIR decides where runs go; omit DIR"
            )
    if not tracking.is_on:
        raise ConfigError(f"--to: expected a tracker that sends runs, got {tracking.plain()}")
    tracking.check()
    return tracking


def _send(
    store: Store, runs: Sequence[RunRecord], tracking: Tracking, directory: Path | None
) -> bool:
    """Send runs to a tracker; return whether one could not be sent."""
    from advsweep.cli.execution import without_prompts
    from advsweep.sweep.tracking.client import sync

    if directory is not None:
        (directory / _MARK).mkdir(parents=True, exist_ok=True)
    try:
        with without_prompts(), progress_bar("runs", len(runs)) as on_run:
            synced = sync(store, runs, tracking, on_run)
    except KeyboardInterrupt:
        # A normal exit would wait for the tracker's service in its exit handlers.
        os._exit(130)
    counts = (
        (len(synced.sent), "sent"),
        (len(synced.left_out), "left out"),
        (len(synced.failed), "failed"),
    )
    shown = ", ".join(f"{n} {what}" for n, what in counts if n) or "no runs"
    echo_line(f"{tracking.name}: {shown}", err=True)
    for run_id, reason in list(synced.left_out.items())[:_LISTED]:
        echo_line(f"  skipped run {run_id}: {reason}", err=True)
    for run_id, error in list(synced.failed.items())[:_LISTED]:
        echo_line(f"  run {run_id} failed: {error}", err=True)
    if directory is not None:
        echo(str(directory))
    return bool(synced.failed)


# merge


def merge(
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The store to read: a path or a URL.")
    ],
    other_runs: Path | None = None,
    folders: bool = True,
    dry_run: bool = False,
    store: options.Store = None,
) -> None:
    """Copies runs, evaluations and sweeps. Runs are matched by identity. If both stores have the
    run done, this store's copy stays. A done run replaces an unfinished one; of two unfinished ones
    the one with more steps stays. Running runs are skipped. Executors and trackers of sweeps are
    not copied. A store with a value that advsweep cannot have written, or with another schema, is
    refused as a whole. Merging again changes nothing; the other store never changes.

    The folders of copied runs, with logs and checkpoints, are copied too. With --no-folders, copied
    runs can be reported but not exported, and unfinished ones restart from step 0.

    Options:
        --other-runs DIR: Its folder of runs (default: next to the store).
        --folders/--no-folders: Copy the runs' folders with checkpoints.
        --dry-run: Print what would change; change nothing.

    Examples:
        advsweep merge ../other/advsweep.db --dry-run
        advsweep merge ../other/advsweep.db
    """
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
    _print_merged(merged, f"{source.name} into {target.name}", dry_run=dry_run)


def _folder(other: str, source: Store, chosen: Path | None) -> Path:
    """Return the other store's folder of runs; $ADVSWEEP_RUNS belongs to the target store."""
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


def _print_merged(merged: MergeResult, what: str, *, dry_run: bool) -> None:
    counts = ", ".join(f"{len(runs)} {fate.value}" for fate, runs in merged.runs.items() if runs)
    echo_line(f"{what}{' (nothing was changed)' if dry_run else ''}")
    echo_line(f"  runs: {counts or 'none'}")
    echo_line(f"  sweeps added: {', '.join(merged.sweeps) or 'none'}")
    for run_id, reason in merged.left_out.items():
        warn(f"skipped run {run_id} of the other store: {reason}")
    if merged.not_copied:
        warn(
            f"not copied: {counted(len(merged.not_copied), 'path')} (links, special files, outputs "
            f"of commands), first {merged.not_copied[0]}"
        )
    if merged.without_folder:
        warn(
            f"{counted(len(merged.without_folder), 'run')} copied without a folder of checkpoints "
            "and logs"
        )


# rm


def rm(
    targets: options.Targets,
    yes: bool = False,
    force: bool = False,
    models: bool = False,
    store: options.Store = None,
) -> None:
    """Deleting a sweep deletes its runs, except those that another sweep shares. Deletion cannot be
    undone. Refuses to delete running runs.

    Options:
        --yes, -y: Do not ask for confirmation.
        --force: Also delete completed runs.
        --models: Delete evaluations of models instead, named by model or start of an
            identity as in `ls --models`.

    Examples:
        advsweep rm 12 --force
        advsweep rm demo --force --yes
    """
    from advsweep.cli.runs import find_targets
    from advsweep.store import Status, open_store

    with open_store(store, create=False) as opened:
        if models:
            _remove_models(opened, targets, yes=yes)
            return
        found = find_targets(opened, targets)
        # Runs that were named individually, and those that no other sweep has.
        runs = [
            run
            for run in found.runs
            if run.id in found.named or not set(run.sweeps) - set(found.sweeps)
        ]
        for status, is_allowed, remedy in (
            (Status.RUNNING, False, "stop it with `advsweep stop {0}`"),
            (Status.DONE, force, "pass --force to delete them"),
        ):
            refused = [] if is_allowed else [run.id for run in runs if run.status is status]
            if refused:
                kind = "completed run" if status is Status.DONE else "running run"
                raise ConfigError(
                    f"refusing to delete {counted(len(refused), kind)}, such as run "
                    f"{refused[0]}; {remedy.format(refused[0])}"
                )
        if not yes:
            states = Counter(run.status.value for run in runs)
            counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            what = f"sweep {', '.join(found.sweeps)} and " if found.sweeps else ""
            _confirm(f"{what}{counted(len(runs), 'run')} ({counts or 'none'})")
        opened.runs.remove([run.id for run in runs])
        for sweep in found.sweeps:
            opened.sweeps.remove(sweep)
        for run in runs:
            remove_folder(opened, run)
    kept = len(found.runs) - len(runs)
    shared = f"; kept {kept} that other sweeps share" if kept else ""
    echo(f"Deleted {counted(len(runs), 'run')}{shared}.", err=True)


def _remove_models(store: Store, targets: Sequence[str], *, yes: bool) -> None:
    evaluations = store.evaluations.of_models()
    found: set[str] = set()
    for target in targets:
        named = [e.identity for e in evaluations if e.settings["model"] == target]
        matching = [e.identity for e in evaluations if e.identity.startswith(target)]
        if not named and len(matching) != 1:
            raise NotFoundError(
                f"expected an evaluated model or the start of one evaluation's identity, got "
                f"'{target}', which matches {len(matching)}; `advsweep ls --models` lists them"
            )
        found.update(named or matching)
    if not yes:
        _confirm(f"{counted(len(found), 'evaluation')} of models")
    store.evaluations.remove_of_models(sorted(found))
    echo(f"Deleted {counted(len(found), 'evaluation')} of models.", err=True)


def remove_folder(store: Store, run: RunRecord) -> None:
    """Delete a run's folder if it lies in the store's folder of runs and belongs to this run.

    The store may come from someone else, so its path alone is not a reason to delete a folder.

    Raises:
        StoreError: the folder could not be deleted.
    """
    from advsweep.store.run_folders import owners

    directory = run.directory
    inside = directory.parent == store.runs_directory
    if not inside or directory.is_symlink() or not directory.is_dir():
        return
    if owners(directory) != {run.identity}:
        warn(
            f"kept {directory}: no manifest in it names run {run.id} alone; check the folder and "
            "delete it yourself"
        )
        return
    try:
        shutil.rmtree(directory)
    except OSError as error:
        raise StoreError(
            f"{directory}: the run is deleted from the store, but its folder could not be deleted "
            f"({error}); delete it yourself"
        ) from error


def _confirm(what: str) -> None:
    if not sys.stdin.isatty():
        raise ConfigError("expected a terminal to ask for confirmation, got none; pass --yes")
    typer.confirm(f"Permanently delete {what}?", abort=True)


# db


class DbAction(Enum):
    """What to do with the schema."""

    VERSION = "version"
    UPGRADE = "upgrade"


def db(
    action: Annotated[
        DbAction, typer.Argument(metavar="version|upgrade", help="Print it, or upgrade the store.")
    ],
    store: options.Store = None,
) -> None:
    """An upgrade lists the changes of the schema; data stay as they are.

    Examples:
        advsweep db version
        advsweep db upgrade --store advsweep.db
    """
    from advsweep.store import open_store

    if action is DbAction.VERSION:
        echo(open_store(store, create=False).schema_version())
        return
    opened = open_store(store, create=False, upgrade=True)
    for line in opened.upgraded:
        echo(line)
    if not opened.upgraded:
        echo_line(f"{opened.name} is up to date (schema {opened.schema_version()})")
