"""How the config of a stored run differs from the defaults, without composing one by Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advsweep.cli.deferred_torch import defer_torch
from advsweep.components import CODE, Component, Plain, default_of, fields_of
from advsweep.config.groups import DESCRIPTION, PRESET_GROUPS, conf_directory
from advsweep.errors import ConfigError
from advsweep.sweep.registry import GROUPS
from advsweep.yaml_files import read_yaml


def default_config(config: Mapping[str, Any]) -> Plain:
    """Return the config that a run would have without any setting but its components.

    A component that is not advsweep's has no defaults here: no code is imported, and no path is
    read, because a store names it.

    Args:
        config: the resolved config of a stored run.
    """
    defer_torch()
    conf = conf_directory()
    values, members = _parted(_read(conf / "config.yaml"))
    backend = _name_of(config.get("backend"))
    if backend in GROUPS["backend"].modules:
        of_backend, overridden = _parted(_read(conf / "backend" / f"{backend}.yaml"))
        values |= of_backend
        members |= overridden
    for group, registry in GROUPS.items():
        name = _name_of(config.get(group))
        of_member = _read(conf / group / f"{members.get(group)}.yaml")
        usual = of_member.get("name", members.get(group))
        fields: Plain = {}
        if name in registry.modules:
            fields = _defaults_of(registry.get(name))
        elif _is_of_file(config.get(group)):
            # What the code itself adds has no defaults here.
            of_files = registry.class_of_files()
            fields = {} if of_files is None else _usual_values(of_files)
        if name == usual:
            fields |= of_member
        values[group] = {**fields, "name": usual}
    return values


def _name_of(node: Any) -> str:
    name = node.get("name") if isinstance(node, Mapping) else node
    return name if isinstance(name, str) else ""


def _is_of_file(node: Any) -> bool:
    return isinstance(node, Mapping) and CODE in node


def _parted(content: Plain) -> tuple[Plain, dict[str, str]]:
    """Return the values of a file of config groups, and the members that its list chooses."""
    values = {key: value for key, value in content.items() if not isinstance(value, (dict, list))}
    members = {}
    for entry in content.get("defaults", []):
        if isinstance(entry, dict):
            for key, member in entry.items():
                group = str(key).removeprefix("override /")
                if group not in PRESET_GROUPS:
                    members[group] = str(member)
    return values, members


def _read(path: Path) -> Plain:
    """Return what a file of ours holds; empty without one."""
    content = read_yaml(path) if path.is_file() else {}
    return {key: value for key, value in content.items() if key != DESCRIPTION}


def _defaults_of(cls: type[Component]) -> Plain:
    """Return the values that a component has without any setting."""
    try:
        return cls.build({}).plain()
    except ConfigError:  # it has fields that must be given
        return _usual_values(cls)


def _usual_values(cls: type[Component]) -> Plain:
    return {name: default_of(field) for name, field in fields_of(cls).items()}
