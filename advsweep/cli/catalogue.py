"""`advsweep list`, `keys` and `schema`: what there is to choose from, and keys to set."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from advsweep.cli import options
from advsweep.cli.json_documents import json_documents
from advsweep.cli.output import print_listing, warn
from advsweep.components import Component, parameters
from advsweep.config.groups import ConfigGroups
from advsweep.config.space import Race, Tune
from advsweep.errors import AdvsweepWarning, ConfigError, PluginError, UnknownNameError, nearest
from advsweep.estimators import ESTIMATORS
from advsweep.logs import READERS
from advsweep.plugins import EXTENSIONS, GROUP_PREFIX, discover, load_extension
from advsweep.registry import Registry
from advsweep.report.data.metrics import read_catalogue
from advsweep.sweep.registry import GROUPS
from advsweep.synonyms import KEYS
from advsweep.tasks.rewards import REWARDS
from advsweep.tasks.verifiers import VERIFIERS

if TYPE_CHECKING:
    from advsweep.estimators import Estimator

Records = list[dict[str, Any]]

PRESETS = ("method", "experiment")

PARTS: Mapping[str, Registry[Any]] = {"task.verifier": VERIFIERS, "task.reward": REWARDS}
"""The components that a field of others names, by its key."""

OF_SWEEPS: Mapping[str, type[Component]] = {"sweep.race": Race, "sweep.tune": Tune}
"""The parts of a sweep file that have keys of their own."""


def held(cls: type[Estimator]) -> str:
    """Return what the defaults of an estimator follow: a paper, released code, or our reading."""
    return ", ".join(where.value for where in cls.provenance) or "no source named"


def list_estimators() -> list[dict[str, Any]]:
    """Return name, aliases, family, formula and source of every estimator, by family."""
    return [
        {
            "name": c.name,
            "aliases": ESTIMATORS.aliases_of(c.name),
            "family": c.family,
            "formula": c.formula,
            "source": f"{c.paper}, {c.equation}",
            "held": held(c),
            "released": list(c.released_options),
        }
        for c in sorted(ESTIMATORS.classes(), key=lambda c: (c.family, c.name))
    ]


def list_parts(registry: Registry[Any]) -> Records:
    """Return name, aliases and first sentences of the components of a registry."""
    return [
        {
            "name": name,
            "aliases": registry.aliases_of(name),
            "description": summary_of(registry.get(name)),
        }
        for name in registry
    ]


def summary_of(cls: type[Component]) -> str:
    """Return the first paragraph of a component's docstring as a line."""
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def list_figures() -> Records:
    from advsweep.report.figures import registry

    return [{"name": n, "description": registry.summary_of(n)} for n in registry.FIGURES]


def list_metrics() -> Records:
    """Return the metrics of steps and the columns of evaluations and of runs."""
    return [
        {"name": entry.name, "unit": entry.unit, "better": entry.better.value}
        | {"of": subject, "description": entry.meaning}
        for subject, entries in read_catalogue().items()
        for entry in entries
    ]


def list_documents() -> Records:
    """Return what commands print with `--format json`."""
    return [
        {
            "name": each.name,
            "version": each.version,
            "command": each.command,
            "description": each.title,
        }
        for each in json_documents().values()
    ]


OTHERS: Mapping[str, Callable[[], Records]] = {
    **{r.kind: functools.partial(list_parts, r) for r in (*PARTS.values(), READERS)},
    "document": list_documents,
    "figure": list_figures,
    "metric": list_metrics,
}
"""The lists of what is no config group."""


def print_members(records: Records, how: options.ListFormat) -> None:
    """Print members of a group; tables and CSV have components as `clipped ratio=sequence`."""
    for record in records:
        for key, node in record.items():
            if isinstance(node, dict) and how != "json":
                fields = (f"{name}={value}" for name, value in node.items() if name != "name")
                record[key] = " ".join([node["name"], *fields])
    print_listing(records, how)


def list_members(groups: ConfigGroups, group: str, names: Iterable[str]) -> Records:
    """Return the record of each member of a group; warn of a member whose file is broken."""
    records = []
    for name in names:
        try:
            records.append(member_record(groups, group, name))
        except ConfigError as error:  # must not hide the others
            warn(str(error))
    return records


def member_record(groups: ConfigGroups, group: str, name: str) -> dict[str, Any]:
    """Return what a member of a group sets, and its description.

    Raises:
        ConfigError: its file cannot be read, or does not fit the others.
    """
    record: dict[str, Any] = {"name": name}
    cls: type[Component] | None = None
    if group not in PRESETS:
        try:
            cls, _ = member_component(groups, group, name)
        except PluginError as error:  # must not hide the others
            warn(str(error))
    if group == "method":
        config = groups.compose({group: name})
        record |= {axis: config[axis] for axis in ("estimator", "objective", "rollout")}
    elif group == "experiment":
        config = groups.compose({group: name})
        task, model = config["task"], config["model"]
        record["task"] = task.get("title") or task["name"]
        record["model"] = model.get("path") or model["name"]
    elif group == "task":
        task = groups.compose({group: name})[group]
        verifier = task.get("verifier", getattr(cls, "verifier", ""))
        record["data"] = task.get("data", "")
        record["verifier"] = str(verifier["name"] if isinstance(verifier, dict) else verifier)
    record["description"] = groups.summary(group, name) or (summary_of(cls) if cls else "")
    if group == "objective":
        record["source"] = getattr(cls, "source", "")
    return record


def member_component(
    groups: ConfigGroups, group: str, member: str
) -> tuple[type[Component], Mapping[str, Any]]:
    """Return the component that a member of a group names, and the fields that the member sets.

    Only a file that takes its component from its defaults list is composed, which takes a tenth of
    a second.
    """
    registry = groups.registries[group]
    values = groups.member_values(group, member)
    has_no_file = not values and member in registry
    if "name" not in values and not has_no_file:
        values = groups.compose({group: member})[group]
    return registry.get(values.get("name", member)), values


def plugin_registries() -> dict[str, Registry[Any]]:
    """Return the registries that other packages can add to, by entry point group."""

    registries = (*GROUPS.values(), VERIFIERS, REWARDS, READERS)
    return {registry.group: registry for registry in registries if registry.group is not None}


def find_plugins() -> Records:
    """Load the plug-ins of all kinds; return each with the reason if it cannot be used."""
    registries, discovery = plugin_registries(), discover()
    # The prefix alone would make all groups alike.
    kinds = [group.removeprefix(GROUP_PREFIX) for group in (*registries, *EXTENSIONS)]
    records = []
    for point in discovery.points:
        kind, reason = EXTENSIONS.get(point.group, ""), ""
        if registry := registries.get(point.group):
            kind = registry.kind
            with warnings.catch_warnings():  # the listing says the same
                warnings.simplefilter("ignore", AdvsweepWarning)
                reason = registry.problem(point)
        elif kind:
            try:
                load_extension(point.group, point.name)
            except PluginError as error:
                reason = str(error)
        else:
            hint = nearest(point.group.removeprefix(GROUP_PREFIX), kinds)
            reason = f"advsweep has no group '{point.group}'; {hint}"
        records.append({**vars(point), "kind": kind, "reason": reason})
    records += [{"package": package, "reason": why} for package, why in discovery.unreadable]
    columns = ("kind", "name", "package", "version", "state", "reason", "group", "target")
    for record in records:
        record["state"] = "unusable" if record["reason"] else "usable"
    return [{column: record.get(column, "") for column in columns} for record in records]


def group_rows(groups: ConfigGroups, group: str, name: str | None = None) -> Records:
    """Return the keys of one component, or of all components of a group and of those of files.

    Raises:
        UnknownNameError: there is no such group or component.
    """
    if group in OF_SWEEPS:
        return rows_of(OF_SWEEPS[group], {}, group)
    if part := PARTS.get(group):
        members = part.names() if name is None else [name]
        return [row for member in members for row in rows_of(part.get(member), {}, group)]
    if group not in groups.registries:
        hint = nearest(group, [*groups.registries, *PARTS, *OF_SWEEPS], KEYS)
        raise UnknownNameError(f"{group}: no config group has this name; {hint}")
    members = groups.registries[group].names() if name is None else [groups.member(group, name)]
    rows = []
    for member in members:
        component, values = member_component(groups, group, member)
        rows += rows_of(component, values, group)
    of_files = groups.registries[group].class_of_files()
    if name is None and of_files is not None:
        rows += rows_of(of_files, {}, group)
    return rows


def rows_of(component: type[Component], node: Mapping[str, Any], group: str = "") -> Records:
    """Return the keys of a component with the defaults that a node of a config sets."""
    return [
        {
            "key": f"{group}.{field['name']}" if group else field["name"],
            "of": component.name,
            "default": "null" if field["default"] is None else field["default"],
            "type": field["type"],
            "range": field["range"],
            "meaning": field["help"],
        }
        for field in parameters(component, node)
    ]
