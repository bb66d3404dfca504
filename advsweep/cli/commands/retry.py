"""`advsweep retry`: restart runs with the settings that they share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from advsweep.cli import consent, execution, options
from advsweep.cli.completion import complete_target
from advsweep.cli.output import echo, print_json
from advsweep.cli.runs import Targets, find_targets, split_overrides
from advsweep.errors import ConfigError
from advsweep.store import RunRecord, Status, Store
from advsweep.sweep.planning.resume import (
    DEFAULTS,
    Settings,
    changed_settings,
    plan_again,
    settings_again,
)
from advsweep.sweep.retry_policy import Policy

EXAMPLES = (
    "advsweep retry demo",
    "advsweep retry 12 14 --retries 0",
)


def retry(
    arguments: Annotated[
        list[str],
        typer.Argument(
            show_default=False,
            metavar="RUN...|SWEEP [KEY=VALUE]...",
            autocompletion=complete_target,
            help="Runs (ids, starts of identities, 'last'), or a sweep for all its runs; and "
            "settings of executor, resources, stopping or tracking.",
        ),
    ],
    jobs: options.Jobs = None,
    retries: options.Retries = 2,
    run_code: options.RunCode = False,
    trust_store: options.TrustStore = False,
    store: options.Store = None,
    output_format: options.RecordFormat = "text",
) -> None:
    """Restart runs that failed, were stopped or never started.

    Takes failed, interrupted, stopped, lost and pending runs. They resume from their last
    checkpoint with the resources of their sweep (without a sweep: one core each) and their own rule
    for early stopping. The store supplies their config, but not their executor and tracker: give
    executor= and tracking=. Done and running runs are skipped; pruned runs resume only with
    stopping=none or another rule.
    """
    consent.allow_programs(run_code)
    consent.trust_commands(trust_store)
    policy = Policy(retries=retries)
    names, overrides = split_overrides(arguments)
    if not names:
        raise ConfigError(f"expected runs or a sweep to restart, got {' '.join(overrides)}")
    with execution.writable_store(store, create=False) as opened:
        targets = find_targets(opened, names)
        open_ = [r for r in targets.runs if r.status not in (Status.DONE, Status.RUNNING)]
        settings = _settings(opened, targets, open_, overrides)
        skipped_status = Status.PRUNED if settings["stopping"] is None else None
        restarted = [run for run in open_ if run.status is not skipped_status]
        if skipped := len(targets.runs) - len(restarted):
            echo(
                f"Skipped {skipped} of {len(targets.runs)} runs: done, running or pruned.", err=True
            )
        if not restarted:
            echo("No runs to restart.", err=True)
            return
        plan = plan_again(restarted, settings)
        plan.check()
        result = execution.execute(plan, opened, jobs=jobs, force=False, policy=policy)
    if output_format == "json":
        print_json(execution.result_record(plan, result))
    else:
        execution.print_result(plan, result)
    raise typer.Exit(result.exit_code)


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
    by_text: dict[str, Settings] = {}
    for run in runs:
        settings = settings_again(run, sweeps if run.id in targets.named else meant, overrides)
        by_text[json.dumps(settings)] = settings
    changed = [changed_settings(settings, overrides) for settings in by_text.values() or [DEFAULTS]]
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
