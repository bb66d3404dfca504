"""`advsweep sweep`: train the missing runs of a sweep in parallel."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.options import ListFormat, RecordFormat


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
        bool, typer.Option("--force", help="Train finished runs again as new attempts.")
    ] = False,
    retries: options.Retries = 2,
    retry_on: options.RetryOn = "oom,timeout,killed",
    max_failures: Annotated[
        int | None,
        typer.Option(
            "--max-failures",
            min=1,
            metavar="N",
            help="Start no more runs once N runs have failed after their retries (default: no "
            "limit).",
        ),
    ] = None,
    fail_fast: Annotated[
        bool,
        typer.Option("--fail-fast", help="Stop all runs with a checkpoint as soon as one fails."),
    ] = False,
    time_limit: options.TimeLimit = None,
    memory_limit: options.MemoryLimit = None,
    run_code: options.RunCode = False,
    run_code_as_root: options.RunCodeAsRoot = False,
    store_patience: options.StorePatience = "10m",
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Values are given as KEY=VALUE,VALUE: estimator=grpo,fade group_size=4,8 'seed=range(5)'.
    FILE.yaml or +experiment=NAME takes them from a sweep file, which `advsweep init` writes.
    Finished runs are not repeated; interrupted runs resume from their last checkpoint. A failed run
    is retried where that may help (--retries); it stops other runs only with --fail-fast or
    --max-failures. search=optuna searches the space given by interval(), choice() and range(),
    trial by trial. A sweep file with `tune` first finds a value of a key for each arm, such as the
    learning rate, with seeds of its own, and then trains the sweep at the chosen values.

    Examples:
        advsweep sweep estimator=grpo,fade seed=0,1,2 --name first
        advsweep sweep sweep.yaml --jobs 2
        advsweep sweep +experiment=demo --dry-run
    """
    from advsweep.cli import execution, runs, search_output, tuning_output
    from advsweep.cli.output import echo_line, print_json
    from advsweep.cli.overrides import check_overrides
    from advsweep.cli.plan_output import print_plan, print_warnings
    from advsweep.cli.start_output import print_start
    from advsweep.errors import ConfigError
    from advsweep.sweep.planning.plan import make_plan, outdated_runs
    from advsweep.sweep.search.study import plan_search, refuse_search
    from advsweep.sweep.tuning import plan_tuning

    overrides = check_overrides(overrides)
    if not overrides:
        raise ConfigError(
            "sweep: expected values to sweep over, such as estimator=grpo,fade seed=0,1,2, or a "
            "sweep file; `advsweep run` trains a single run"
        )
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
        execution.refuse_force(force, "a search")
        execution.check_outcomes(study.example)
        if dry_run:
            search_output.print_search(study, store, jobs, how)
            return
        study.example.check()
        search_output.search(study, store, jobs, policy=policy, output=output)
    tuning = plan_tuning(overrides, config_dirs=config_dir or (), name=name, fetch=not dry_run)
    if tuning is not None:
        execution.refuse_force(force, "a tuned sweep")
        execution.check_outcomes(tuning.test)
        if dry_run:
            tuning_output.print_tuned_plan(tuning, store, jobs, how)
            return
        tuning_output.sweep_tuned(tuning, store, jobs, policy=policy, output=output)
    plan = make_plan(overrides or [], config_dirs=config_dir or (), name=name, fetch=not dry_run)
    refuse_search(plan)
    execution.check_outcomes(plan)
    if dry_run:
        print_plan(plan, store, jobs, how, force=force)
        return
    print_warnings(plan.warnings)
    plan.check()  # before creating a store
    with execution.writable_store(store) as opened:
        print_start(plan, opened, jobs, force=force)
        print_warnings(outdated_runs(plan, opened))
        with execution.track_events(plan, opened) as track:
            outcome = execution.execute(
                plan, opened, jobs=jobs, force=force, policy=policy, track=track
            )
        if output is RecordFormat.JSON:
            print_json(execution.outcome_record(plan, outcome))
        else:
            for sentence in runs.describe_no_signal(opened, outcome.run_ids):
                echo_line(sentence, err=True)
            execution.print_outcome(plan, outcome, store)
    raise typer.Exit(outcome.exit_code)
