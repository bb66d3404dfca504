"""Start runs of a store again, for `retry` and for `sweep` with the name of a stored sweep."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advsweep.cli import execution
from advsweep.cli.output import echo, print_json
from advsweep.cli.runs import Targets, find_targets
from advsweep.errors import ConfigError, NoStoreError
from advsweep.names import YAML_SUFFIXES
from advsweep.store import RunRecord, Status, Store, open_store
from advsweep.store.races import read_race
from advsweep.sweep.planning.resume import (
    DEFAULTS,
    Settings,
    changed_settings,
    plan_again,
    settings_again,
)
from advsweep.sweep.retry_policy import Policy


@dataclass(frozen=True, kw_only=True)
class RestartOptions:
    """How runs are started again: side by side, with what retries, and how that is printed."""

    jobs: int | None
    policy: Policy
    as_json: bool


def restart(
    store: Store, names: Sequence[str], overrides: Sequence[str], options: RestartOptions
) -> int:
    """Restart what is not done of runs and sweeps, print the result, and return the exit code.

    Args:
        overrides: settings of executor, resources, stopping or tracking.

    Raises:
        NotFoundError: a name matches nothing.
        ConfigError: their settings differ, or only the store names an executor.
    """
    targets = find_targets(store, names)
    open_ = [r for r in targets.runs if r.status not in (Status.DONE, Status.RUNNING)]
    settings = _settings(store, targets, open_, overrides)
    skipped_status = Status.PRUNED if settings["stopping"] is None else None
    restarted = [run for run in open_ if run.status is not skipped_status]
    if skipped := len(targets.runs) - len(restarted):
        echo(f"Skipped {skipped} of {len(targets.runs)} runs: done, running or pruned.", err=True)
    if not restarted:
        echo("No runs to restart.", err=True)
        return 0
    plan = plan_again(restarted, settings)
    plan.check()
    result = execution.execute(plan, store, jobs=options.jobs, force=False, policy=options.policy)
    if options.as_json:
        print_json(execution.result_record(plan, result))
    else:
        execution.print_result(plan, result)
    return result.exit_code


def stored_names(url: str | None) -> set[str]:
    """Return the names of the sweeps of a store; none without a store."""
    try:
        with open_store(url, create=False) as store:
            return set(store.sweeps.names())
    except NoStoreError:
        return set()


def stored_sweep(words: Sequence[str], url: str | None) -> str | None:
    """Return the stored sweep that the words of `advsweep sweep` name; None if they name none.

    The store is opened only if one of the words can be a name.
    """
    names = [word for word in words if "=" not in word and not word.endswith(YAML_SUFFIXES)]
    if len(names) != 1 or names[0].startswith("~"):
        return None
    known = stored_names(url)
    return names[0] if names[0] in known else None


def refuse_options(sweep: str, given: Mapping[str, object]) -> None:
    """Refuse options that a stored sweep cannot take.

    Args:
        given: the values of such options by name.

    Raises:
        ConfigError: one of them is given.
    """
    for option, value in given.items():
        if value:
            raise ConfigError(
                f"{option}: expected the values of a sweep beside it, got the name of a stored "
                f"one, which is resumed as it is; `advsweep status {sweep}` shows what is left"
            )


def resume(store: Store, name: str, words: Sequence[str], options: RestartOptions) -> int:
    """Train what is not done of a stored sweep; return the exit code.

    Args:
        words: those of the command line: the name, and settings.

    Raises:
        ConfigError: its runs depend on results, so that its own command chooses them.
    """
    if store.sweeps.tuning(name) is not None or read_race(store, name) is not None:
        given = store.sweeps.spec(name).get("overrides")
        command = shlex.join(map(str, given)) if isinstance(given, list) else "..."
        raise ConfigError(
            f"sweep {name}: a tuned sweep or a race chooses its runs by results; resume it by its "
            f"own command: advsweep sweep {command}"
        )
    overrides = [word for word in words if word != name]
    return restart(store, [name], overrides, options)


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
