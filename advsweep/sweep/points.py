"""The points of a space on their way to runs: composed, patched, built, errors gathered."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advsweep.backends.run import NODES, Numbers, Run, build_run
from advsweep.components import Component, Plain
from advsweep.config.compose import PRESET_GROUPS, Composer, Delete
from advsweep.config.space import Assignment
from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.registry import Registry
from advsweep.sweep.registry import SETTINGS

GROUPS: Mapping[str, Registry[Any]] = {**NODES, **SETTINGS}
"""The config groups that hold components."""

KEYS = tuple(f.name for f in dataclasses.fields(Numbers))
"""The keys of a configuration that are no groups."""

LISTED_ERRORS = 5


@dataclass(frozen=True)
class _Point:
    """One assignment, divided into the choice of groups and the values to patch in."""

    choices: dict[str, str]
    values: dict[str, Any]


class Points:
    """Points of a space; `add` all, then `build` once."""

    def __init__(self, composer: Composer) -> None:
        self._composer = composer
        self._points: list[_Point] = []
        self._known_keys: set[str] = set()
        self._known_members: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return len(self._points)

    def add(self, assignment: Assignment) -> None:
        """Takes a point in.

        Raises:
            ConfigError: a key, or a member of a group, that does not exist.
        """
        point = _Point({}, {})
        for key, value in assignment.items():
            if key not in self._known_keys:
                self._composer.check_key(key)
                self._known_keys.add(key)
            if key not in self._composer.groups:
                point.values[key] = value
            elif not isinstance(value, Delete) and value is not None:
                point.choices[key] = self._member(key, value)
            elif key not in PRESET_GROUPS:
                members = ", ".join(self._composer.members(key))
                raise ConfigError(f"{key}: expected one of {members}, as every run has one")
        self._points.append(point)

    def build(self) -> tuple[list[Run], dict[str, Any]]:
        """Every point as a run, and the settings that all of them share.

        Raises:
            ConfigError: what does not fit; several errors come as one message.
        """
        self._refuse_strange_keys()
        built: list[Run] = []
        errors: Counter[str] = Counter()
        settings: Plain = {}
        for point in self._points:
            try:
                composed = self._composer.compose(point.choices)
                config = self._composer.patched(composed, point.values)
                own = {key: config[key] for key in SETTINGS if key in config}
                if own != settings:
                    settings = _same(settings, own)
                config.pop("sweep", None)
                built.append(build_run(config))
            except ConfigError as error:
                errors[str(error)] += 1
        if errors:
            raise ConfigError(_one_message(errors, len(self._points)))
        nodes: Plain = {key: settings.get(key) for key in SETTINGS}
        return built, {key: SETTINGS[key].build(node, where=key) for key, node in nodes.items()}

    def _member(self, group: str, value: Any) -> str:
        key = (group, repr(value))
        if key not in self._known_members:
            self._known_members[key] = self._composer.member(group, value)
        return self._known_members[key]

    def _refuse_strange_keys(self) -> None:
        """Refuses keys that some of the chosen components do not have.

        Building the runs would complain of each in turn; here all components are known that
        a key is given to, and the message can name them.
        """
        receivers: dict[tuple[str, str], dict[str, type[Component]]] = {}
        for choices, keys in {(tuple(p.choices.items()), tuple(p.values)) for p in self._points}:
            config = self._composer.compose(dict(choices)).config
            for key in keys:
                group, *path = key.split(".")
                node = config.get(group)
                if path and group in GROUPS and isinstance(node, Mapping) and "name" in node:
                    name = str(node["name"])
                    cls = GROUPS[group].get(name, where=group)
                    receivers.setdefault((group, path[0]), {})[name] = cls
        for (group, parameter), classes in sorted(receivers.items()):
            _refuse_strange_key(group, parameter, classes)


def _refuse_strange_key(group: str, parameter: str, classes: Mapping[str, type[Component]]) -> None:
    fields = {name: [f.name for f in dataclasses.fields(c)] for name, c in classes.items()}
    lacking = sorted(name for name, known in fields.items() if parameter not in known)
    having = sorted(set(fields) - set(lacking))
    if not lacking:
        return
    message = f"{group}.{parameter}: {_have(lacking)} no parameter '{parameter}'"
    if having:
        raise ConfigError(
            f"{message}, {_have(having)}; give it to {'it' if len(having) == 1 else 'those'} "
            f"alone, in a block of a sweep file or in another sweep"
        )
    hint = nearest(parameter, {f for known in fields.values() for f in known})
    raise UnknownNameError(f"{message}; {hint}")


def _have(names: list[str]) -> str:
    return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'}"


def _same(settings: Plain, own: Plain) -> Plain:
    """The settings that the points so far share with one more."""
    for key in own.keys() | settings.keys():
        if settings and own.get(key) != settings.get(key):
            raise ConfigError(
                f"{key}: expected the same for all runs of a sweep, as it is no part of a run, "
                f"got {settings.get(key)} and {own.get(key)}"
            )
    return own


def _one_message(errors: Mapping[str, int], runs: int) -> str:
    if len(errors) == 1 and runs in errors.values():
        return next(iter(errors))
    lines = [f"{sum(errors.values())} of {runs} runs cannot be built:"]
    for message, count in list(errors.items())[:LISTED_ERRORS]:
        lines.append(f"  {message} ({count} run{'s' if count > 1 else ''})")
    if len(errors) > LISTED_ERRORS:
        lines.append(f"  ... and {len(errors) - LISTED_ERRORS} errors more")
    return "\n".join(lines)
