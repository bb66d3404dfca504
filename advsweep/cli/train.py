"""`advsweep run`, `sweep`, `retry` and `worker`: train runs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from advsweep.cli import execution, options, plans, runs
from advsweep.cli.options import complete_sweep, complete_target
from advsweep.cli.output import echo, echo_line, flatten, print_json, warn
from advsweep.cli.runs import Targets, find_targets, split_overrides
from advsweep.errors import ConfigError
from advsweep.store import RunRecord, Status, Store
from advsweep.store.records import show_seed
from advsweep.sweep.events import Event, RunEvent
from advsweep.sweep.executors.local import LocalExecutor
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.planning.resume import (
    DEFAULTS,
    Settings,
    changed_settings,
    plan_again,
    settings_again,
)
from advsweep.sweep.registry import TRACKINGS
from advsweep.sweep.retry_policy import Policy, parse_duration
from advsweep.sweep.scheduler.execute import pull_runs
from advsweep.sweep.tracking.base import tracker_client


def run(
    overrides: list[str] | None = None,
    dry_run: bool = False,
    force: bool = False,
    retries: int = 2,
    run_code: bool = False,
    config_dirs: list[Path] | None = None,
    store: str | None = None,
    how: options.RecordFormat = "text",
) -> None:
    """Evaluates the run before, during and after training and records it in the store. An
    interrupted run resumes from its last checkpoint; a finished run is not repeated.

    Examples:
        advsweep run
        advsweep run estimator=fade seed=3
        advsweep run method=dapo task=routes steps=50 --dry-run
    """

    given = execution.check_overrides(overrides)
    options.give_consent(run_code)
    policy = Policy(retries=retries)
    plan = make_plan(given, config_dirs=config_dirs or (), single=True, fetch=not dry_run)
    plans.print_warnings(plan.warnings, plan.absent if dry_run else ())
    if dry_run and how == "json":
        print_json(plan.runs[0].config)
        return
    if dry_run:
        for key, value in flatten(plan.runs[0].config).items():
            echo_line(f"{key}={value}")
        return
    plan.check()  # before creating a store
    with execution.writable_store(store) as opened:
        plans.print_start(plan, opened, 1, force=force)
        outcome = execution.execute(plan, opened, jobs=1, force=force, policy=policy)
        [record] = opened.runs.select(ids=outcome.run_ids)
        if how == "json":
            print_json(runs.full_record(opened, record))
        else:
            runs.print_summary(opened, record)
    raise typer.Exit(outcome.exit_code)


def sweep(
    overrides: list[str] | None = None,
    name: str | None = None,
    jobs: int | None = None,
    dry_run: bool = False,
    force: bool = False,
    race: bool = False,
    retries: int = 2,
    max_failures: int | None = None,
    time_limit: str | None = None,
    run_code: bool = False,
    config_dirs: list[Path] | None = None,
    store: str | None = None,
    how: options.RecordFormat = "text",
) -> None:
    """Values are KEY=VALUE,VALUE: estimator=grpo,fade 'seed=range(5)'. FILE.yaml or
    +experiment=NAME is a sweep file, as `advsweep init` writes it. Finished runs are not repeated,
    and interrupted ones go on. A file with `tune` first finds each arm's learning rate, say.

    Options:
        --name: Name the sweep (default: the file's, or a hash).
        --race: Train only seeds that settle a difference.
        --max-failures N >= 1: Start no more runs once N runs have failed for good.
        --time-limit DURATION: Limit each attempt of a run: 90s, 15m or 1h30m.

    Examples:
        advsweep sweep estimator=grpo,fade seed=0,1,2 --name first
        advsweep sweep sweep.yaml --jobs 2
        advsweep sweep +experiment=demo --dry-run
    """

    given = execution.check_overrides(overrides)
    if not given:
        raise ConfigError(
            "sweep: expected values to sweep over, such as estimator=grpo,fade seed=0,1,2, or a "
            "sweep file; `advsweep run` trains a single run"
        )
    options.give_consent(run_code)
    policy = Policy(
        retries=retries,
        max_failures=max_failures,
        time_limit=None if time_limit is None else parse_duration(time_limit),
    )
    given += ["sweep.race=true"] if race else []
    planned = plans.plan_sweep(given, config_dirs or (), name, fetch=not dry_run)
    if force and (planned.plan.race is not None or type(planned) is not plans.Sweep):
        raise ConfigError(
            "--force: a tuned sweep always resumes, as a race does; start a new one with another "
            "--name"
        )
    as_json = how == "json"
    if dry_run:
        planned.print(store, jobs, force=force, as_json=as_json)
        return
    plans.print_warnings(planned.plan.warnings)
    planned.plan.check()  # before creating a store
    with execution.writable_store(store) as opened:
        outcome = planned.execute(opened, jobs, policy, force)
        if as_json:
            print_json({**execution.outcome_record(planned.plan, outcome), **planned.more})
        else:
            for sentence in runs.describe_no_signal(opened, outcome.run_ids):
                echo_line(sentence, err=True)
            if planned.standing is not None:
                runs.print_race(planned.standing)
            execution.print_outcome(planned.plan, outcome, store)
    raise typer.Exit(outcome.exit_code or int(planned.lacks_choice))


def retry(
    arguments: Annotated[list[str], complete_target],
    jobs: int | None = None,
    retries: int = 2,
    run_code: bool = False,
    trust_store: bool = False,
    store: str | None = None,
    how: options.RecordFormat = "text",
) -> None:
    """Takes failed, interrupted, stopped, lost and pending runs. They resume from their last
    checkpoint with the resources of their sweep (without a sweep: one core each) and their own rule
    for early stopping. The store supplies their config, but not their executor and tracker: give
    executor= and tracking=. Done and running runs are skipped; pruned runs resume only with
    stopping=none or another rule.

    Arguments:
        RUN...|SWEEP [KEY=VALUE]... (arguments): Runs (ids, starts of identities, 'last'), or a
            sweep for all its runs; and settings of executor, resources, stopping or tracking.

    Examples:
        advsweep retry demo
        advsweep retry 12 14 --retries 0
    """

    options.give_consent(run_code)
    options.trust_commands(trust_store)
    policy = Policy(retries=retries)
    names, overrides = split_overrides(arguments)
    if not names:
        raise ConfigError(f"expected runs or a sweep to restart, got {' '.join(overrides)}")
    with execution.writable_store(store, create=False) as opened:
        found = find_targets(opened, names)
        open_ = [r for r in found.runs if r.status not in (Status.DONE, Status.RUNNING)]
        settings = _settings(opened, found, open_, overrides)
        skipped_status = Status.PRUNED if settings["stopping"] is None else None
        restarted = [run for run in open_ if run.status is not skipped_status]
        if skipped := len(found.runs) - len(restarted):
            echo(f"Skipped {skipped} of {len(found.runs)} runs: done, running or pruned.", err=True)
        if not restarted:
            echo("No runs to restart.", err=True)
            return
        plan = plan_again(restarted, settings)
        plan.check()
        outcome = execution.execute(plan, opened, jobs=jobs, force=False, policy=policy)
    if how == "json":
        print_json(execution.outcome_record(plan, outcome))
    else:
        execution.print_outcome(plan, outcome)
    raise typer.Exit(outcome.exit_code)


def _settings(
    store: Store,
    targets: Targets,
    runs: Sequence[RunRecord],
    overrides: Sequence[str],
) -> Settings:
    """Return the settings that all of these runs share.

    Raises:
        ConfigError: their settings differ, or only the store names an executor.
    """

    sweeps = store.sweeps.select()
    meant = [sweep for sweep in sweeps if sweep.name in targets.sweeps]
    found: dict[str, Settings] = {}
    for run in runs:
        own = settings_again(run, sweeps if run.id in targets.named else meant, overrides)
        found[json.dumps(own)] = own
    changed = [changed_settings(settings, overrides) for settings in found.values() or [DEFAULTS]]
    first, *others = changed
    for other in others:
        for group, node in first.items():
            if other[group] != node:
                raise ConfigError(
                    f"{group}: expected the same setting for all restarted runs, got {node} and "
                    f"{other[group]}; restart one sweep at a time, or choose one, such as "
                    f"{group}={node['name'] if node else 'none'}"
                )
    return first


# worker


def worker(
    arguments: Annotated[list[str] | None, complete_sweep] = None,
    jobs: int | None = None,
    wait: float = 0,
    runs: Path | None = None,
    run_code: bool = False,
    store: str | None = None,
    trust_store: bool = False,
) -> None:
    """Takes pending, interrupted and lost runs in the order of their sweep; skips failed runs.
    Start any number of workers on any machine that reaches the store: no run is trained twice. On
    SIGTERM or Ctrl-C the runs write a checkpoint, and other workers can resume them.

    Each run gets the cores and GPUs that its sweep assigns; runs execute in parallel as far as they
    fit. tracking=NAME tracks the runs.

    Checkpoints are files. If workers on several machines share the folder given by --runs, a run
    resumes from the checkpoint of another machine; otherwise it restarts from step 0.

    Arguments:
        [SWEEP] [KEY=VALUE]... (arguments): Train only runs of this sweep. Replace its settings:
            resources.cpus=2, executor.jobs=2 or tracking=NAME.

    Options:
        --runs DIR $ADVSWEEP_RUNS: Keep logs and checkpoints of runs in this folder.
        --wait SECONDS >= 0: Wait this long for new runs when no run is open; inf: until
            stopped.

    Examples:
        advsweep worker --store postgresql://me@db.example.org/runs --wait inf
        advsweep worker demo
    """

    options.give_consent(run_code)
    options.trust_commands(trust_store)
    names, overrides = split_overrides(arguments or [])
    if len(names) > 1:
        raise ConfigError(f"expected one sweep, got {', '.join(names)}")
    own = [text for text in overrides if text.startswith(("executor.", "tracking"))]
    chosen = changed_settings({"executor": DEFAULTS["executor"], "tracking": None}, own)
    executor = LocalExecutor.build({"jobs": jobs, **(chosen["executor"] or {})}, where="executor")
    tracking = TRACKINGS.build(chosen["tracking"] or "none", where="tracking")
    if runs is not None:
        # The processes of runs read this variable.
        os.environ["ADVSWEEP_RUNS"] = str(runs.absolute())
    with (
        execution.without_prompts(),
        execution.writable_store(store, create=False) as opened,
        tracker_client(opened, tracking, warn) as track,
    ):

        def on_event(event: Event) -> None:
            if isinstance(event, RunEvent):
                run, reason = event.run, f": {event.message}" if event.message else ""
                what = f"run {run.id} ({run.estimator} seed={show_seed(run.seed)})"
                echo_line(f"{what} {event.kind.value}{reason}", err=True)
            track(event)

        outcome = pull_runs(
            opened,
            names[0] if names else None,
            executor,
            on_event,
            idle_seconds=wait,
            overrides=[text for text in overrides if text not in own],
        )
    parts = [f"{outcome.done} done"]
    parts += [f"{len(outcome.failed)} failed"] if outcome.failed else []
    parts += [f"{outcome.unfinished} unfinished"] if outcome.unfinished else []
    echo(f"worker: {', '.join(parts)}", err=True)
    raise typer.Exit(outcome.exit_code)
