"""Execute plans for `run`, `sweep` and `retry`: store, live view, tracking, and result."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from advsweep.cli.loose_words import refuse_loose_words
from advsweep.cli.output import echo, echo_line, warn
from advsweep.errors import ConfigError, counted
from advsweep.names import YAML_SUFFIXES
from advsweep.printable import redacted
from advsweep.store import Store, open_store
from advsweep.sweep.events import Event, SweepResult
from advsweep.sweep.executors.base import QueueExecutor
from advsweep.sweep.live_view import live_view
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.retry_policy import Policy, store_patience
from advsweep.sweep.scheduler.execute import execute as run_plan
from advsweep.sweep.tracking.base import NoTracking, sync_command, tracker_client

LISTED = 20


def check_overrides(overrides: Sequence[str] | None) -> list[str]:
    """Return the overrides, of which the last one of a key counts.

    Raises:
        ConfigError: a word is no override, or a key is given twice in a row, as a shell does
            that expands `seed={0,1}`.
    """
    texts = list(overrides or ())
    refuse_loose_words(texts)
    for (key, equals, before), (other, _, value) in itertools.pairwise(map(_split_override, texts)):
        if equals and key == other and before != value:
            sign = "+" if key == "experiment" else ""
            raise ConfigError(
                f"{key}: expected each key once, got {before} and {value}; sweep over both with "
                f"{sign}{key}={before},{value} (a shell takes braces apart)"
            )
    return texts


def _split_override(text: str) -> tuple[str, str, str]:
    """Return key, sign and value; a sweep file is the value of `experiment`."""
    if text.endswith(YAML_SUFFIXES):
        return "experiment", "=", text
    return text.lstrip("+").partition("=")


def writable_store(url: str | None, *, create: bool = True) -> Store:
    """Open the store for writing with the patience of $ADVSWEEP_STORE_PATIENCE."""
    return open_store(url, create=create, patience=store_patience())


def execute(
    plan: Plan, store: Store, *, jobs: int | None, force: bool, policy: Policy
) -> SweepResult:
    """Execute a plan with a live view on stderr; tell its tracker what happens."""
    with watch_events(plan, store) as on_event:
        return run_plan(plan, store, jobs, on_event, force=force, policy=policy)


@contextmanager
def watch_events(plan: Plan, store: Store) -> Iterator[Callable[[Event], None]]:
    """Yield a function that shows each event live on stderr and sends it to the plan's tracker.

    Raises:
        ConfigError: the tracker cannot be used on this machine.
    """
    tracking = plan.tracking
    with live_view(plan, store) as show:
        if not isinstance(tracking, NoTracking) and isinstance(plan.executor, QueueExecutor):
            command = sync_command(tracking, plan.name or "RUN")
            warn(f"tracking: queued runs are not tracked live; {command} sends finished runs")
            yield show
            return
        with without_prompts(), tracker_client(store, tracking, warn) as track:

            def on_event(event: Event) -> None:
                show(event)
                track(event)

            yield on_event


@contextmanager
def without_prompts() -> Iterator[None]:
    """Close stdin, so that a tracker that would prompt for a key fails with a message."""
    stdin = sys.stdin
    with open(os.devnull) as sys.stdin:
        try:
            yield
        finally:
            sys.stdin = stdin


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
    counts = {
        "done": result.done,
        "done before": result.skipped,
        "failed": len(result.failed),
        "pruned": len(result.pruned),
        "unfinished": result.unfinished,
        "submitted": result.submitted,
        "queued or running": result.queued,
    }
    parts = [f"{count} {state}" for state, count in counts.items() if count]
    if plan.name and not result.done:
        parts.insert(0, "0 done")
    total = len(result.run_ids)
    if not plan.name:
        return f"{counted(total, 'run')}: {', '.join(parts)}"
    return f"sweep {plan.name}: {', '.join(parts)} of {total} runs"
