"""Plans the runs of a store again, to resume or retry them.

The configs of runs and the resources of their sweep are read from the store. Executors and
trackers act on this machine and on its user's accounts, so only the command line chooses them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from advsweep.backends.build import build_run
from advsweep.components import Plain
from advsweep.config.compose import check_literal, patch
from advsweep.config.overrides import parse_overrides
from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.named_code import find_codes, is_allowed
from advsweep.store.sanity import title_of
from advsweep.sweep.executors.base import Resources
from advsweep.sweep.executors.local import LocalExecutor
from advsweep.sweep.planning.plan import Plan, PlannedRun
from advsweep.sweep.registry import SETTINGS, config_groups
from advsweep.sweep.tracking.base import NoTracking

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.store import RunRecord, Store, SweepRecord

# What takes the place of components whose code may not be run. They fit any run.
_STAND_INS: Mapping[str, Mapping[str, str]] = {
    "estimator": {"name": "grpo"},
    "objective": {"name": "clipped"},
    "task.verifier": {"name": "numeric"},
    "task.reward": {"name": "accuracy"},
}

# Config nodes by group: executor, resources, stopping and tracking.
#
# None as `stopping` keeps the rule of each run; None as `tracking` is no tracking.
Settings = Mapping[str, "Plain | None"]

DEFAULTS: Settings = {
    "executor": {"name": LocalExecutor.name},
    "resources": {"name": Resources.name},
    "stopping": None,
    "tracking": None,
}


def recorded_setting(run: RunRecord, sweeps: Iterable[SweepRecord], group: str) -> Plain:
    """Return the executor or the resources of a run's sweep.

    If several sweeps share the run, the last one counts. Runs without a sweep, and sweeps of
    earlier versions, have those of `DEFAULTS`.

    Raises:
        ConfigError: the store holds a node that advsweep cannot have written.
    """
    node: Any = DEFAULTS[group]
    where = group
    for sweep in sweeps:
        if sweep.name in run.sweeps:
            settings = sweep.spec.get("settings", {})
            node = settings.get(group, node) if isinstance(settings, dict) else settings
            where = f"sweep {sweep.name}: {group}"
    if not isinstance(node, dict) or not isinstance(node.get("name"), str):
        raise ConfigError(f"{where}: expected a mapping with a name, got {node!r}")
    # A text such as ${oc.env:SECRET} would be resolved with this user's environment.
    check_literal(node, f"{group} of the store")
    return node


def settings_again(
    run: RunRecord, sweeps: Sequence[SweepRecord], overrides: Sequence[str]
) -> Settings:
    """Return the settings with which a run is started again, without the overrides.

    Raises:
        ConfigError: the run's sweep had another executor than the default, and no override
            chooses one.
    """
    name = recorded_setting(run, sweeps, "executor")["name"]
    # Only its name matters: nothing of the stored executor gets into the one that is used.
    chosen = any(text.lstrip("+").startswith("executor=") for text in overrides)
    if name != LocalExecutor.name and not chosen:
        raise ConfigError(
            f"executor: the store has '{name}' for these runs, but a store does not choose "
            f"where they are executed; give executor={name} with its settings, or another executor"
        )
    return {**DEFAULTS, "resources": recorded_setting(run, sweeps, "resources")}


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
            group, _, field = override.key.partition(".")
            if group not in settings:
                raise ConfigError(
                    f"{override.text}: expected a key of {' or '.join(settings)}, as the config "
                    f"of a planned run cannot change, got '{override.key}'"
                )
            if override.swept or override.deleted:
                raise ConfigError(f"{override.text}: expected {override.key}=VALUE with one value")
            if field:
                groups.check_key(override.key)
                values[override.key] = override.values[0]
            else:
                member = groups.member(group, override.values[0])
                changed[group] = groups.compose({group: member})[group]
        # Only overrides may hold interpolations here: `check_literal` refuses them in the store.
        return patch(groups, changed, values)


def stored_run(record: RunRecord) -> Run:
    """Build a run of a store from its config, to train it.

    Raises:
        ConfigError: it has another identity now, since a component was revised, or its code
            changed.
    """
    run = build_run(record.config)
    if run.identity != record.identity:
        # Without consent no file of a program is read, so that its source is not known.
        run.backend.check_consent()
        parts = [f"the source of {title_of(key, part.name)}" for key, part in run.sources.items()]
        changed = ", ".join([*parts, "its data"])
        raise ConfigError(
            f"run {record.id}: expected the run {record.identity[:10]} that was planned, got "
            f"{run.identity[:10]}: one of these changed since: {changed}, a component that this "
            "version of advsweep revised; start a new run with `advsweep run` or `advsweep sweep`"
        )
    return run


def _without_code(config: Plain) -> tuple[Plain, bool]:
    """Return a config without code that may not be run here, and that the weights do not need.

    Returns:
        The config, and whether it is the whole one.
    """
    refused = [key for key, code in find_codes(config) if not is_allowed(code)]
    replaced: Plain = dict(config)
    for key, stand_in in _STAND_INS.items():
        if not any(f"{each}.".startswith(f"{key}.") for each in refused):
            continue
        group, _, field = key.partition(".")
        replaced[group] = {**replaced[group], field: stand_in} if field else stand_in
    return replaced, not refused


def trained_run(record: RunRecord, store: Store) -> Run:
    """Build a run of a store from its config, to use its weights.

    Plug-ins may have changed since it was trained: it is still this run, and a warning names them.

    Raises:
        ConfigError: a component of advsweep was revised, or its data changed.
    """
    config, is_whole = _without_code(record.config)
    run = build_run(config)
    if not is_whole:
        return replace(run, stored_identity=record.identity)
    if run.identity == record.identity:
        return run
    if record.id not in store.runs.by_definition([run.estimator.name]).get(run.definition, []):
        return stored_run(record)
    recorded = store.runs.sources([record.id]).get(record.id, {})
    for key, part in run.sources.items():
        if key not in recorded:
            message = f"nobody knows the source of {title_of(key, part.name)} in run {record.id}"
        elif recorded[key]["digest"] != part.source.digest:
            message = f"{title_of(key, part.name)} changed since run {record.id} was trained"
        else:
            continue
        warnings.warn(f"{message}; its weights are used as they are", AdvsweepWarning, stacklevel=2)
    return replace(run, stored_identity=record.identity)


def plan_again(records: Sequence[RunRecord], settings: Settings = DEFAULTS) -> Plan:
    """Plan runs of a store again.

    Raises:
        ConfigError: a run has another identity now, or the settings do not fit.
    """
    # Trained on under the old identity, later steps would come from another component.
    planned = [PlannedRun(stored_run(record), record.config) for record in records]
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
        tracking=built.get("tracking") or NoTracking(),
        spec={},
    )
