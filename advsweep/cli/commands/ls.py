"""`advsweep ls`: list the runs of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli import options
from advsweep.cli.options import ListFormat
from advsweep.cli.output import echo, echo_line
from advsweep.errors import counted

if TYPE_CHECKING:
    from advsweep.store import EvaluationRecord, RunRecord

NEWEST = 50


def ls(
    sweep: options.SweepName = None,
    status: Annotated[
        str | None, typer.Option("--status", help="List only runs with this status.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help=f"List the newest N (default of a table: {NEWEST})."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List all runs, also in a table.")] = False,
    models: Annotated[
        bool,
        typer.Option("--models", help="List models evaluated by `advsweep eval --model` instead."),
    ] = False,
    store: options.Store = None,
    output: options.Listing = ListFormat.TABLE,
) -> None:
    """The last column of the table, `what`, has the config keys in which the listed runs differ.

    Examples:
        advsweep ls
        advsweep ls demo --status failed
        advsweep ls --all --format csv
    """
    from advsweep.cli.output import print_listing
    from advsweep.store import open_store
    from advsweep.store.component_revisions import find_mixed_revisions
    from advsweep.store.records import parse_status

    if output is ListFormat.TABLE and not every:
        limit = limit or NEWEST
    opened = open_store(store, create=False)
    if models:
        _refuse_filters(sweep, status)
        print_listing([_model(e) for e in reversed(opened.evaluations.of_models())][:limit], output)
        return
    runs = opened.runs.select(sweep=sweep, status=parse_status(status), limit=limit)
    for mixed in find_mixed_revisions(opened, runs):
        echo_line(f"advsweep: {mixed.text}", err=True)
    if output is ListFormat.JSON:
        print_listing([_record(r, sweep) for r in runs], output)
        return
    rows = [_row(r) for r in runs]
    if output is ListFormat.TABLE:
        from advsweep.sweep.planning.labels import varying_keys

        for row, keys in zip(rows, varying_keys(r.config for r in runs), strict=True):
            row["what"] = " ".join(keys)
    print_listing(rows, output, optional=("identity",))
    left = opened.runs.count(sweep=sweep, status=parse_status(status)) - len(runs)
    if left:
        echo_line(f"{counted(left, 'older run')} not shown; --all shows them.", err=True)
    if not runs:
        echo("No runs found.", err=True)


def _refuse_filters(sweep: str | None, status: str | None) -> None:
    from advsweep.errors import ConfigError

    if sweep is not None or status is not None:
        raise ConfigError("--models: models belong to no sweep and have no status; omit both")


def _model(evaluation: EvaluationRecord) -> dict[str, Any]:
    settings = evaluation.settings
    return {
        "model": settings["model"],
        "task": evaluation.task,
        "split": settings.get("split", "held_out"),
        "problems": len(evaluation.problem_ids),
        "n": settings["n"],
        "temperature": settings["temperature"],
        "top_p": settings["top_p"],
        "pass@1": round(evaluation.scores([1])["pass@1"], 4),
        "created": evaluation.created.isoformat(timespec="seconds"),
        "identity": evaluation.identity[:10],
    }


def _row(run: RunRecord) -> dict[str, Any]:
    return {
        "id": run.id,
        "identity": run.identity[:10],
        "sweep": list(run.sweeps),
        "estimator": run.estimator,
        "seed": run.seed,
        "status": run.status,
        "failure": run.failure,
        "step": run.step,
        "steps": run.steps,
    }


def _record(run: RunRecord, sweep: str | None) -> dict[str, Any]:
    return {
        **_row(run),
        "identity": run.identity,
        "sweep": sweep or (run.sweeps[0] if run.sweeps else None),
        "sweeps": list(run.sweeps),
        "backend": run.backend,
        "attempt": run.attempt,
        "created": run.created,
        "started": run.started,
        "finished": run.finished,
        "error": run.error,
        "config": run.config,
    }
