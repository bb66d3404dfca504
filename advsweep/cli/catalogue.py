"""`advsweep list`, `keys` and `schema`: what there is to choose from, and the keys to set."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_list, complete_words
from advsweep.cli.options import ListFormat
from advsweep.cli.output import echo_line, print_json, print_listing, warn
from advsweep.errors import PluginError, UnknownNameError, nearest

if TYPE_CHECKING:
    from advsweep.components import Component
    from advsweep.config.groups import ConfigGroups
    from advsweep.plugins import Plugin
    from advsweep.registry import Registry

Records = list[dict[str, Any]]

TUNE = "sweep.tune"
"""The key of a sweep file whose keys are listed as those of a group."""


# list


def list_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="estimators, objectives, methods (method=NAME: estimator, objective and rollout "
            "policy of a paper), tasks, experiments (sweep files, +experiment=NAME), plugins, "
            "figures, or any other config group, such as optimizers.",
            autocompletion=complete_list,
        ),
    ],
    config_dirs: options.ConfigDir = None,
    how: options.Listing = ListFormat.TABLE,
) -> None:
    """On a terminal that is too narrow for all columns, some are left out. `advsweep describe NAME`
    has the rest.

    A plug-in that is broken, or whose name advsweep or another package has, is listed with the
    reason; it does not affect other commands.

    Examples:
        advsweep list estimators
        advsweep list tasks --config-dir conf
        advsweep list plugins --format json
    """
    from advsweep.sweep.registry import config_groups

    asked, group = what, what.removesuffix("s")
    what = f"{group}s"
    if what == "plugins":  # the config groups would warn of what it lists
        _print_plugins(how)
        return
    with config_groups(config_dirs or ()) as groups:
        if what in LISTS:
            records = LISTS[what](groups)
        elif group in groups.registries:
            records = _list_members(groups, group)
        else:
            known = ["plugins", *LISTS, *(f"{group}s" for group in groups.registries)]
            raise UnknownNameError(f"list: there is no list '{asked}'; {nearest(what, known)}")
    less = "released held aliases family source objective rollout estimator model verifier data"
    print_records(records, how, less.split())
    if what == "estimators" and how is ListFormat.TABLE:
        from advsweep.estimators import ESTIMATORS

        names = ", ".join(sorted(ESTIMATORS.unavailable()))
        echo_line(f"Named in papers but not defined there: {names}", err=True)


def print_records(records: Records, how: ListFormat, optional: Sequence[str] = ()) -> None:
    """Print records; tables and CSV have components as `clipped ratio=sequence`."""
    if how is not ListFormat.JSON:
        records = [
            {k: _as_override(v) if isinstance(v, dict) else v for k, v in record.items()}
            for record in records
        ]
    print_listing(records, how, optional=optional)


def _list_estimators(_: ConfigGroups) -> Records:
    from advsweep.cli.estimators import list_records

    return list_records()


def _list_methods(groups: ConfigGroups) -> Records:
    composed = {m: groups.compose({"method": m}).config for m in groups.members("method")}
    return [
        {
            "name": name,
            **{axis: config[axis] for axis in ("estimator", "objective", "rollout")},
            "description": groups.first_comment("method", name),
        }
        for name, config in composed.items()
    ]


def _as_override(node: Mapping[str, Any]) -> str:
    fields = (f"{key}={value}" for key, value in node.items() if key != "name")
    return " ".join([node["name"], *fields])


def _list_experiments(groups: ConfigGroups) -> Records:
    names = groups.members("experiment")
    composed = {name: groups.compose({"experiment": name}).config for name in names}
    return [
        {
            "name": name,
            "task": config["task"].get("title") or config["task"]["name"],
            "model": config["model"].get("path") or config["model"]["name"],
            "description": groups.first_comment("experiment", name),
        }
        for name, config in composed.items()
    ]


def _list_tasks(groups: ConfigGroups) -> Records:
    from advsweep.tasks import TASKS

    records = []
    for name in groups.members("task"):
        node = groups.compose({"task": name}).config["task"]
        verifier, description = "", groups.first_comment("task", name)
        try:
            cls = TASKS.get(node["name"])
        except PluginError as error:  # must not hide the other tasks
            warn(str(error))
        else:
            spec = node.get("verifier", getattr(cls, "verifier", ""))
            verifier = str(spec["name"] if isinstance(spec, dict) else spec)
            description = description or _summary(cls)
        records.append(
            {
                "name": name,
                "data": node.get("data", ""),
                "verifier": verifier,
                "description": description,
            }
        )
    return records


def _list_figures(_: ConfigGroups) -> Records:
    from advsweep.report.figures.registry import FIGURES

    return [{"name": f.name, "description": f.summary} for f in FIGURES.values()]


def _print_plugins(how: ListFormat) -> None:
    records = [dataclasses.asdict(plugin) for plugin in find_plugins()]
    if not records:
        warn("no installed package has a plug-in; docs/plugins.md says how to write one")
    if how is not ListFormat.JSON:
        shown = ("kind", "name", "package", "version", "state", "reason")
        records = [{column: record[column] for column in shown} for record in records]
    print_listing(records, how)


def _list_members(groups: ConfigGroups, group: str) -> Records:
    registry = groups.registries[group]
    records = []
    for name in groups.members(group):
        text = groups.first_comment(group, name)
        if not text:
            values = groups.member_values(group, name)
            text = _summary(registry.get(values.get("name", name)))
        records.append({"name": name, "description": text})
    return records


def _summary(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


LISTS: dict[str, Callable[[ConfigGroups], Records]] = {
    "estimators": _list_estimators,
    "methods": _list_methods,
    "tasks": _list_tasks,
    "experiments": _list_experiments,
    "figures": _list_figures,
}


def plugin_registries() -> dict[str, Registry[Any]]:
    """Return the registries that other packages can add to, by entry point group."""
    from advsweep.logs import READERS
    from advsweep.sweep.registry import GROUPS
    from advsweep.tasks.rewards import REWARDS
    from advsweep.tasks.verifiers import VERIFIERS

    registries = (*GROUPS.values(), VERIFIERS, REWARDS, READERS)
    return {registry.group: registry for registry in registries if registry.group is not None}


def find_plugins() -> list[Plugin]:
    """Load the plug-ins of all kinds; return each with its state, and those of no kind."""
    from advsweep.plugins import EXTENSIONS, GROUP_PREFIX, Plugin, PluginState, discover

    registries, discovery = plugin_registries(), discover()
    found = [plugin for registry in registries.values() for plugin in registry.plugins()]
    # The prefix alone would make all groups alike.
    kinds = [group.removeprefix(GROUP_PREFIX) for group in (*registries, *EXTENSIONS)]
    for point in discovery.points:
        if point.group in EXTENSIONS:
            found.append(point.described(EXTENSIONS[point.group], load=True))
        elif point.group not in registries:
            hint = nearest(point.group.removeprefix(GROUP_PREFIX), kinds)
            reason = f"advsweep has no group '{point.group}'; {hint}"
            unknown = point.described("", load=False)
            found.append(dataclasses.replace(unknown, state=PluginState.UNKNOWN, reason=reason))
    nameless = dict.fromkeys(("kind", "name", "version", "group", "target"), "")
    found += [
        Plugin(package=package, state=PluginState.BROKEN, reason=reason, **nameless)
        for package, reason in discovery.unreadable
    ]
    return found


# keys


def keys(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...",
            help="A group, such as optimizer, task.verifier or sweep.tune, for the keys of all its "
            "components; GROUP=NAME for those of one; else words that a key, its range or its "
            "meaning has (default: the keys of a run as it is without any setting).",
            autocompletion=complete_words,
            show_default=False,
        ),
    ] = None,
    how: options.Listing = ListFormat.TABLE,
) -> None:
    """These are the keys that `run`, `sweep` and sweep files take: KEY=VALUE. A group itself is a
    key, too: estimator=fade chooses the component whose keys are estimator.*.

    Examples:
        advsweep keys
        advsweep keys learning rate
        advsweep keys estimator=fade --format json
    """
    from advsweep.sweep.registry import config_groups

    with config_groups() as groups:
        if not words:
            rows = list(_default_rows(groups))
        else:
            group, equals, name = words[0].partition("=")
            if len(words) == 1 and (equals or group in _key_groups(groups)):
                rows = list(group_rows(groups, group, name or None))
            else:
                rows = _search(groups, words)
    print_listing(rows, how, optional=("of", "type", "range"))


def _key_groups(groups: ConfigGroups) -> list[str]:
    return [*groups.registries, "task.verifier", TUNE]


def _default_rows(groups: ConfigGroups) -> Iterator[dict[str, Any]]:
    """Yield the keys of the default run: numbers, groups, and their components' fields."""
    from advsweep.backends.base import RunParameters

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
    from advsweep.config.space import Tune
    from advsweep.tasks.verifiers import VERIFIERS

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


def _search(groups: ConfigGroups, words: Iterable[str]) -> Records:
    """Return the keys that have all words, those with them in the key itself first.

    Raises:
        UnknownNameError: there is none.
    """
    from advsweep.backends.base import RunParameters

    sought = [word.lower() for word in words]
    rows = list(_rows(RunParameters, {}, prefix=""))
    for group in _key_groups(groups):
        rows += group_rows(groups, group)
    in_key = [row for row in rows if all(word in row["key"] for word in sought)]
    in_text = [
        row
        for row in rows
        if row not in in_key
        and all(word in f"{row['key']} {row['range']} {row['meaning']}".lower() for word in sought)
    ]
    if not (found := [*in_key, *in_text]):
        known = {row["key"].rpartition(".")[2] for row in rows}
        hint = nearest(" ".join(sought), {*known, *_key_groups(groups)})
        raise UnknownNameError(f"no key has {' '.join(sought)}; {hint}")
    return found


def _rows(
    component: type[Component], node: Mapping[str, Any], *, prefix: str
) -> Iterator[dict[str, Any]]:
    from advsweep.components import parameters

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
    from advsweep.sweep.json_schema import make_schema
    from advsweep.sweep.registry import config_groups

    with config_groups(config_dirs or ()) as groups:
        print_json(make_schema(groups))
