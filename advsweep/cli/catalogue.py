"""`advsweep list`, `keys` and `schema`: what there is to choose from, and the keys to set."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from advsweep.backends.base import RunParameters
from advsweep.cli import options
from advsweep.cli.completion import complete_group, complete_list
from advsweep.cli.output import echo_line, print_json, print_listing, warn
from advsweep.components import Component, parameters
from advsweep.config.groups import ConfigGroups
from advsweep.config.space import Tune
from advsweep.errors import AdvsweepWarning, PluginError, UnknownNameError, nearest
from advsweep.logs import READERS
from advsweep.plugins import EXTENSIONS, GROUP_PREFIX, discover, load_extension
from advsweep.registry import Registry
from advsweep.sweep.json_schema import make_schema
from advsweep.sweep.registry import GROUPS, config_groups
from advsweep.tasks.rewards import REWARDS
from advsweep.tasks.verifiers import VERIFIERS

Records = list[dict[str, Any]]

PRESETS = ("method", "experiment")

TUNE = "sweep.tune"
"""The key of a sweep file whose keys are listed as those of a group."""


# list


def list_(
    what: Annotated[str, complete_list],
    config_dirs: options.ConfigDir = None,
    how: options.Listing = "table",
) -> None:
    """`advsweep describe NAME` has everything about one of them; csv and json have more columns
    than a table. A plug-in that is broken, or whose name advsweep or another package has, is
    listed with the reason; it does not affect other commands.

    Arguments:
        WHAT (what): estimators, objectives, methods (method=NAME: estimator, objective and
            rollout policy of a paper), tasks, experiments (sweep files, +experiment=NAME), plugins,
            figures, or any other config group, such as optimizers.

    Examples:
        advsweep list estimators
        advsweep list tasks --config-dir conf
        advsweep list plugins --format json
    """

    group = what.removesuffix("s")
    if group == "plugin":  # the config groups would warn of what it lists
        if not (records := find_plugins()):
            warn("no installed package has a plug-in; docs/plugins.md says how to write one")
        print_listing(records, how, hidden=("group", "target"))
    elif group == "estimator":
        from advsweep.cli.estimators import list_records
        from advsweep.estimators import ESTIMATORS

        print_listing(list_records(), how, hidden=("aliases", "held", "released"))
        if how == "table":
            names = ", ".join(sorted(ESTIMATORS.unavailable()))
            echo_line(f"Named in papers but not defined there: {names}", err=True)
    elif group == "figure":
        from advsweep.report.figures.registry import FIGURES

        figures = [{"name": f.name, "description": f.summary} for f in FIGURES.values()]
        print_listing(figures, how)
    else:
        with config_groups(config_dirs or ()) as groups:
            known = [*PRESETS, *groups.registries]
            if group not in known:
                lists = [f"{name}s" for name in ("plugin", "figure", *known)]
                hint = nearest(f"{group}s", lists)
                raise UnknownNameError(f"list: there is no list '{what}'; {hint}")
            print_members(list_members(groups, group, groups.members(group)), how)


def print_members(records: Records, how: options.ListFormat) -> None:
    """Print members of a group; tables and CSV have components as `clipped ratio=sequence`."""
    if how != "json":
        records = [
            {k: _as_override(v) if isinstance(v, dict) else v for k, v in record.items()}
            for record in records
        ]
    print_listing(records, how)


def _as_override(node: Mapping[str, Any]) -> str:
    fields = (f"{key}={value}" for key, value in node.items() if key != "name")
    return " ".join([node["name"], *fields])


def list_members(groups: ConfigGroups, group: str, names: Iterable[str]) -> Records:
    """Return members of a group with what they set and a description."""
    records = []
    for name in names:
        record = {"name": name}
        config = groups.compose({group: name}).config
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
        summary = (inspect.getdoc(cls) or "").partition("\n\n")[0] if cls else ""
        description = groups.first_comment(group, name) or " ".join(summary.split())
        records.append({**record, "description": description})
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


def keys(
    words: Annotated[list[str] | None, complete_group] = None,
    how: options.Listing = "table",
) -> None:
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
        group, equals, name = words[0].partition("=") if words else ("", "", "")
        if not words:
            rows = list(_default_rows(groups))
        elif len(words) == 1 and (equals or group in _key_groups(groups)):
            rows = list(group_rows(groups, group, name or None))
        else:
            rows = _search(groups, words)
    print_listing(rows, how)


def _key_groups(groups: ConfigGroups) -> list[str]:
    return [*groups.registries, "task.verifier", TUNE]


def _default_rows(groups: ConfigGroups) -> Iterator[dict[str, Any]]:
    """Yield the keys of the default run: numbers, groups, and their components' fields."""

    config = groups.compose({}).config
    yield from _rows(RunParameters, config, prefix="")
    for group, registry in groups.registries.items():
        name = config[group]["name"]
        others = f"one of {len(registry.names())}: advsweep list {group}"
        yield _row(group, name, "a name", name, "", others)
        yield from _rows(registry.get(name), config[group], prefix=f"{group}.")


def group_rows(
    groups: ConfigGroups, group: str, name: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the keys of one component, or of all components of a group.

    Raises:
        UnknownNameError: there is no such group or component.
    """

    if group == TUNE:
        yield from _rows(Tune, {}, prefix=f"{TUNE}.")
    elif group == "task.verifier":
        for member in VERIFIERS.names() if name is None else [name]:
            yield from _rows(VERIFIERS.get(member), {}, prefix="task.verifier.")
    elif group not in groups.registries:
        hint = nearest(group, _key_groups(groups))
        raise UnknownNameError(f"{group}: no config group has this name; {hint}")
    else:
        registry = groups.registries[group]
        for member in registry.names() if name is None else [groups.member(group, name)]:
            values = groups.member_values(group, member)
            cls = registry.get(values.get("name", member))
            yield from _rows(cls, values, prefix=f"{group}.")


def _search(groups: ConfigGroups, words: Sequence[str]) -> Records:
    """Return the keys that have all words, those with them in the key itself first.

    Raises:
        UnknownNameError: there is none.
    """

    sought = [word.lower() for word in words]
    rows = list(_rows(RunParameters, {}, prefix=""))
    for group in _key_groups(groups):
        rows += group_rows(groups, group)
    texts = [f"{row['key']} {row['range']} {row['meaning']}".lower() for row in rows]
    found = [r for r, t in zip(rows, texts, strict=True) if all(word in t for word in sought)]
    if not found:
        known = {row["key"].rpartition(".")[2] for row in rows}
        hint = nearest(" ".join(sought), {*known, *_key_groups(groups)})
        raise UnknownNameError(f"no key has {' '.join(sought)}; {hint}")
    return sorted(found, key=lambda row: not all(word in row["key"] for word in sought))


def _rows(
    component: type[Component], node: Mapping[str, Any], *, prefix: str
) -> Iterator[dict[str, Any]]:
    for field in parameters(component, node):
        key, default = f"{prefix}{field['name']}", field["default"]
        yield _row(key, component.name, field["type"], default, field["range"], field["help"])


def _row(key: str, of: str, kind: str, default: Any, limits: str, meaning: str) -> dict[str, Any]:
    return {
        "key": key,
        "of": of,
        "default": "null" if default is None else default,
        "type": kind,
        "range": limits,
        "meaning": meaning,
    }


# schema


def schema(config_dirs: options.ConfigDir = None) -> None:
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
