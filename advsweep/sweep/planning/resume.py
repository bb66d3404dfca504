"""Plans the runs of a store again, to resume or retry them.

The configs of runs and the resources of their sweep are read from the store. Executors and
trackers act on this machine and on its user's accounts, so only the command line chooses them,
unless the user trusts the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from advsweep.backends import BACKENDS
from advsweep.backends.build import build_run
from advsweep.components import Plain
from advsweep.config.compose import check_literal, patch
from advsweep.config.groups import Composition
from advsweep.config.overrides import parse_overrides
from advsweep.errors import ConfigError
from advsweep.sweep.executors.base import Resources
from advsweep.sweep.executors.local import LocalExecutor
from advsweep.sweep.planning.plan import Plan, PlannedRun
from advsweep.sweep.registry import SETTINGS, NoSearch, config_groups
from advsweep.sweep.tracking.base import TRACKING_KEY, NoTracking
from advsweep.tasks import TASKS

if TYPE_CHECKING:
    from advsweep.backends.base import Backend
    from advsweep.store import RunRecord, SweepRecord
    from advsweep.tasks.base import Task

Settings = Mapping[str, "Plain | None"]
"""Config nodes by group: executor, resources, stopping and tracking.

None as `stopping` keeps the rule of each run; None as `tracking` is no tracking."""

DEFAULTS: Settings = {
    "executor": {"name": LocalExecutor.name},
    "resources": {"name": Resources.name},
    "stopping": None,
    "tracking": None,
}


def recorded_settings(run: RunRecord, sweeps: Iterable[SweepRecord]) -> Settings:
    """Return the executor, the resources and the tracking of a run's sweep.

    If several sweeps share the run, the last one counts. Runs without a sweep, and sweeps of
    earlier versions, have `DEFAULTS`.

    Raises:
        ConfigError: the store holds settings that advsweep cannot have written.
    """
    settings = dict(DEFAULTS)
    for sweep in sweeps:
        if sweep.name not in run.sweeps:
            continue
        recorded = sweep.spec.get("settings", {})
        tracking = sweep.spec.get(TRACKING_KEY)
        if not isinstance(recorded, dict):
            raise ConfigError(f"sweep {sweep.name}: expected settings by group, got {recorded!r}")
        for group in ("executor", "resources"):
            settings[group] = recorded.get(group, settings[group])
        settings["tracking"] = tracking
        for group, node in settings.items():
            named = isinstance(node, dict) and isinstance(node.get("name"), str)
            if node is not None and not named:
                raise ConfigError(
                    f"sweep {sweep.name}: {group}: expected a mapping with a name, got {node!r}"
                )
    return settings


def allowed_settings(recorded: Settings, overrides: Sequence[str], *, trusted: bool) -> Settings:
    """Return the part of recorded settings that may be used.

    Args:
        overrides: those of the command line; one of them may choose an executor.
        trusted: the user trusts the store to choose executors and trackers.

    Raises:
        ConfigError: the store names an executor other than the default, is not trusted, and the
            command line chooses none; or a text that would be used holds an interpolation.
    """
    for group in recorded if trusted else ("resources",):
        check_literal(recorded[group], f"{group} of the store")
    if trusted:
        return recorded
    allowed = {**recorded, "executor": DEFAULTS["executor"], "tracking": None}
    node = recorded["executor"]
    chosen = any(text.lstrip("+").startswith("executor=") for text in overrides)
    if node is not None and node["name"] != LocalExecutor.name and not chosen:
        raise ConfigError(
            f"executor: the store has '{node['name']}' for these runs, but a store does not choose "
            f"where they are executed; give executor={node['name']} with its settings, another "
            "executor, or --trust-store"
        )
    return allowed


def chosen_by_store(settings: Settings) -> list[str]:
    """List the settings that a trusted store chooses, such as `executor: {...}`."""
    return [
        f"{group}: {json.dumps(settings[group], ensure_ascii=True)}"
        for group in ("executor", "tracking")
        if settings[group] != DEFAULTS[group]
    ]


def changed_settings(settings: Settings, overrides: Sequence[str]) -> Settings:
    """Apply overrides such as `executor=local` or `resources.cpus=2` to settings.

    Raises:
        ConfigError: an override does not fit, or sets something other than these settings.
    """
    if not overrides:
        return settings
    changed: dict[str, Any] = dict(settings)
    values = {}
    with config_groups() as groups:
        for override in parse_overrides(overrides):
            group, _, rest = override.key.partition(".")
            if group not in settings:
                raise ConfigError(
                    f"{override.text}: expected a key of {' or '.join(settings)}, as the config "
                    f"of a planned run cannot change, got '{override.key}'"
                )
            if override.swept or override.deleted:
                raise ConfigError(f"{override.text}: expected {override.key}=VALUE with one value")
            if rest:
                groups.check_key(override.key)
                values[override.key] = override.values[0]
            else:
                member = groups.member(group, override.values[0])
                changed[group] = groups.compose({group: member}).config[group]
        # Only overrides may hold interpolations here: `check_literal` refuses them in the store.
        return patch(groups, Composition(changed, unresolved=True), values)


def plan_again(records: Sequence[RunRecord], settings: Settings = DEFAULTS) -> Plan:
    """Plan runs of a store again.

    Raises:
        ConfigError: a run has another identity now, since a component was revised; or the
            settings do not fit.
    """
    planned = []
    for record in records:
        run = build_run(record.config)
        if run.identity != record.identity:
            raise ConfigError(
                f"run {record.id}: expected the run {record.identity[:10]} that was planned, got "
                f"{run.identity[:10]} by this version of advsweep, which revised one of its "
                "components; start a new run with `advsweep run` or `advsweep sweep`"
            )
        planned.append(PlannedRun(run, record.config))
    built = {
        group: SETTINGS[group].build(node, where=group)
        for group, node in settings.items()
        if node is not None
    }
    executor = built["executor"]
    executor.prepare(built["resources"], [each.run for each in planned])
    return Plan(
        name=None,
        runs=planned,
        duplicates=(),
        executor=executor,
        stopping=built.get("stopping"),
        search=NoSearch(),
        tracking=built.get("tracking") or NoTracking(),
        spec={},
    )


def task_of(record: RunRecord) -> Task | None:
    """Build the task of a run without checking it; None if it has none, or it cannot be built."""
    try:
        return TASKS.build(record.config["task"], where="task")
    except (ConfigError, KeyError):
        return None


def backend_of(record: RunRecord) -> Backend | None:
    """Build the backend of a run; None if it cannot be built."""
    try:
        return BACKENDS.build(record.config["backend"], where="backend")
    except (ConfigError, KeyError):
        return None
