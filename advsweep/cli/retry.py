"""`advsweep retry`: starts runs again that came to no good end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from advsweep.cli import options
from advsweep.cli.options import RecordFormat

if TYPE_CHECKING:
    from advsweep.sweep.events import Outcome


def retry(
    targets: options.Targets,
    jobs: options.Jobs = None,
    store: options.Store = None,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Start runs again that failed, were interrupted, stopped or lost, or never began.

    They go on from their last checkpoint, on this machine, without a rule that stops runs
    early. What they are is read from the store; runs that are done or running are left alone.
    """
    from advsweep.cli import execution
    from advsweep.cli.output import print_json
    from advsweep.cli.targets import find_targets
    from advsweep.store import Status, open_store
    from advsweep.sweep.policy import Policy
    from advsweep.sweep.resumption import plan_again

    with open_store(store, create=False) as opened:
        runs = find_targets(opened, targets).runs
        left = [run for run in runs if run.status not in (Status.DONE, Status.RUNNING)]
        if alone := len(runs) - len(left):
            typer.echo(f"{alone} of {len(runs)} runs are done or running", err=True)
        if not left:
            typer.echo("nothing to start again", err=True)
            return
        plan = plan_again(left)
        outcome = execution.execute(plan, opened, jobs=jobs, force=False, policy=Policy())
    if output is RecordFormat.JSON:
        print_json(execution.outcome_record(plan, outcome))
    else:
        _print(outcome)
    raise typer.Exit(outcome.exit_code)


def _print(outcome: Outcome) -> None:
    counts = (
        (outcome.done, "done"),
        (len(outcome.failed), "failed"),
        (outcome.unfinished, "unfinished"),
    )
    parts = ", ".join(f"{count} {what}" for count, what in counts if count)
    typer.echo(f"{len(outcome.run_ids)} runs: {parts}", err=True)
    for run_id, error in outcome.failed.items():
        typer.echo(f"  run {run_id} failed: {error} (advsweep logs {run_id})", err=True)
