"""`advsweep run`: train one run and print a summary."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.options import RecordFormat


def run(
    overrides: options.Overrides = None,
    store: options.Store = None,
    config_dir: options.ConfigDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved config; start nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Train a finished run again as a new attempt.")
    ] = False,
    retries: options.Retries = 2,
    retry_on: options.RetryOn = "oom,timeout,killed",
    time_limit: options.TimeLimit = None,
    memory_limit: options.MemoryLimit = None,
    run_code: options.RunCode = False,
    run_code_as_root: options.RunCodeAsRoot = False,
    store_patience: options.StorePatience = "10m",
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Evaluates the run before, during and after training and records it in the store. An
    interrupted run resumes from its last checkpoint; a finished run is not repeated.

    Examples:
        advsweep run
        advsweep run estimator=fade seed=3
        advsweep run method=dapo task=routes steps=50 --dry-run
    """
    from advsweep.cli import execution, runs
    from advsweep.cli.output import print_json
    from advsweep.cli.overrides import check_overrides
    from advsweep.cli.plan_output import print_absent, print_warnings
    from advsweep.cli.start_output import print_start
    from advsweep.sweep.planning.plan import make_plan, outdated_runs
    from advsweep.sweep.search.study import refuse_search

    overrides = check_overrides(overrides)
    options.give_consent(run_code, run_code_as_root)
    execution.set_store_patience(store_patience)
    policy = execution.make_policy(retries, retry_on, time_limit, memory_limit)
    plan = make_plan(overrides or [], config_dirs=config_dir or (), single=True, fetch=not dry_run)
    refuse_search(plan)
    print_warnings(plan.warnings)
    if dry_run:
        print_absent(plan)
        execution.print_config(plan.runs[0].config, output)
        execution.print_changes(plan.runs[0].config)
        return
    plan.check()  # before creating a store
    with execution.writable_store(store) as opened:
        print_start(plan, opened, 1, force=force)
        print_warnings(outdated_runs(plan, opened))
        with execution.track_events(plan, opened) as track:
            outcome = execution.execute(
                plan, opened, jobs=1, force=force, policy=policy, track=track
            )
        [record] = opened.runs.select(ids=outcome.run_ids)
        if output is RecordFormat.JSON:
            print_json(runs.full_record(opened, record))
        else:
            runs.print_summary(opened, record)
    raise typer.Exit(outcome.exit_code)
