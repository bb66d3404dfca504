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
from advsweep.config.conditions import Assignment
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

    where: str
    choices: dict[str, str]
    values: dict[str, Any]


class Points:
    """Points of a space; `add` all, then `build` once."""

    def __init__(self, composer: Composer) -> None:
        self._composer = composer
        self._points: list[_Point] = []
        self._known_keys: dict[tuple[str, str], bool] = {}
        self._known_members: dict[tuple[str, str, str], str | None] = {}
        self._errors: list[ConfigError] = []

    def __len__(self) -> int:
        return len(self._points)

    def add(self, assignment: Assignment, where: str = "") -> None:
        """Takes a point in; what is wrong with its keys and names is said by `build`.

        Args:
            where: the block that it comes from; empty where there is but one.
        """
        choices: dict[str, str] = {}
        values: dict[str, Any] = {}
        sound = True
        for key, value in assignment.items():
            if not self._knows(key, where):
                continue
            if key not in self._composer.groups:
                values[key] = value
            elif key not in PRESET_GROUPS or not (isinstance(value, Delete) or value is None):
                member = self._member(key, value, where)
                sound = sound and member is not None
                choices[key] = member or ""
        if sound:
            self._points.append(_Point(where, choices, values))

    def build(self, *, fetch: bool = True) -> tuple[list[Run], dict[str, Any]]:
        """Every point as a run, and the settings that all of them share.

        Args:
            fetch: as in `build_run`.

        Raises:
            ConfigError: what does not fit; several errors come as one message. Keys and names
                that do not exist come first, and all of them.
        """
        if unknown := [*self._errors, *self._strange_keys()]:
            raise _together(unknown)
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
                built.append(build_run(config, fetch=fetch))
            except ConfigError as error:
                errors[str(error)] += 1
        if errors:
            raise ConfigError(_one_message(errors, len(self._points)))
        nodes: Plain = {key: settings.get(key) for key in SETTINGS}
        return built, {key: SETTINGS[key].build(node, where=key) for key, node in nodes.items()}

    def _knows(self, key: str, where: str) -> bool:
        asked = (key, where)
        if asked not in self._known_keys:
            try:
                self._composer.check_key(key)
            except ConfigError as error:
                self._errors.append(type(error)(f"{error}{_in(where)}"))
                self._known_keys[asked] = False
            else:
                self._known_keys[asked] = True
        return self._known_keys[asked]

    def _member(self, group: str, value: Any, where: str) -> str | None:
        """The name of a group's member; None for one that does not exist."""
        asked = (group, repr(value), where)
        if asked not in self._known_members:
            try:
                self._known_members[asked] = self._found_member(group, value)
            except ConfigError as error:
                self._errors.append(type(error)(f"{error}{_in(where)}"))
                self._known_members[asked] = None
        return self._known_members[asked]

    def _found_member(self, group: str, value: Any) -> str:
        if value is None or isinstance(value, Delete):
            members = ", ".join(self._composer.members(group))
            raise ConfigError(f"{group}: expected one of {members}, as every run has one")
        return self._composer.member(group, value)

    def _strange_keys(self) -> list[ConfigError]:
        """Errors about keys that some of the chosen components do not have.

        Building the runs would complain of each in turn; here all components are known that
        a key is given to, and the message can name them.
        """
        given: dict[tuple[str, str], dict[tuple[str, str], type[Component]]] = {}
        distinct = {(p.where, tuple(p.choices.items()), tuple(p.values)) for p in self._points}
        for where, choices, keys in distinct:
            config = self._composer.compose(dict(choices)).config
            for key in keys:
                group, *path = key.split(".")
                node = config.get(group)
                if path and group in GROUPS and isinstance(node, Mapping) and "name" in node:
                    name = str(node["name"])
                    cls = GROUPS[group].get(name, where=group)
                    given.setdefault((group, path[0]), {})[name, where] = cls
        found = (_strange_key(*key, receivers) for key, receivers in sorted(given.items()))
        return [error for error in found if error is not None]


def _strange_key(
    group: str, parameter: str, receivers: Mapping[tuple[str, str], type[Component]]
) -> ConfigError | None:
    """Names who was given a parameter and lacks it, and in which blocks; None: nobody."""
    fields = {name: [f.name for f in dataclasses.fields(c)] for (name, _), c in receivers.items()}
    lacking = sorted(name for name, known in fields.items() if parameter not in known)
    having = sorted(set(fields) - set(lacking))
    if not lacking:
        return None
    blocks = ", ".join(sorted({where for name, where in receivers if where and name in lacking}))
    message = f"{group}.{parameter}: {_have(lacking)} no parameter '{parameter}'"
    if having:
        who = "it" if len(having) == 1 else "those"
        return ConfigError(
            f"{message}, {_have(having)}; give it to {who} alone, in a block of a sweep file or "
            f"in another sweep{_in(blocks)}"
        )
    hints = [nearest(parameter, {f for known in fields.values() for f in known})]
    hints += sorted({cls.elsewhere for cls in receivers.values() if cls.elsewhere})
    return UnknownNameError(f"{message}; {'; '.join(hints)}{_in(blocks)}")


def _in(where: str) -> str:
    return f" (in {where})" if where else ""


def _together(errors: list[ConfigError]) -> ConfigError:
    """All of them as one, on a line each when there are several."""
    if len(errors) == 1:
        return errors[0]
    first = f"{len(errors)} keys or names of the sweep do not fit:"
    return ConfigError("\n  ".join([first, *map(str, errors)]))


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
