"""`advsweep retry`: restart runs that did not finish."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_target
from advsweep.cli.options import RecordFormat
from advsweep.cli.output import echo, echo_line, warn
from advsweep.errors import ConfigError, counted

if TYPE_CHECKING:
    from advsweep.cli.runs import Targets
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.events import SweepResult
    from advsweep.sweep.planning.resume import Settings


def retry(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...|SWEEP [KEY=VALUE]...",
            help="Runs (ids, starts of identities, 'last'), or a sweep for all its runs; and "
            "settings of executor, resources, stopping or tracking.",
            autocompletion=complete_target,
        ),
    ],
    jobs: options.Jobs = None,
    store: options.Store = None,
    retries: options.Retries = 2,
    retry_on: options.RetryOn = "oom,timeout,killed",
    time_limit: options.TimeLimit = None,
    memory_limit: options.MemoryLimit = None,
    run_code: options.RunCode = False,
    run_code_as_root: options.RunCodeAsRoot = False,
    store_patience: options.StorePatience = "10m",
    trust_store: options.TrustStore = False,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Takes failed, interrupted, stopped, lost and pending runs. They resume from their last
    checkpoint with the resources of their sweep (without a sweep: one core each) and their own rule
    for early stopping. The store supplies their config, but not their executor and tracker: give
    executor= and tracking=, or --trust-store to use those of the sweep. Done and running runs are
    skipped; pruned runs resume only with stopping=none or another rule.

    Examples:
        advsweep retry demo
        advsweep retry 12 14 --retries 0
    """
    from advsweep.cli import execution
    from advsweep.cli.output import print_json
    from advsweep.cli.runs import find_targets, split_overrides
    from advsweep.store import Status, open_store
    from advsweep.sweep.planning.resume import plan_again

    options.give_consent(run_code, run_code_as_root)
    options.trust_commands(trust_store)
    patience = execution.set_store_patience(store_patience)
    policy = execution.make_policy(retries, retry_on, time_limit, memory_limit)
    names, overrides = split_overrides(arguments)
    if not names:
        raise ConfigError(f"expected runs or a sweep to restart, got {' '.join(overrides)}")
    with open_store(store, create=False, patience=patience) as opened:
        found = find_targets(opened, names)
        open_ = [r for r in found.runs if r.status not in (Status.DONE, Status.RUNNING)]
        settings = _settings(opened, found, open_, overrides, trusted=trust_store)
        skipped_status = Status.PRUNED if settings["stopping"] is None else None
        restarted = [run for run in open_ if run.status is not skipped_status]
        if skipped := len(found.runs) - len(restarted):
            echo(f"Skipped {skipped} of {len(found.runs)} runs: done, running or pruned.", err=True)
        if not restarted:
            echo("No runs to restart.", err=True)
            return
        plan = plan_again(restarted, settings)
        plan.check()
        with execution.track_events(plan, opened) as track:
            outcome = execution.execute(
                plan, opened, jobs=jobs, force=False, policy=policy, track=track
            )
    if output is RecordFormat.JSON:
        print_json(execution.outcome_record(plan, outcome))
    else:
        _print(outcome)
    raise typer.Exit(outcome.exit_code)


def _settings(
    store: Store,
    targets: Targets,
    runs: Sequence[RunRecord],
    overrides: Sequence[str],
    *,
    trusted: bool,
) -> Settings:
    """Returns the settings that all of these runs share.

    Raises:
        ConfigError: their settings differ, or only the untrusted store names an executor.
    """
    from advsweep.sweep.planning.resume import (
        DEFAULTS,
        allowed_settings,
        changed_settings,
        chosen_by_store,
        recorded_settings,
    )

    sweeps = store.sweeps.select()
    meant = [sweep for sweep in sweeps if sweep.name in targets.sweeps]
    found: dict[str, Settings] = {}
    untracked: set[str] = set()
    for run in runs:
        recorded = recorded_settings(run, sweeps if run.id in targets.named else meant)
        allowed = allowed_settings(recorded, overrides, trusted=trusted)
        found[json.dumps(allowed)] = allowed
        if recorded["tracking"] is not None and allowed["tracking"] is None:
            untracked.add(str(recorded["tracking"]["name"]))
    for line in chosen_by_store(next(iter(found.values()))) if trusted and found else ():
        warn(f"the store chooses {line}")
    if untracked and not any(text.lstrip("+").startswith("tracking") for text in overrides):
        names = ", ".join(sorted(untracked))
        warn(f"not tracking the runs; pass tracking={names} or --trust-store to track them")
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


def _print(outcome: SweepResult) -> None:
    counts = (
        (outcome.done, "done"),
        (len(outcome.failed), "failed"),
        (len(outcome.pruned), "pruned"),
        (outcome.unfinished, "unfinished"),
        (outcome.submitted, "submitted"),
        (outcome.queued, "queued or running"),
    )
    parts = ", ".join(f"{count} {what}" for count, what in counts if count)
    echo_line(f"{counted(len(outcome.run_ids), 'run')}: {parts}", err=True)
    for run_id, error in outcome.failed.items():
        echo_line(f"  run {run_id} failed: {error} (advsweep logs {run_id})", err=True)
