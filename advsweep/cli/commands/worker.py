"""`advsweep worker`: train open runs of a store."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from advsweep.cli import consent, execution, options
from advsweep.cli.output import echo, echo_line, warn
from advsweep.cli.runs import split_sweep
from advsweep.errors import NoStoreError, StoreUnavailableError
from advsweep.store import Store
from advsweep.store.seeds import show_seed
from advsweep.sweep.events import Event, RunEvent
from advsweep.sweep.executors.local import LocalExecutor
from advsweep.sweep.planning.resume import DEFAULTS, changed_settings
from advsweep.sweep.registry import TRACKINGS
from advsweep.sweep.scheduler.pull import pull_runs
from advsweep.sweep.tracking.base import tracker_client
from advsweep.sweep.watch import without_prompts

# Interval between two tries to open a store that is not there yet.
AWAIT_SECONDS = 2.0

EXAMPLES = (
    "advsweep worker --store postgresql://me@db.example.org/runs --wait inf",
    "advsweep worker demo",
)


def worker(
    arguments: Annotated[
        list[str] | None,
        options.sweep_and_settings(
            "Train only runs of this sweep. Replace its settings: resources.cpus=2, "
            "executor.jobs=2 or tracking=NAME."
        ),
    ] = None,
    jobs: options.Jobs = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            help="Wait this long for the store, the sweep, and new runs; inf: until stopped.",
        ),
    ] = 0,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Start the programs of backend=command in this folder.",
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            "--runs",
            metavar="DIR",
            envvar="ADVSWEEP_RUNS",
            help="Keep logs and checkpoints of runs in this folder.",
        ),
    ] = None,
    run_code: options.RunCode = False,
    store: options.Store = None,
    trust_store: options.TrustStore = False,
) -> None:
    """Train open runs of a store until none is left.

    Takes pending, interrupted and lost runs in the order of their sweep; skips failed runs.
    Start any number of workers on any machine that reaches the store: no run is trained twice. On
    SIGTERM or Ctrl-C the runs write a checkpoint, and other workers can resume them.

    What this machine lacks is no fault of the runs: the worker then ends with one line, and the
    runs stay open. Until one of its runs has trained a step or has lasted 30 s, it trains two at a
    time, and ends if both fail.

    Each run gets the cores and GPUs that its sweep assigns; runs execute in parallel as far as they
    fit. tracking=NAME tracks the runs.

    Checkpoints are files. If workers on several machines share the folder given by --runs, a run
    resumes from the checkpoint of another machine; otherwise it restarts from step 0.
    """
    consent.allow_programs(run_code)
    consent.trust_commands(trust_store, folder)
    sweep, overrides = split_sweep(arguments or [])
    of_worker = [text for text in overrides if text.startswith(("executor.", "tracking"))]
    of_runs = [text for text in overrides if text not in of_worker]
    chosen = changed_settings({"executor": DEFAULTS["executor"], "tracking": None}, of_worker)
    executor = LocalExecutor.build({"jobs": jobs, **(chosen["executor"] or {})}, where="executor")
    tracking = TRACKINGS.build(chosen["tracking"] or "none", where="tracking")
    if runs is not None:
        # The processes of runs read this variable.
        os.environ["ADVSWEEP_RUNS"] = str(runs.absolute())
    with (
        without_prompts(),
        _await_store(store, wait) as opened,
        tracker_client(opened, tracking, warn) as track,
    ):

        def on_event(event: Event) -> None:
            if isinstance(event, RunEvent):
                _print_event(event)
            track(event)

        result = pull_runs(
            opened,
            sweep,
            executor,
            on_event,
            idle_seconds=wait,
            overrides=of_runs,
        )
    parts = [f"{result.done} done"]
    if result.failed:
        parts.append(f"{len(result.failed)} failed")
    if result.unfinished:
        parts.append(f"{result.unfinished} unfinished")
    echo(f"worker: {', '.join(parts)}", err=True)
    raise typer.Exit(result.exit_code)


def _await_store(url: str | None, seconds: float) -> Store:
    """Open the store, and wait so long for it: pods and units start in any order.

    Raises:
        StoreError: it cannot be opened after that.
    """
    deadline = time.monotonic() + seconds
    is_told = False
    while True:
        try:
            return execution.writable_store(url, create=False)
        except (NoStoreError, StoreUnavailableError) as error:
            if time.monotonic() >= deadline:
                raise
            if not is_told:
                warn(f"{error}; waiting for it")
            is_told = True
        time.sleep(AWAIT_SECONDS)


def _print_event(event: RunEvent) -> None:
    run = event.run
    reason = f": {event.message}" if event.message else ""
    echo_line(
        f"run {run.id} ({run.estimator} seed={show_seed(run.seed)}) {event.kind.value}{reason}",
        err=True,
    )
