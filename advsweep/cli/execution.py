"""Execute plans for `run`, `sweep` and `retry`: store, live view, tracking, and result."""

from __future__ import annotations

import os
import shlex
from typing import Any

from advsweep.cli.output import echo, echo_line, warn
from advsweep.errors import counted
from advsweep.printable import redacted
from advsweep.store import Store, open_store
from advsweep.sweep.events import SweepResult
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.retry_policy import Policy, store_patience
from advsweep.sweep.scheduler.execute import execute as run_plan
from advsweep.sweep.watched import watched

LISTED = 20


def writable_store(url: str | None, *, create: bool = True) -> Store:
    """Open the store for writing with the patience of $ADVSWEEP_STORE_PATIENCE."""
    return open_store(url, create=create, patience=store_patience())


def execute(
    plan: Plan, store: Store, *, jobs: int | None, force: bool, policy: Policy
) -> SweepResult:
    """Execute a plan with a live view on stderr; tell its tracker what happens."""
    with watched(plan, store, jobs, warn) as on_event:
        return run_plan(plan, store, jobs, on_event, force=force, policy=policy)


def result_record(plan: Plan, result: SweepResult) -> dict[str, Any]:
    """Return the result of a sweep for `--format json`."""
    counts = ("done", "skipped", "unfinished", "halted", "submitted", "queued")
    return {
        "sweep": plan.name,
        "runs": list(result.run_ids),
        "failed": [{"id": i, "error": error} for i, error in result.failed.items()],
        "pruned": [{"id": i, "reason": reason} for i, reason in result.pruned.items()],
        **{name: getattr(result, name) for name in counts},
    }


def print_result(plan: Plan, result: SweepResult, store: str | None = None) -> None:
    """Print the result of a sweep, or of runs that were restarted, and the next commands.

    Args:
        store: the store that was named on the command line; the next commands name it too.
    """
    option = _store_option(store)
    echo_line(_count_runs(plan, result), err=True)
    for run_id, error in list(result.failed.items())[:LISTED]:
        echo_line(f"  run {run_id} failed: {error} (advsweep logs {run_id}{option})", err=True)
    if result.halted:
        echo("No more runs started: --max-failures reached.", err=True)
    for run_id, reason in list(result.pruned.items())[:LISTED]:
        echo_line(f"  run {run_id} pruned: {reason}", err=True)
    if result.pruned:
        echo("stopping=none resumes pruned runs from their last checkpoint.", err=True)
    if not plan.name:
        return
    words = f"{shlex.quote(plan.name)}{option}"
    if result.failed or result.unfinished:
        echo("Start the same sweep again to execute the missing runs.", err=True)
    if result.submitted or result.queued:
        echo_line(f"`advsweep status {words}` shows their progress.", err=True)
    if result.done or result.skipped:
        echo_line(f"`advsweep report {words}` prints the table.", err=True)


def _store_option(store: str | None) -> str:
    """Return the option of the next commands; empty if they find the store without it."""
    if store is None or store == os.environ.get("ADVSWEEP_STORE"):
        return ""
    return f" --store {shlex.quote(redacted(store))}"  # a masked password has to be completed


def _count_runs(plan: Plan, result: SweepResult) -> str:
    total = len(result.run_ids)
    if not plan.name:
        return f"{counted(total, 'run')}: {result.summary}"
    # Of a sweep it is said also that none was done.
    parts = [] if result.done else ["0 done"]
    if result.summary:
        parts.append(result.summary)
    return f"sweep {plan.name}: {', '.join(parts)} of {total} runs"
