"""`advsweep ls`: list runs, or evaluated models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from advsweep.cli import options, runs
from advsweep.cli.output import echo, echo_line, print_listing, warn
from advsweep.errors import ConfigError, NotFoundError, counted, nearest
from advsweep.store import EvaluationRecord, RunRecord, Status, Store, SweepRecord, open_store
from advsweep.store.sanity import find_mixed_revisions
from advsweep.store.seeds import show_seed
from advsweep.sweep.labels import varying_keys

# Runs that a table lists by default.
NEWEST = 50

EXAMPLES = (
    "advsweep ls",
    "advsweep ls demo --status failed",
    "advsweep ls --sweeps",
    "advsweep ls --format csv",
)


def ls(
    sweep: options.Sweep = None,
    status: Annotated[
        Status | None,
        typer.Option(
            "--status",
            metavar="|".join(status.value for status in Status),
            help="List only runs with this status.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=0,
            help="List the newest N; 0: all (default of a table: 50).",
        ),
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option(
            "--tag",
            metavar="TAG",
            help="List only what belongs to sweeps with this tag.",
        ),
    ] = None,
    sweeps: Annotated[
        bool,
        typer.Option(
            "--sweeps",
            help="List sweeps instead, with their tags and notes.",
        ),
    ] = False,
    models: Annotated[
        bool,
        typer.Option(
            "--models",
            help="List models evaluated by `advsweep eval --model` instead.",
        ),
    ] = False,
    store: options.Store = None,
    output_format: options.ListFormat = "table",
) -> None:
    """List runs, newest first; or sweeps, or evaluated models.

    The last column of the table, `what`, has the config keys in which the listed runs differ.
    """
    if limit is None and output_format == "table":
        limit = NEWEST
    most = limit or None
    opened = open_store(store, create=False)
    if sweeps:
        if sweep is not None or status is not None or models:
            raise ConfigError("--sweeps: expected neither a sweep nor --status or --models beside")
        listed = list(reversed(_tagged(opened.sweeps.select(), tag)))
        print_listing([_sweep_row(each) for each in listed[:most]], output_format)
        return
    if models:
        if sweep is not None or status is not None or tag is not None:
            raise ConfigError(
                "--models: models belong to no sweep and have no status or tag; omit these"
            )
        evaluations = list(reversed(opened.evaluations.of_models()))
        print_listing([_model_row(each) for each in evaluations[:most]], output_format)
        return
    _list_runs(opened, sweep, status, tag=tag, most=most, output_format=output_format)


def _list_runs(
    store: Store,
    sweep: str | None,
    status: Status | None,
    *,
    tag: str | None,
    most: int | None,
    output_format: options.ListFormat,
) -> None:
    sweeps = store.sweeps.select()
    if tag is None:
        listed = store.runs.select(sweep=sweep, status=status, limit=most)
        count = store.runs.count(sweep=sweep, status=status)
    else:
        names = {each.name for each in _tagged(sweeps, tag)}
        selected = store.runs.select(sweep=sweep, status=status)
        matching = [run for run in selected if names.intersection(run.sweeps)]
        listed = matching[:most]
        count = len(matching)
    for text in find_mixed_revisions(store, listed):
        warn(text)
    if output_format == "json":
        print_listing([_record(run, sweep) for run in listed], output_format)
        return
    rows = [runs.run_row(run) for run in listed]
    _add_tags(rows, sweeps)
    if output_format == "table":
        for row, keys in zip(rows, varying_keys(run.config for run in listed), strict=True):
            row["seed"] = show_seed(row["seed"])
            row["what"] = " ".join(keys)
    print_listing(rows, output_format)
    if left := count - len(listed):
        echo_line(f"{counted(left, 'older run')} not shown; --limit 0 shows them.", err=True)
    if not listed:
        echo("No runs found.", err=True)


def _add_tags(rows: Sequence[dict[str, Any]], sweeps: Sequence[SweepRecord]) -> None:
    """Add the tags of their sweeps to rows of runs, in a store that has tags."""
    tags = {sweep.name: set(sweep.tags) for sweep in sweeps}
    if not any(tags.values()):
        return
    for row in rows:
        row["tags"] = sorted(set().union(*(tags[name] for name in row["sweep"])))


def _tagged(sweeps: Sequence[SweepRecord], tag: str | None) -> list[SweepRecord]:
    """Return the sweeps with a tag, or all.

    Raises:
        NotFoundError: no sweep has the tag.
    """
    if tag is None:
        return list(sweeps)
    tagged = [sweep for sweep in sweeps if tag in sweep.tags]
    if not tagged:
        known = {name for sweep in sweeps for name in sweep.tags}
        raise NotFoundError(f"--tag: no sweep has the tag '{tag}'; {nearest(tag, known)}")
    return tagged


def _sweep_row(sweep: SweepRecord) -> dict[str, Any]:
    counts = [f"{count} {status.value}" for status, count in sweep.runs.items()]
    return {
        "sweep": sweep.name,
        "runs": sum(sweep.runs.values()),
        "status": ", ".join(counts),
        "created": sweep.created.isoformat(timespec="seconds"),
        "tags": list(sweep.tags),
        "note": sweep.note,
    }


def _model_row(evaluation: EvaluationRecord) -> dict[str, Any]:
    settings = evaluation.settings
    return {
        "model": settings["model"],
        "task": evaluation.task,
        "split": settings.get("split", "held_out"),
        "problems": len(evaluation.problem_ids),
        **{key: settings[key] for key in ("n", "temperature", "top_p")},
        "pass@1": round(evaluation.scores([1])["pass@1"], 4),
        "created": evaluation.created.isoformat(timespec="seconds"),
        "identity": evaluation.identity[:10],
    }


def _record(run: RunRecord, sweep: str | None) -> dict[str, Any]:
    keys = ("backend", "attempt", "created", "started", "finished", "error", "config")
    first_sweep = run.sweeps[0] if run.sweeps else None
    return {
        **runs.run_row(run),
        "identity": run.identity,
        "sweep": sweep or first_sweep,
        "sweeps": list(run.sweeps),
        **{key: getattr(run, key) for key in keys},
    }
