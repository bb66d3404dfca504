"""What `run` and `sweep` share: the store, the live view, and how plans are printed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from advsweep.cli.options import RecordFormat
from advsweep.cli.output import print_columns, print_json
from advsweep.cli.records import flat

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.store import Store
    from advsweep.sweep.events import Outcome
    from advsweep.sweep.plan import Plan

LISTED = 20


@contextmanager
def opened(url: str | None) -> Iterator[Store]:
    """The store to write to, made if it is not there."""
    from advsweep.store import open_store

    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


def execute(plan: Plan, store: Store, *, jobs: int | None, force: bool) -> Outcome:
    """Executes a plan with a live view on stderr."""
    from advsweep.sweep.engine import execute as run_plan
    from advsweep.sweep.live import watching

    with watching(plan, store) as on_event:
        return run_plan(plan, store, jobs, on_event, force=force)


def print_config(config: Plain, output: RecordFormat) -> None:
    """A run's resolved config."""
    if output is RecordFormat.JSON:
        print_json(config)
        return
    for key, value in flat(config):
        typer.echo(f"{key}={value}")


def print_plan(plan: Plan, url: str | None, jobs: int | None, output: RecordFormat) -> None:
    """A sweep's runs, what is left of them and how long that should take."""
    from advsweep.sweep.estimate import estimate
    from advsweep.sweep.labels import labels

    slots = jobs or plan.executor.capacity()
    store = _existing(url)
    left = estimate(plan, store, slots)
    if output is RecordFormat.JSON:
        print_json(
            {
                "name": plan.name,
                "runs": [{"identity": p.run.identity, "config": p.config} for p in plan.runs],
                "duplicates": plan.duplicates,
                "states": left.states,
                "steps_left": left.steps,
                "seconds_left": left.seconds,
                "jobs": slots,
            }
        )
        return
    known = labels(plan)
    identities = [p.run.identity for p in plan.runs]
    print_columns(["identity", "run"], [[i[:10], known[i]] for i in identities[:LISTED]])
    if len(plan.runs) > LISTED:
        typer.echo(f"... and {len(plan.runs) - LISTED} more")
    states = ", ".join(f"{count} {state}" for state, count in sorted(left.states.items()))
    dropped = f", {plan.duplicates} duplicates dropped" if plan.duplicates else ""
    typer.echo(f"\nsweep {plan.name}: {len(plan.runs)} runs ({states}){dropped}")
    if left.seconds is None:
        typer.echo(f"{left.steps} steps left; no earlier run of this shape tells how long")
    else:
        took = f"about {_duration(left.seconds)} with {slots} side by side"
        typer.echo(f"{left.steps} steps left, {took} (from {left.sources} earlier runs)")


def outcome_record(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """What came of a sweep, for `--format json`."""
    return {
        "sweep": plan.name,
        "runs": list(outcome.run_ids),
        "done": outcome.done,
        "skipped": outcome.skipped,
        "failed": [{"id": i, "error": error} for i, error in outcome.failed.items()],
        "unfinished": outcome.unfinished,
    }


def print_outcome(plan: Plan, outcome: Outcome) -> None:
    """What came of a sweep, and what to type next."""
    parts = [f"{outcome.done} done"]
    parts += [f"{outcome.skipped} done before"] if outcome.skipped else []
    parts += [f"{len(outcome.failed)} failed"] if outcome.failed else []
    parts += [f"{outcome.unfinished} unfinished"] if outcome.unfinished else []
    typer.echo(f"sweep {plan.name}: {', '.join(parts)} of {len(outcome.run_ids)} runs", err=True)
    for run_id, error in list(outcome.failed.items())[:LISTED]:
        typer.echo(f"  run {run_id} failed: {error} (advsweep logs {run_id})", err=True)
    if outcome.failed or outcome.unfinished:
        typer.echo("start the same sweep again to do what is missing", err=True)
    if outcome.done or outcome.skipped:
        typer.echo(f"advsweep report {plan.name}   prints its table", err=True)


def _existing(url: str | None) -> Store | None:
    from advsweep.errors import StoreError
    from advsweep.store import open_store

    try:
        return open_store(url, create=False)
    except StoreError:
        if url or os.environ.get("ADVSWEEP_STORE"):
            raise
        return None


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
