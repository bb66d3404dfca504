"""Plans made of runs that a store has, to start them again as they were to be started."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from advsweep.backends.run import build_run
from advsweep.components import Plain
from advsweep.config.compose import Composed, Composer
from advsweep.config.overrides import parse_overrides
from advsweep.errors import ConfigError
from advsweep.sweep.executors.local import LocalExecutor
from advsweep.sweep.plan import Plan, PlannedRun
from advsweep.sweep.registry import SETTINGS
from advsweep.sweep.settings import Off, Resources
from advsweep.sweep.tracking.base import NoTracking
from advsweep.tasks.registry import TASKS

if TYPE_CHECKING:
    from advsweep.backends.run import Run
    from advsweep.store import RunRecord, SweepRecord
    from advsweep.tasks.base import Task

Settings = Mapping[str, "Plain | None"]
"""Config nodes by group: executor, resources and stopping, None for what each run has."""

DEFAULTS: Settings = {
    "executor": {"name": LocalExecutor.name},
    "resources": {"name": Resources.name},
    "stopping": None,
}


def recorded_settings(run: RunRecord, sweeps: Iterable[SweepRecord]) -> Settings:
    """The executor and the resources of a run's sweep, and the rule that the run itself has.

    Of several sweeps that share the run the last one counts. Runs that belong to no sweep,
    and sweeps of earlier versions, have `DEFAULTS`.
    """
    settings = dict(DEFAULTS)
    for sweep in sweeps:
        if sweep.name in run.sweeps:
            settings |= sweep.spec.get("settings", {})
    return settings


def changed_settings(settings: Settings, overrides: Sequence[str]) -> Settings:
    """Settings with a command line's changes, such as `executor=local` or `resources.cpus=2`.

    Raises:
        ConfigError: an override does not fit, or is of something else than these settings.
    """
    if not overrides:
        return settings
    changed: dict[str, Any] = dict(settings)
    values = {}
    with Composer(SETTINGS, ()) as composer:
        for override in parse_overrides(overrides):
            group, _, rest = override.key.partition(".")
            if group not in settings:
                raise ConfigError(
                    f"{override.text}: expected a key of {' or '.join(settings)}, as what a run "
                    f"is stays as it was planned, got '{override.key}'"
                )
            if override.swept or override.deleted:
                raise ConfigError(f"{override.text}: expected {override.key}=VALUE with one value")
            if rest:
                composer.check_key(override.key)
                values[override.key] = override.values[0]
            else:
                member = composer.member(group, override.values[0])
                changed[group] = composer.compose({group: member}).config[group]
        return composer.patched(Composed(changed, late=True), values)


def plan_again(records: Sequence[RunRecord], settings: Settings = DEFAULTS) -> Plan:
    """A plan of these runs as they were planned before.

    Raises:
        ConfigError: a run would be another one by now, since a component was revised, or the
            settings do not fit.
    """
    planned = []
    for record in records:
        run = build_run(record.config)
        if run.identity != record.identity:
            raise ConfigError(
                f"run {record.id}: expected the run {record.identity[:10]} that was planned, got "
                f"{run.identity[:10]} by this version of advsweep, which has revised a part of "
                "it; start it anew with `advsweep run` or `advsweep sweep`"
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
        search=Off(),
        tracking=NoTracking(),
        spec={},
    )


def build_alike(records: Iterable[RunRecord]) -> list[Run]:
    """A run for each record, built anew only where its components or its backend differ.

    That is what executors look at. Runs that cannot be built are left out; why not, their own
    processes will say.
    """
    kinds: dict[str, Run | None] = {}
    runs = []
    for record in records:
        config = record.config
        names = {key: node["name"] for key, node in config.items() if isinstance(node, dict)}
        kind = json.dumps([config["backend"], names], sort_keys=True)
        if kind not in kinds:
            kinds[kind] = _build(config)
        runs.append(kinds[kind])
    return [run for run in runs if run is not None]


def task_of(record: RunRecord) -> Task | None:
    """The task of a run, not checked; None if it cannot be built, as its own process will say."""
    try:
        return TASKS.build(record.config["task"], where="task")
    except ConfigError:
        return None


def _build(config: Plain) -> Run | None:
    try:
        return build_run(config)
    except ConfigError:
        return None
