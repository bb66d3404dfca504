"""`advsweep sweep`: many runs, side by side, only what is missing."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.options import ListFormat, RecordFormat


def sweep(
    overrides: options.Overrides = None,
    name: options.NewSweepName = None,
    jobs: options.Jobs = None,
    store: options.Store = None,
    config_dir: options.ConfigDir = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan, as `advsweep plan` does; start nothing."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Train again what is done, as new attempts.")
    ] = False,
    retries: options.Retries = 2,
    retry_on: options.RetryOn = "oom,timeout,killed",
    max_failures: Annotated[
        int | None,
        typer.Option(
            "--max-failures",
            min=1,
            metavar="N",
            help="Start nothing more once N runs have failed, retries included (default: go on).",
        ),
    ] = None,
    fail_fast: Annotated[
        bool,
        typer.Option(
            "--fail-fast", help="Stop all runs, with a checkpoint, at the first failed one."
        ),
    ] = False,
    time_limit: options.TimeLimit = None,
    memory_limit: options.MemoryLimit = None,
    run_code: options.RunCode = False,
    run_code_as_root: options.RunCodeAsRoot = False,
    store_patience: options.StorePatience = "10m",
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Train every combination of the values given; start it again to resume it.

    Values are swept as in Hydra: estimator=grpo,fade group_size=4,8 'seed=range(5)'. A sweep
    file is named by +experiment=NAME. Runs that are done are not repeated, and interrupted
    ones go on from their last checkpoint. A run that fails is tried again where that may help
    (--retries), and stops the others only if that is asked for. search=optuna tries out what
    interval(), choice() and range() give, trial by trial.
    """
    from advsweep.cli.shared import execution, search_output
    from advsweep.cli.shared.output import print_json
    from advsweep.cli.shared.plan_output import print_plan, print_warnings
    from advsweep.sweep.planning.plan import make_plan, outdated_runs
    from advsweep.sweep.search.study import plan_search, refuse_search

    options.give_consent(run_code, run_code_as_root)
    execution.set_store_patience(store_patience)
    policy = execution.make_policy(
        retries,
        retry_on,
        time_limit,
        memory_limit,
        max_failures=max_failures,
        fail_fast=fail_fast,
    )
    study = plan_search(overrides or [], config_dirs=config_dir or (), name=name)
    how = ListFormat.JSON if output is RecordFormat.JSON else ListFormat.TABLE
    if study is not None:
        search_output.refuse_force(force)
        if dry_run:
            search_output.print_search(study, store, jobs, how)
            return
        study.example.check()
        search_output.search(study, store, jobs, policy=policy, output=output)
    plan = make_plan(overrides or [], config_dirs=config_dir or (), name=name, fetch=not dry_run)
    refuse_search(plan)
    if dry_run:
        print_plan(plan, store, jobs, how, force=force)
        return
    print_warnings(plan.warnings)
    plan.check()  # before a store is made
    with execution.opened(store) as opened:
        print_warnings(outdated_runs(plan, opened))
        with execution.tracked(plan, opened) as feed:
            outcome = execution.execute(
                plan, opened, jobs=jobs, force=force, policy=policy, feed=feed
            )
        if output is RecordFormat.JSON:
            print_json(execution.outcome_record(plan, outcome))
        else:
            execution.print_outcome(plan, outcome)
    raise typer.Exit(outcome.exit_code)
