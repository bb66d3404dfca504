"""`advsweep plugins`: list the components that other packages add."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.options import ListFormat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from advsweep.plugins import Plugin
    from advsweep.registry import Registry

_COLUMNS = ("kind", "name", "package", "version", "state", "reason")


def plugins(
    load: Annotated[
        bool,
        typer.Option(
            "--load/--no-load",
            help="Import each plug-in to find out whether it works, or import none.",
        ),
    ] = True,
    output: options.Listing = ListFormat.TABLE,
) -> None:
    """List the plug-ins of installed packages and their faults.

    Prints kind, name, package, and whether each works. A plug-in that is broken, or whose name
    advsweep or another package has, is listed with the reason; it does not affect other commands.

    Examples:
        advsweep plugins
        advsweep plugins --no-load
    """
    from advsweep.cli.shared.output import print_listing, warn

    found = find_plugins(load=load)
    if not found:
        warn("no installed package has a plug-in; docs/plugins.md says how to write one")
    records: list[dict[str, Any]] = [dataclasses.asdict(plugin) for plugin in found]
    if output is not ListFormat.JSON:
        records = [{column: record[column] for column in _COLUMNS} for record in records]
    print_listing(records, output)


def plugin_registries() -> dict[str, Registry[Any]]:
    """Return the registries that other packages can add to, by entry point group."""
    from advsweep.logs import READERS
    from advsweep.sweep.registry import GROUPS
    from advsweep.tasks.rewards import REWARDS
    from advsweep.tasks.verifiers import VERIFIERS

    registries = (*GROUPS.values(), VERIFIERS, REWARDS, READERS)
    return {registry.group: registry for registry in registries if registry.group is not None}


def find_plugins(*, load: bool) -> list[Plugin]:
    """List the plug-ins of all kinds, then entry points that belong to no kind.

    Args:
        load: import each plug-in, to find out whether it works.
    """
    from advsweep.plugins import EXTENSIONS, Plugin, PluginState, discover

    registries, discovery = plugin_registries(), discover()
    found = [plugin for registry in registries.values() for plugin in registry.plugins(load=load)]
    found += [
        point.described(EXTENSIONS[point.group], load=load)
        for point in discovery.points
        if point.group in EXTENSIONS
    ]
    groups = [*registries, *EXTENSIONS]
    found += [
        Plugin(
            kind="",
            name=point.name,
            package=point.package,
            version=point.version,
            group=point.group,
            target=point.target,
            state=PluginState.UNKNOWN,
            reason=f"advsweep has no group '{point.group}'; {_nearest(point.group, groups)}",
        )
        for point in discovery.points
        if point.group not in groups
    ]
    found += [
        Plugin(
            kind="",
            name="",
            package=package,
            version="",
            group="",
            target="",
            state=PluginState.BROKEN,
            reason=reason,
        )
        for package, reason in discovery.unreadable
    ]
    return found


def _nearest(group: str, groups: Iterable[str]) -> str:
    from advsweep.errors import nearest
    from advsweep.plugins import GROUP_PREFIX

    # The prefix alone would make all groups alike.
    kinds = [known.removeprefix(GROUP_PREFIX) for known in groups]
    return nearest(group.removeprefix(GROUP_PREFIX), kinds)
