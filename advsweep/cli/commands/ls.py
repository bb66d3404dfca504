"""`advsweep ls`: list runs, or evaluated models."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from advsweep.cli import options, runs
from advsweep.cli.output import echo, echo_line, print_listing, warn
from advsweep.errors import ConfigError, counted
from advsweep.store import EvaluationRecord, RunRecord, Status, open_store
from advsweep.store.sanity import find_mixed_revisions
from advsweep.store.seeds import show_seed
from advsweep.sweep.labels import varying_keys

# Runs that a table lists by default.
NEWEST = 50

EXAMPLES = (
    "advsweep ls",
    "advsweep ls demo --status failed",
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
    """List runs, newest first.

    The last column of the table, `what`, has the config keys in which the listed runs differ.
    """
    if limit is None and output_format == "table":
        limit = NEWEST
    most = limit or None
    opened = open_store(store, create=False)
    if models:
        if sweep is not None or status is not None:
            raise ConfigError("--models: models belong to no sweep and have no status; omit both")
        evaluations = list(reversed(opened.evaluations.of_models()))
        print_listing([_model_row(each) for each in evaluations[:most]], output_format)
        return
    listed = opened.runs.select(sweep=sweep, status=status, limit=most)
    for text in find_mixed_revisions(opened, listed):
        warn(text)
    if output_format == "json":
        print_listing([_record(run, sweep) for run in listed], output_format)
        return
    rows = [runs.run_row(run) for run in listed]
    if output_format == "table":
        for row, keys in zip(rows, varying_keys(run.config for run in listed), strict=True):
            row["seed"] = show_seed(row["seed"])
            row["what"] = " ".join(keys)
    print_listing(rows, output_format)
    if left := opened.runs.count(sweep=sweep, status=status) - len(listed):
        echo_line(f"{counted(left, 'older run')} not shown; --limit 0 shows them.", err=True)
    if not listed:
        echo("No runs found.", err=True)


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
