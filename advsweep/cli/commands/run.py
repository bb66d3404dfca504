"""`advsweep run`: train one run."""

from __future__ import annotations

import typer

from advsweep.cli import options
from advsweep.cli.output import echo_line, print_json

EXAMPLES = (
    "advsweep run",
    "advsweep run estimator=fade seed=3",
    "advsweep run method=dapo task=routes steps=50 --dry-run",
)


def run(
    overrides: options.Overrides = None,
    multirun: options.Multirun = False,
    dry_run: options.DryRun = False,
    force: options.Force = False,
    retries: options.Retries = 2,
    run_code: options.RunCode = False,
    config_dirs: options.ConfigDirs = None,
    store: options.Store = None,
    output_format: options.RecordFormat = "text",
) -> None:
    """Train one run and print a summary.

    Evaluates the run before, during and after training and records it in the store. An
    interrupted run resumes from its last checkpoint; a finished run is not repeated.
    """
    # The help does without these, which take most of a second to import.
    from advsweep.cli import consent, execution, plans, runs
    from advsweep.cli.commands.sweep import sweep
    from advsweep.sweep.planning.plan import make_plan
    from advsweep.sweep.planning.words import check_words
    from advsweep.sweep.retry_policy import Policy

    if multirun:
        sweep(
            overrides,
            dry_run=dry_run,
            force=force,
            retries=retries,
            run_code=run_code,
            config_dirs=config_dirs,
            store=store,
            output_format=output_format,
        )
        return
    texts = check_words(overrides)
    consent.allow_programs(run_code)
    policy = Policy(retries=retries)
    plan = make_plan(texts, config_dirs=config_dirs or (), single=True, fetch=not dry_run)
    plans.print_warnings(plan.warnings, plan.absent if dry_run else ())
    if dry_run and output_format == "json":
        print_json(plan.runs[0].config)
        return
    if dry_run:
        for key, value in runs.flatten(plan.runs[0].config).items():
            echo_line(f"{key}={value}")
        return
    plan.check()  # before creating a store
    with execution.writable_store(store) as opened:
        plans.print_start(plan, opened, 1, force=force)
        result = execution.execute(plan, opened, jobs=1, force=force, policy=policy)
        [record] = opened.runs.select(ids=result.run_ids)
        if output_format == "json":
            print_json(runs.full_record(opened, record))
        else:
            runs.print_summary(opened, record)
    raise typer.Exit(result.exit_code)
