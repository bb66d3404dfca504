"""Execute plans for `run`, `sweep` and `retry`: store, live view, tracking, and outcome."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from advsweep.cli.options import RecordFormat
from advsweep.cli.output import echo, echo_line, print_json, warn
from advsweep.cli.runs import flatten
from advsweep.errors import ConfigError
from advsweep.redaction import redacted

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.store import Store
    from advsweep.sweep.events import Event, SweepResult
    from advsweep.sweep.planning.plan import Plan
    from advsweep.sweep.retry_policy import Policy

LISTED = 20


@contextmanager
def writable_store(url: str | None) -> Iterator[Store]:
    """Opens the store for writing; creates it if needed."""
    from advsweep.store import open_store
    from advsweep.sweep.retry_policy import store_patience

    store = open_store(url, patience=store_patience())
    try:
        yield store
    finally:
        store.close()


def set_store_patience(text: str) -> float:
    """Sets how long processes of runs wait for an unreachable store; returns the seconds.

    Raises:
        ConfigError: the text is not a duration.
    """
    from advsweep.sweep.retry_policy import STORE_PATIENCE_VARIABLE, parse_duration

    seconds = parse_duration(text, "--store-patience")
    os.environ[STORE_PATIENCE_VARIABLE] = text
    return seconds


def check_outcomes(plan: Plan) -> None:
    """Refuse declared outcomes that are no columns of reports.

    Raises:
        ConfigError: a column does not exist.
    """
    if "outcomes" in plan.spec:
        from advsweep.report.data.outcomes import parse_outcomes

        parse_outcomes(plan.spec["outcomes"], "sweep.outcomes")


def make_policy(
    retries: int,
    retry_on: str,
    time_limit: str | None,
    memory_limit: str | None,
    *,
    max_failures: int | None = None,
    fail_fast: bool = False,
) -> Policy:
    """Builds the retry policy from the options of the command line.

    Raises:
        ConfigError: an option is not a duration, size or class of failure.
    """
    from advsweep.sweep.retry_policy import Policy, parse_duration, parse_failures, parse_size

    return Policy(
        retries=retries,
        retry_on=parse_failures(retry_on),
        max_failures=max_failures,
        fail_fast=fail_fast,
        time_limit=None if time_limit is None else parse_duration(time_limit),
        memory_limit=None if memory_limit is None else parse_size(memory_limit),
    )


def execute(
    plan: Plan,
    store: Store,
    *,
    jobs: int | None,
    force: bool,
    policy: Policy,
    track: Callable[[Event], None] = lambda event: None,
) -> SweepResult:
    """Executes a plan with a live view on stderr.

    Args:
        track: is told what happens, too; what `tracked` gives.
    """
    from advsweep.sweep.scheduler.execute import execute as run_plan

    with show_events(plan, store, track) as on_event:
        return run_plan(plan, store, jobs, on_event, force=force, policy=policy)


@contextmanager
def show_events(
    plan: Plan, store: Store, track: Callable[[Event], None]
) -> Iterator[Callable[[Event], None]]:
    """Yields a function that shows each event live on stderr and passes it to `track`."""
    from advsweep.sweep.progress import live_view

    with live_view(plan, store) as show:

        def on_event(event: Event) -> None:
            show(event)
            track(event)

        yield on_event


@contextmanager
def track_events(plan: Plan, store: Store) -> Iterator[Callable[[Event], None]]:
    """Yields a function that sends each event to the plan's tracker.

    Raises:
        ConfigError: the tracker cannot be used on this machine.
    """
    from advsweep.cli.tracking_options import without_prompts
    from advsweep.sweep.executors.base import QueueExecutor
    from advsweep.sweep.tracking.base import sync_command
    from advsweep.sweep.tracking.client import tracker_client

    tracking = plan.tracking
    if not tracking.is_on:
        yield lambda event: None
        return
    if isinstance(plan.executor, QueueExecutor):
        yield lambda event: None
        command = sync_command(tracking, plan.name or "RUN")
        warn(f"tracking: queued runs are not tracked live; {command} sends finished runs")
        return
    tracking.check()
    with without_prompts(), tracker_client(store, lambda run: [tracking], warn) as track:
        yield track


def print_config(config: Plain, output: RecordFormat) -> None:
    """Prints a run's resolved config."""
    if output is RecordFormat.JSON:
        print_json(config)
        return
    for key, value in flatten(config):
        echo_line(f"{key}={value}")


def print_changes(config: Plain) -> None:
    """Prints on stderr the keys of a run's config that have other values than by default.

    Keys of a component that is not the default one are left out unless its name is what differs.
    """
    from advsweep.sweep.planning.plan import make_plan

    default = dict(flatten(make_plan([], single=True, fetch=False).runs[0].config))
    changed = [
        f"{key}={value}" for key, value in flatten(config) if default.get(key, value) != value
    ]
    if changed:
        echo_line(f"other than the defaults: {' '.join(changed)}", err=True)


def refuse_force(force: bool, what: str) -> None:
    """Refuses `--force` where new attempts could change what earlier results have decided.

    Raises:
        ConfigError: `--force` was given.
    """
    if force:
        raise ConfigError(f"--force: {what} always resumes; start a new one with another --name")


def outcome_record(plan: Plan, outcome: SweepResult) -> dict[str, Any]:
    """Returns the outcome of a sweep for `--format json`."""
    return {
        "sweep": plan.name,
        "runs": list(outcome.run_ids),
        "done": outcome.done,
        "skipped": outcome.skipped,
        "failed": [{"id": i, "error": error} for i, error in outcome.failed.items()],
        "pruned": [{"id": i, "reason": reason} for i, reason in outcome.pruned.items()],
        "unfinished": outcome.unfinished,
        "halted": outcome.halted,
        "submitted": outcome.submitted,
        "queued": outcome.queued,
    }


def print_outcome(plan: Plan, outcome: SweepResult, store: str | None = None) -> None:
    """Prints the outcome of a sweep and the next commands on stderr.

    Args:
        store: the store that was named on the command line; the next commands name it too.
    """
    where, name = _store_option(store), shlex.quote(plan.name or "")
    parts = [f"{outcome.done} done"]
    parts += [f"{outcome.skipped} done before"] if outcome.skipped else []
    parts += [f"{len(outcome.failed)} failed"] if outcome.failed else []
    parts += [f"{len(outcome.pruned)} pruned"] if outcome.pruned else []
    parts += [f"{outcome.unfinished} unfinished"] if outcome.unfinished else []
    parts += [f"{outcome.submitted} submitted"] if outcome.submitted else []
    parts += [f"{outcome.queued} queued or running"] if outcome.queued else []
    echo_line(f"sweep {plan.name}: {', '.join(parts)} of {len(outcome.run_ids)} runs", err=True)
    for run_id, error in list(outcome.failed.items())[:LISTED]:
        echo_line(f"  run {run_id} failed: {error} (advsweep logs {run_id}{where})", err=True)
    if outcome.halted:
        echo("No more runs started: --max-failures reached.", err=True)
    for run_id, reason in list(outcome.pruned.items())[:LISTED]:
        echo_line(f"  run {run_id} pruned: {reason}", err=True)
    if outcome.pruned:
        echo("stopping=none resumes pruned runs from their last checkpoint.", err=True)
    if outcome.failed or outcome.unfinished:
        echo("Start the same sweep again to execute the missing runs.", err=True)
    if outcome.submitted or outcome.queued:
        echo_line(f"`advsweep status {name}{where}` shows their progress.", err=True)
    if outcome.done or outcome.skipped:
        echo_line(f"`advsweep report {name}{where}` prints the table.", err=True)


def _store_option(url: str | None) -> str:
    """Returns ` --store URL` for a command to be copied; empty if it needs none.

    A URL with a password is masked, so such a command has to be completed.
    """
    if url is None or url == os.environ.get("ADVSWEEP_STORE"):
        return ""
    return f" --store {shlex.quote(redacted(url))}"
