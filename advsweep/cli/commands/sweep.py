"""`advsweep sweep`: train combinations of values, a tuned sweep or a race."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.collection import without_collection
from advsweep.cli.output import echo_line, print_json
from advsweep.errors import ConfigError

EXAMPLES = (
    "advsweep sweep estimator=grpo,fade seed=0,1,2 --name first",
    "advsweep sweep sweep.yaml --jobs 2",
    "advsweep sweep +experiment=demo --dry-run",
)


def sweep(
    overrides: options.Overrides = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="TEXT",
            help="Name the sweep (default: the file's, or a hash).",
        ),
    ] = None,
    jobs: options.Jobs = None,
    multirun: options.Multirun = False,
    dry_run: options.DryRun = False,
    force: options.Force = False,
    race: Annotated[
        bool,
        typer.Option(
            "--race",
            help="Train only seeds that settle a difference.",
        ),
    ] = False,
    retries: options.Retries = 2,
    max_failures: Annotated[
        int | None,
        typer.Option(
            "--max-failures",
            metavar="N",
            min=1,
            help="Start no more runs once N runs have failed for good.",
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            "--time-limit",
            metavar="DURATION",
            help="Limit each attempt of a run: 90s, 15m or 1h30m.",
        ),
    ] = None,
    run_code: options.RunCode = False,
    trust_store: options.TrustStore = False,
    config_dirs: options.ConfigDirs = None,
    store: options.Store = None,
    output_format: options.RecordFormat = "text",
) -> None:
    """Train every combination of values, or resume it.

    Values are KEY=VALUE,VALUE: estimator=grpo,fade 'seed=range(5)'. FILE.yaml or
    +experiment=NAME is a sweep file, as `advsweep init` writes it. Finished runs are not repeated,
    and interrupted ones go on: start the same sweep again, or give the name of a stored one. A
    file with `tune` first finds each arm's learning rate, say.
    """
    # The help does without these, which take most of a second to import.
    from advsweep.cli import consent, execution, plans, runs
    from advsweep.cli.restart import (
        RestartOptions,
        refuse_options,
        resume,
        stored_names,
        stored_sweep,
    )
    from advsweep.sweep.planning.words import check_words
    from advsweep.sweep.retry_policy import Policy, parse_duration

    as_json = output_format == "json"

    policy = Policy(
        retries=retries,
        max_failures=max_failures,
        time_limit=None if time_limit is None else parse_duration(time_limit),
    )
    stored = stored_sweep(overrides or (), store)
    if stored is not None:
        refuse_options(
            stored, {"--name": name, "--dry-run": dry_run, "--force": force, "--race": race}
        )
        consent.allow_programs(run_code)
        consent.trust_commands(trust_store)
        how = RestartOptions(jobs=jobs, policy=policy, as_json=as_json)
        with execution.writable_store(store, create=False) as opened:
            code = resume(opened, stored, overrides or (), how)
        raise typer.Exit(code)
    texts = check_words(overrides, lambda: stored_names(store))
    if not texts:
        raise ConfigError(
            "sweep: expected values to sweep over, such as estimator=grpo,fade seed=0,1,2, or a "
            "sweep file; `advsweep run` trains a single run"
        )
    consent.allow_programs(run_code)
    if race:
        texts.append("sweep.race=true")
    with without_collection():
        planned = plans.plan_sweep(texts, config_dirs or (), name, fetch=not dry_run)
    if force and planned.always_resumes:
        raise ConfigError(
            "--force: a tuned sweep always resumes, as a race does; start a new one with another "
            "--name"
        )
    if dry_run:
        with without_collection():
            plans.print_sweep(planned, store, jobs, force=force, as_json=as_json)
        return
    plans.print_warnings(planned.plan.warnings)
    planned.plan.check()  # before creating a store
    with execution.writable_store(store) as opened:
        trained = plans.train_sweep(planned, opened, jobs, policy, force=force)
        plan, result = trained.plan, trained.result
        if as_json:
            print_json({**execution.result_record(plan, result), **trained.plain()})
        else:
            for sentence in runs.describe_no_signal(opened, result.run_ids):
                echo_line(sentence, err=True)
            if trained.race is not None:
                runs.print_race(trained.race)
            execution.print_result(plan, result, store)
    raise typer.Exit(trained.exit_code)
