"""`advsweep keys`: the config keys with default, range and meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.completion import complete_group
from advsweep.cli.shared.options import ListFormat

if TYPE_CHECKING:
    from advsweep.components import Component
    from advsweep.config.groups import ConfigGroups


TUNE = "sweep.tune"
"""The key of a sweep file whose keys are listed as those of a group."""


def keys(
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="[GROUP[=NAME]]",
            help="A group, such as optimizer or task.verifier, for the keys of all its components; "
            "with NAME of this one (default: a run as it is without any setting); sweep.tune for "
            "the tuning of a sweep file.",
            autocompletion=complete_group,
            show_default=False,
        ),
    ] = None,
    config_dirs: options.ConfigDir = None,
    output: options.Listing = ListFormat.TABLE,
) -> None:
    """List the config keys with default, range and meaning.

    These are the keys that `run`, `sweep` and sweep files take: KEY=VALUE. A group itself is a
    key, too: estimator=fade chooses the component whose keys are estimator.*.

    Examples:
        advsweep keys
        advsweep keys optimizer
        advsweep keys estimator=fade --format json
    """
    from advsweep.cli.shared.output import print_listing
    from advsweep.sweep.registry import config_groups

    with config_groups(config_dirs or ()) as groups:
        rows = list(_all_rows(groups) if group is None else _group_rows(groups, group))
    print_listing(rows, output, optional=("of", "type", "range"))


def _all_rows(groups: ConfigGroups) -> Iterator[dict[str, Any]]:
    """Yields the keys of the default run: numbers, groups, and their components' fields."""
    from advsweep.backends.base import RunParameters

    config = groups.compose({}).config
    yield from _rows(RunParameters, config, prefix="")
    for group, registry in groups.registries.items():
        name = config[group]["name"]
        others = f"one of {len(registry.names())}: advsweep keys {group}"
        yield _row(group, name, "a name", name, "", others)
        yield from _rows(registry.get(name), config[group], prefix=f"{group}.")


def _group_rows(groups: ConfigGroups, text: str) -> Iterator[dict[str, Any]]:
    """Yields the keys of one component, or of all components of a group.

    Raises:
        UnknownNameError: there is no such group or component.
    """
    from advsweep.config.tuning import Tune
    from advsweep.errors import UnknownNameError, nearest
    from advsweep.tasks.verifiers import VERIFIERS

    if text == TUNE:
        yield from _rows(Tune, {}, prefix=f"{TUNE}.")
        return
    group, chosen, name = text.partition("=")
    if group == "task.verifier":
        for member in [name] if chosen else VERIFIERS.names():
            yield from _rows(VERIFIERS.get(member), {}, prefix="task.verifier.")
        return
    if group not in groups.registries:
        hint = nearest(group, [*groups.registries, "task.verifier", TUNE])
        raise UnknownNameError(f"{group}: no config group has this name; {hint}")
    registry = groups.registries[group]
    names = [groups.member(group, name)] if chosen else registry.names()
    for member in names:
        node = groups.compose({group: member}).config[group]
        yield from _rows(registry.get(node["name"]), node, prefix=f"{group}.")


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
