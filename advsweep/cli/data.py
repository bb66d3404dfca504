"""`advsweep import`, `export`, `merge`, `rm` and `db`: what goes into a store and out of it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from advsweep.cli import options
from advsweep.cli.execution import without_prompts
from advsweep.cli.options import complete_target
from advsweep.cli.output import echo, echo_line, echo_rendered, print_json, progress_bar, warn
from advsweep.cli.runs import find_targets
from advsweep.config.overrides import parse_assignments
from advsweep.errors import (
    ConfigError,
    NotFoundError,
    StoreError,
    counted,
    first_of,
    nearest,
    reason_of,
)
from advsweep.importing import ImportSummary, import_runs
from advsweep.logs import READERS
from advsweep.logs.names import NamePattern, assign
from advsweep.store import RunRecord, Status, Store, open_store
from advsweep.store.merge import merge as merge_stores
from advsweep.store.run_folders import owner_of
from advsweep.sweep.planning.resume import trained_run
from advsweep.sweep.registry import TRACKINGS
from advsweep.sweep.tracking.base import Tracking, sync

_LISTED = 20


# import


def import_(
    form: str,
    source: str,
    sweep: str | None = None,
    assignments: list[str] | None = None,
    name_pattern: str | None = None,
    mapping: list[str] | None = None,
    by: str | None = None,
    rows: str | None = None,
    decimal: str | None = None,
    dry_run: bool = False,
    store: str | None = None,
    how: options.RecordFormat = "text",
) -> None:
    """Reports, plots and claims work on these runs as on others. Metrics get our names by the
    format's table; the others keep theirs. Importing again adds what is new and nothing else.
    Nothing in them is executed, and no worker trains them.

    Arguments:
        FORMAT (form): The format: console, csv, jsonl, lm-eval, rollouts (prime-rl, NeMo-RL,
            open-instruct), tensorboard, trl, verl, wandb, or one of another package.
        SOURCE (source): A file or a folder; for wandb ENTITY/PROJECT.

    Options:
        --sweep NAME: Add the runs to this sweep.
        --set KEY=VALUE (assignments): Set a config key of every run:
            estimator=grpo. Repeatable.
        --name-pattern PATTERN: Config keys in the names of files or folders:
            '{estimator}-s{seed}'. Others are left out.
        --map THEIRS=OURS (mapping): Rename a metric, as in train/score=reward/mean;
            NAME=step names the step, NAME=estimator (any config key) a setting. Repeatable.
        --by COLUMN,...: Columns that tell the runs of one file apart, besides estimator,
            seed, run and their like.
        --rows KEY,...: Config keys that alone tell settings apart (default: all that do not
            name folders, machines or times). Runs that differ in others are replicates.
        --decimal SIGN: csv: the decimal sign, a point or a comma.
        --dry-run: Print what would be imported; change nothing.

    Examples:
        advsweep import csv log.csv --set estimator=grpo --set seed=0
        advsweep import tensorboard logs --name-pattern '{estimator}-s{seed}'
    """

    names = {}
    for text in mapping or ():
        # Names of metrics may have an = of their own, ours do not.
        theirs, _, ours = (part.strip() for part in text.rpartition("="))
        if not theirs or not ours:
            raise ConfigError(f"--map: expected THEIRS=OURS, got {text!r}")
        names[theirs] = ours
    reader = READERS.get(form, where="FORMAT").build(
        {} if decimal is None else {"decimal": decimal}, where="--decimal"
    )
    settings: dict[str, Any] = {}
    for key, value in parse_assignments(assignments or []).items():
        assign(settings, key, value)
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
            on_read=lambda name, done, size: echo_line(
                f"reading {name}: {done >> 20:,} of {size >> 20:,} MiB", err=True
            ),
        )
    if how == "text":
        _print_imported(summary, dry_run=dry_run)
        return
    keys = ("action", "seed", "steps", "new_steps", "points", "evaluations")
    found = [
        {"source": source, "id": run.run_id, **{key: getattr(run, key) for key in keys}}
        for source, run in summary.runs
    ]
    print_json(
        {
            "runs": found,
            "renamed": summary.names.renamed,
            "kept": sorted(summary.names.kept),
            "left_out": summary.left_out,
            "unmatched": summary.unmatched,
            "notes": list(summary.notes),
        }
    )


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _print_imported(summary: ImportSummary, *, dry_run: bool) -> None:
    written = [each for _, each in summary.runs]
    actions = Counter(each.action.value for each in written)
    counts = ", ".join(f"{n} {action}" for action, n in actions.items())
    steps, new = sum(each.steps for each in written), sum(each.new_steps for each in written)
    evaluations = sum(each.evaluations for each in written)
    names = summary.names
    took = f"{counted(len(written), 'run')} ({counts or 'none'}), "
    took += (
        f"{counted(f'{steps:,}', 'step')} ({new:,} new), {counted(len(summary.metrics), 'metric')}"
    )
    took += f", {counted(evaluations, 'evaluation')}" if evaluations else ""
    left = [f"{reason} ({count:,})" for reason, count in sorted(summary.left_out.items())]
    if summary.unmatched:
        left.append(f"name does not match: {first_of(summary.unmatched, 8)}")
    renamed = [f"{theirs} -> {ours}" for theirs, ours in sorted(names.renamed.items())]
    lines = [
        ("would take" if dry_run else "took", took),
        ("renamed", first_of(renamed, 8) or "nothing"),
        ("kept", first_of(sorted(names.kept), 8) or "nothing"),
        ("left out", "; ".join(left) or "nothing"),
        *(("note", note) for note in summary.notes),
    ]
    for title, text in lines:
        echo_line(f"{title:<10} {text}")


# export

# An empty folder within the target of an export to a tracker.
_MARK = ".advsweep"

# Files by which the folder of an earlier export is known.
_WRITTEN = {_MARK, "config.json"}


def export(
    target: Annotated[str, complete_target],
    directory: Path | None = None,
    to: str = "hf",
    table: Literal["runs", "metrics", "evaluations", "problems"] | None = None,
    step: int | None = None,
    fields: list[str] | None = None,
    store: str | None = None,
) -> None:
    """Tables are replaced when a sweep is exported again. Trackers get the runs that are done,
    pruned, failed or interrupted: what they lack of each, or all of it where the tracker cannot
    tell. In a folder no tracker needs an account or a network. Exits with code 1 if a run cannot
    be sent.

    Arguments:
        RUN|SWEEP (target): A run's id, the start of its identity, or 'last'; or a sweep's name.
        [DIR] (directory): The folder to create or to add to. Without it trackers get runs in
            their own place or on their server, and --table is printed.

    Options:
        --to FORMAT: hf: a run's weights, in a folder that transformers loads. parquet, csv:
            tables of runs, metrics, evaluations and problems. wandb, trackio, tensorboard, or a
            plug-in's tracker.
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
    from advsweep.report.data.export import FORMATS, export_tables

    names = ["hf", *FORMATS, *(name for name in TRACKINGS if name != "none")]
    if to not in names:
        raise ConfigError(f"--to: no format is called '{to}'; {nearest(to, names)}")
    if step is not None and to != "hf":
        raise ConfigError(f"--step: expected --to hf, got --to {to}")
    if fields and to not in TRACKINGS:
        raise ConfigError(f"--set: expected --to with a tracker, got --to {to}")
    prints = to in FORMATS and directory is None
    if (table is not None) is not prints or (prints and to != "csv"):
        raise ConfigError("--table: expected it with --to csv and without DIR, and DIR otherwise")
    opened = open_store(store, create=False)
    if directory is not None and to not in FORMATS:
        found = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
        if found and not _WRITTEN.intersection(found):
            raise ConfigError(
                f"DIR: expected a new folder, an empty one, or that of an earlier export, got "
                f"{directory} with other files, such as {found[0]}; name another folder"
            )
    if to == "hf":
        if directory is None:
            raise ConfigError("DIR: expected a folder for the weights, got none")
        record = opened.runs.find(target)
        run = trained_run(record, opened)
        last = record.step if step is None else step
        run.backend.export(run, record.directory, last, directory)
        echo_line(f"Wrote run {record.id} after step {last} to {directory}.", err=True)
        echo(str(directory))
        return
    runs = find_targets(opened, [target]).runs
    if to in TRACKINGS:
        tracking = _tracking(to, fields or [], directory)
        raise typer.Exit(int(_send(opened, runs, tracking, directory)))
    with tempfile.TemporaryDirectory() as temporary:
        folder = directory or Path(temporary) / "tables"
        with progress_bar("runs", len(runs)) as on_run:
            rows = export_tables(opened, runs, folder, to, on_run)
        if table is not None:
            with (folder / f"{table}.csv").open(encoding="utf-8", newline="") as file:
                while text := file.read(1 << 20):
                    echo_rendered(text)
            return
    counts = ", ".join(f"{count} {name}" for name, count in rows.items())
    echo_line(f"Wrote {counts} to {directory}.", err=True)
    echo(str(directory))


def _tracking(name: str, fields: Sequence[str], directory: Path | None) -> Tracking:
    """Return the tracking that writes to a folder, or to the tracker's own place.

    Raises:
        ConfigError: a field does not exist, has no value or several, or the folder decides it.
    """

    given = parse_assignments(fields)
    tracking: Tracking = TRACKINGS.build({**given, "name": name}, where="tracking")
    if directory is not None:
        before, tracking = tracking.plain(), tracking.in_folder(directory)
        if decided := [key for key in given if before[key] != tracking.plain()[key]]:
            raise ConfigError(
                f"--set {decided[0]}: expected other fields, as DIR decides where runs go; omit DIR"
            )
    tracking.check()
    return tracking


def _send(
    store: Store, runs: Sequence[RunRecord], tracking: Tracking, directory: Path | None
) -> bool:
    """Send runs to a tracker; return whether one could not be sent."""

    if directory is not None:
        (directory / _MARK).mkdir(parents=True, exist_ok=True)
    with without_prompts(), progress_bar("runs", len(runs)) as on_run:
        outcomes = []
        for outcome in sync(store, runs, tracking):
            outcomes.append(outcome)
            on_run(len(outcomes))
    counts = Counter(what for _, what, _ in outcomes)
    shown = ", ".join(f"{count} {what}" for what, count in counts.items()) or "no runs"
    echo_line(f"{tracking.name}: {shown}", err=True)
    for run_id, what, reason in [each for each in outcomes if each[2]][:_LISTED]:
        echo_line(f"  run {run_id} {what}: {reason}", err=True)
    if directory is not None:
        echo(str(directory))
    return counts["failed"] > 0


# merge


def merge(other: str, dry_run: bool = False, store: str | None = None) -> None:
    """Copies runs, evaluations and sweeps. Runs are matched by identity. If both stores have the
    run done, this store's copy stays. A done run replaces an unfinished one; of two unfinished ones
    the one with more steps stays. Running runs are skipped. Executors and trackers of sweeps are
    not copied. A store with a value that advsweep cannot have written, or with another schema, is
    refused as a whole. Merging again changes nothing; the other store never changes.

    The folders of runs, with logs and checkpoints, stay where they are. Copied runs can be
    reported; to resume or export them, copy their folders into this store's folder of runs.

    Arguments:
        OTHER (other): The store to read: a path or a URL.

    Options:
        --dry-run: Print what would change; change nothing.

    Examples:
        advsweep merge ../other/advsweep.db --dry-run
        advsweep merge ../other/advsweep.db
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


# rm


def rm(
    targets: list[str],
    yes: bool = False,
    force: bool = False,
    models: bool = False,
    store: str | None = None,
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
        running = [run.id for run in runs if run.status is Status.RUNNING]
        done = [run.id for run in runs if run.status is Status.DONE]
        if running:
            raise ConfigError(
                f"refusing to delete {counted(len(running), 'running run')}, such as run "
                f"{running[0]}; stop it with `advsweep stop {running[0]}`"
            )
        if done and not force:
            raise ConfigError(
                f"refusing to delete {counted(len(done), 'completed run')}, such as run {done[0]}; "
                "pass --force to delete them"
            )
        if not yes:
            states = Counter(run.status.value for run in runs)
            counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            what = f"sweep {', '.join(found.sweeps)} and " if found.sweeps else ""
            _confirm(f"{what}{counted(len(runs), 'run')} ({counts or 'none'})")
        # The store first: a folder without a run does no harm, a run without its folder does.
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


# db


def db(
    action: Literal["version", "upgrade"],
    store: str | None = None,
) -> None:
    """An upgrade lists the changes of the schema; data stay as they are.

    Arguments:
        version|upgrade (action): Print it, or upgrade the store.

    Examples:
        advsweep db version
        advsweep db upgrade --store advsweep.db
    """
    opened = open_store(store, create=False, upgrade=action == "upgrade")
    if action == "version":
        echo(opened.schema_version())
        return
    for line in opened.upgraded:
        echo(line)
    if not opened.upgraded:
        echo_line(f"{opened.name} is up to date (schema {opened.schema_version()})")
