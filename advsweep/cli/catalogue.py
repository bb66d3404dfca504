"""`advsweep list`, `keys` and `schema`: what there is to choose from, and keys to set."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from advsweep.backends.base import RunParameters
from advsweep.cli import options
from advsweep.cli.output import echo_line, print_json, print_listing, warn
from advsweep.components import Component, parameters, sections
from advsweep.config.groups import ConfigGroups
from advsweep.config.space import Race, Tune
from advsweep.errors import AdvsweepWarning, PluginError, UnknownNameError, nearest
from advsweep.logs import READERS
from advsweep.plugins import EXTENSIONS, GROUP_PREFIX, discover, load_extension
from advsweep.registry import Registry
from advsweep.report.data.metrics import read_catalogue
from advsweep.sweep.json_schema import make_schema
from advsweep.sweep.registry import GROUPS, config_groups
from advsweep.tasks.rewards import REWARDS
from advsweep.tasks.verifiers import VERIFIERS

Records = list[dict[str, Any]]

PRESETS = ("method", "experiment")

PARTS: Mapping[str, Registry[Any]] = {"task.verifier": VERIFIERS, "task.reward": REWARDS}
"""The components that a field of others names, by its key."""

OF_SWEEPS: Mapping[str, type[Component]] = {"sweep.race": Race, "sweep.tune": Tune}
"""The parts of a sweep file that have keys of their own."""


# list


def list_(
    what: str | None = None,
    config_dirs: list[Path] | None = None,
    how: options.ListFormat = "table",
) -> None:
    """`advsweep describe NAME` has everything about one of them; csv and json have more columns
    than a table. A plug-in that is broken, or whose name advsweep or another package has, is
    listed with the reason; it does not affect other commands.

    Arguments:
        [WHAT] (what): estimators, objectives, methods (method=NAME: estimator, objective and
            rollout policy of a paper), tasks, experiments (sweep files, +experiment=NAME), metrics,
            figures, plugins, or another list (default: the lists there are).

    Examples:
        advsweep list
        advsweep list estimators
        advsweep list tasks --config-dir conf
        advsweep list plugins --format json
    """

    if what in ("plugin", "plugins"):  # the config groups would warn of what it lists
        if not (records := find_plugins()):
            warn("no installed package has a plug-in; docs/plugins.md says how to write one")
        print_listing(records, how, hidden=("group", "target"))
        return
    with config_groups(config_dirs or ()) as groups:
        lists = {group: f"{group}=NAME" for group in ("estimator", "method", *groups.registries)}
        lists |= {registry.kind: f"{key}=NAME" for key, registry in PARTS.items()}
        lists |= {"experiment": "+experiment=NAME", "importer": "advsweep import NAME"}
        lists |= {"metric": "advsweep report --columns NAME", "figure": "advsweep plot NAME"}
        lists["plugin"] = "names of other packages, in the lists of their kinds"
        plurals = {f"{group.removesuffix('s')}s": group for group in lists}
        group = plurals.get(what or "", what)
        if group is None:
            rows = [{"list": name, "used as": lists[of]} for name, of in sorted(plurals.items())]
            print_listing(rows, how)
        elif group not in lists:
            raise UnknownNameError(
                f"list: there is no list '{what}'; {nearest(f'{group}s', plurals)}"
            )
        elif group == "estimator":
            from advsweep.cli.estimators import list_records
            from advsweep.estimators import ESTIMATORS

            print_listing(list_records(), how, hidden=("held", "released"))
            if how == "table":
                names = ", ".join(sorted(ESTIMATORS.without_definition()))
                echo_line(f"Named in papers but not defined there: {names}", err=True)
        elif group in OTHERS:
            print_listing(OTHERS[group](), how)
        else:
            print_members(list_members(groups, group, groups.members(group)), how)


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


OTHERS: Mapping[str, Callable[[], Records]] = {
    **{r.kind: functools.partial(list_parts, r) for r in (*PARTS.values(), READERS)},
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
    """Return members of a group with what they set and a description."""
    records = []
    for name in names:
        record = {"name": name}
        config = groups.compose({group: name})
        cls: type[Component] | None = None
        if group not in PRESETS:
            try:
                cls = groups.registries[group].get(config[group]["name"])
            except PluginError as error:  # must not hide the others
                warn(str(error))
        if group == "method":
            record |= {axis: config[axis] for axis in ("estimator", "objective", "rollout")}
        elif group == "experiment":
            task, model = config["task"], config["model"]
            record["task"] = task.get("title") or task["name"]
            record["model"] = model.get("path") or model["name"]
        elif group == "task":
            verifier = config[group].get("verifier", getattr(cls, "verifier", ""))
            record["data"] = config[group].get("data", "")
            record["verifier"] = str(verifier["name"] if isinstance(verifier, dict) else verifier)
        record["description"] = groups.first_comment(group, name) or (
            summary_of(cls) if cls else ""
        )
        if group == "objective":
            record["source"] = sections(cls)["source"] if cls else ""
        records.append(record)
    return records


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


# keys


def keys(words: list[str] | None = None, how: options.ListFormat = "table") -> None:
    """These are the keys that `run`, `sweep` and sweep files take: KEY=VALUE. A group itself is a
    key, too: estimator=fade chooses the component whose keys are estimator.*.

    Arguments:
        [WORD]... (words): A group, such as optimizer, task.verifier or sweep.tune, for the keys
            of all its components; GROUP=NAME for those of one; else words that a key, its range or
            its meaning has (default: the keys of a run as it is without any setting).

    Examples:
        advsweep keys
        advsweep keys learning rate
        advsweep keys estimator=fade --format json
    """

    with config_groups() as groups:
        rows: Records = []
        names = [*groups.registries, *PARTS, *OF_SWEEPS]
        group, equals, name = words[0].partition("=") if words else ("", "", "")
        if not words:  # numbers, groups, and the fields of their components
            config = groups.compose({})
            rows += _rows(RunParameters, config)
            for group, registry in groups.registries.items():
                name = config[group]["name"]
                others = f"one of {len(registry.names())}: advsweep list {group}"
                row = {"key": group, "of": name, "default": name, "type": "a name", "range": ""}
                rows.append({**row, "meaning": others})
                rows += _rows(registry.get(name), config[group], group)
        elif len(words) == 1 and (equals or group in names):
            rows += group_rows(groups, group, name or None)
        else:
            sought = [word.lower() for word in words]
            every = [*_rows(RunParameters, {}), *(r for n in names for r in group_rows(groups, n))]
            for row in every:
                text = f"{row['key']} {row['range']} {row['meaning']}".lower()
                if all(word in text for word in sought):
                    rows.append(row)
            if not rows:
                known = {row["key"].rpartition(".")[2] for row in every}
                hint = nearest(" ".join(sought), {*known, *names})
                raise UnknownNameError(f"no key has {' '.join(sought)}; {hint}")
            rows.sort(key=lambda row: not all(word in row["key"] for word in sought))
    print_listing(rows, how)


def group_rows(groups: ConfigGroups, group: str, name: str | None = None) -> Records:
    """Return the keys of one component, or of all components of a group.

    Raises:
        UnknownNameError: there is no such group or component.
    """
    if group in OF_SWEEPS:
        return _rows(OF_SWEEPS[group], {}, group)
    if part := PARTS.get(group):
        members = part.names() if name is None else [name]
        return [row for member in members for row in _rows(part.get(member), {}, group)]
    if group not in groups.registries:
        hint = nearest(group, [*groups.registries, *PARTS, *OF_SWEEPS])
        raise UnknownNameError(f"{group}: no config group has this name; {hint}")
    registry, rows = groups.registries[group], []
    for member in registry.names() if name is None else [groups.member(group, name)]:
        values = groups.member_values(group, member)
        rows += _rows(registry.get(values.get("name", member)), values, group)
    return rows


def _rows(component: type[Component], node: Mapping[str, Any], group: str = "") -> Records:
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


# schema


def schema(config_dirs: list[Path] | None = None) -> None:
    """An editor then completes keys, names and choices, shows what each means with its default and
    range, and marks what does not fit. The components of installed packages are in it. The first
    line of a sweep file names its schema:

        # yaml-language-server: $schema=advsweep.schema.json

    `advsweep init` writes both.

    Examples:
        advsweep schema > advsweep.schema.json
        advsweep schema > .vscode/advsweep.schema.json
    """

    with config_groups(config_dirs or ()) as groups:
        print_json(make_schema(groups))
