"""What `run` and `sweep` share: the store, the live view, and how outcomes are printed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from advsweep.cli.shared.options import RecordFormat
from advsweep.cli.shared.output import echo, echo_line, print_json
from advsweep.cli.shared.run_record import flat

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.store import Store
    from advsweep.sweep.planning.plan import Plan
    from advsweep.sweep.retry_policy import Policy
    from advsweep.sweep.scheduler.events import Event, SweepResult

LISTED = 20


@contextmanager
def opened(url: str | None) -> Iterator[Store]:
    """The store to write to, made if it is not there."""
    from advsweep.store import open_store
    from advsweep.sweep.retry_policy import store_patience

    store = open_store(url, patience=store_patience())
    try:
        yield store
    finally:
        store.close()


def set_store_patience(text: str) -> float:
    """Sets for how long the runs' processes wait for a store that is away; returns the seconds.

    Raises:
        ConfigError: it is no duration.
    """
    from advsweep.sweep.retry_policy import STORE_PATIENCE_VARIABLE, parse_duration

    seconds = parse_duration(text, "--store-patience")
    os.environ[STORE_PATIENCE_VARIABLE] = text
    return seconds


def make_policy(
    retries: int,
    retry_on: str,
    time_limit: str | None,
    memory_limit: str | None,
    *,
    max_failures: int | None = None,
    fail_fast: bool = False,
) -> Policy:
    """Retries and limits as they were given on the command line.

    Raises:
        ConfigError: one of them cannot be read.
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
    feed: Callable[[Event], None] = lambda event: None,
) -> SweepResult:
    """Executes a plan with a live view on stderr.

    Args:
        feed: is told what happens, too; what `tracked` gives.
    """
    from advsweep.sweep.scheduler.scheduler import execute as run_plan

    with shown(plan, store, feed) as on_event:
        return run_plan(plan, store, jobs, on_event, force=force, policy=policy)


@contextmanager
def shown(
    plan: Plan, store: Store, feed: Callable[[Event], None]
) -> Iterator[Callable[[Event], None]]:
    """A live view on stderr of what is told to the yielded function, and to `feed` by it."""
    from advsweep.sweep.progress import live_view

    with live_view(plan, store) as show:

        def on_event(event: Event) -> None:
            show(event)
            feed(event)

        yield on_event


@contextmanager
def tracked(plan: Plan, store: Store) -> Iterator[Callable[[Event], None]]:
    """Feeds the tracker of a plan with what is told to the yielded function.

    Raises:
        ConfigError: the tracker cannot work here.
    """
    from advsweep.sweep.executors.base import QueueExecutor
    from advsweep.sweep.tracking.base import sync_command
    from advsweep.sweep.tracking.client import tracker_client

    tracking = plan.tracking
    if not tracking.is_on:
        yield lambda event: None
        return
    if isinstance(plan.executor, QueueExecutor):
        yield lambda event: None
        how = sync_command(tracking, plan.name or "RUN")
        warn(f"tracking: runs in a queue are not followed; {how} sends those that are done")
        return
    tracking.check()
    with tracker_client(store, lambda run: [tracking], warn) as feed:
        yield feed


def warn(line: str) -> None:
    """A line on stderr, under our name."""
    echo_line(f"advsweep: {line}", err=True)


def print_config(config: Plain, output: RecordFormat) -> None:
    """A run's resolved config."""
    if output is RecordFormat.JSON:
        print_json(config)
        return
    for key, value in flat(config):
        echo_line(f"{key}={value}")


def outcome_record(plan: Plan, outcome: SweepResult) -> dict[str, Any]:
    """What came of a sweep, for `--format json`."""
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


def print_outcome(plan: Plan, outcome: SweepResult) -> None:
    """What came of a sweep, and what to type next."""
    parts = [f"{outcome.done} done"]
    parts += [f"{outcome.skipped} done before"] if outcome.skipped else []
    parts += [f"{len(outcome.failed)} failed"] if outcome.failed else []
    parts += [f"{len(outcome.pruned)} pruned"] if outcome.pruned else []
    parts += [f"{outcome.unfinished} unfinished"] if outcome.unfinished else []
    parts += [f"{outcome.submitted} submitted"] if outcome.submitted else []
    parts += [f"{outcome.queued} queued or running"] if outcome.queued else []
    echo_line(f"sweep {plan.name}: {', '.join(parts)} of {len(outcome.run_ids)} runs", err=True)
    for run_id, error in list(outcome.failed.items())[:LISTED]:
        echo_line(f"  run {run_id} failed: {error} (advsweep logs {run_id})", err=True)
    if outcome.halted:
        echo("so many failed that no more were started", err=True)
    for run_id, reason in list(outcome.pruned.items())[:LISTED]:
        echo_line(f"  run {run_id} pruned: {reason}", err=True)
    if outcome.pruned:
        echo("with stopping=none they go on from their last checkpoint", err=True)
    if outcome.failed or outcome.unfinished:
        echo("start the same sweep again to do what is missing", err=True)
    if outcome.submitted or outcome.queued:
        echo_line(f"advsweep status {plan.name}   shows how far they are", err=True)
    if outcome.done or outcome.skipped:
        echo_line(f"advsweep report {plan.name}   prints its table", err=True)
