"""Turns the points of spaces into configs: checks keys and names, composes, sets values.

`PointComposer` checks all points at once, so that one message lists every unknown key and name,
and then gives the config of each. Errors that show only when a run is built are gathered by
`MessageCounts`, one line for each message however many runs it concerns.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from advsweep.components import Component, Plain, to_plain
from advsweep.config.groups import (
    PRESET_GROUPS,
    Composition,
    ConfigGroups,
    first_line,
    is_unresolved,
)
from advsweep.config.space import Assignment, Delete, Point
from advsweep.errors import ConfigError, UnknownNameError, counted, nearest
from advsweep.plugins import install_command

LISTED_MESSAGES = 5


def patch(groups: ConfigGroups, composition: Composition, values: Mapping[str, Any]) -> Plain:
    """Return a copy of a composed config with values set, or deleted, by dotted key.

    Raises:
        ConfigError: a key leads through a value that is not a mapping, an interpolation cannot
            be resolved, or a value that must be given is missing.
    """
    config = dict(composition.config)
    unresolved = composition.unresolved
    for key, value in values.items():
        unresolved = unresolved or is_unresolved(value)
        if isinstance(value, Delete):
            _delete(config, key, value)
        else:
            _set(groups, config, key, value)
    return _resolved(config) if unresolved else config


def _set(groups: ConfigGroups, config: Plain, key: str, value: Any) -> None:
    *path, last = key.split(".")
    node = config
    for depth, part in enumerate(path):
        child = node.get(part)
        if depth == 1 and child is None:
            child = _default(groups, path[0], node, part)
        if isinstance(child, str) and (depth > 0 or part in groups.registries):
            child = {"name": child}
        if child is None:
            child = {}
        if not isinstance(child, Mapping):
            raise ConfigError(
                f"{key}: expected {'.'.join(path[: depth + 1])} to be a mapping, got {child!r}"
            )
        # The composition is shared, so every mapping on the way is copied before it changes.
        node[part] = dict(child)
        node = node[part]
    node[last] = value


def _default(groups: ConfigGroups, group: str, node: Mapping[str, Any], field: str) -> Any:
    """Return the default of a component's field that the YAML leaves out; None without one."""
    registry = groups.registries.get(group)
    if registry is None or str(node.get("name")) not in registry:
        return None
    for known in dataclasses.fields(registry.get(node["name"])):
        if known.name == field and known.default is not dataclasses.MISSING:
            return to_plain(known.default)
    return None


def _delete(config: Plain, key: str, delete: Delete) -> None:
    *path, last = key.split(".")
    node = config
    for part in path:
        child = node.get(part)
        if not isinstance(child, Mapping):
            return
        node[part] = dict(child)
        node = node[part]
    if delete.expected and node.get(last) != delete.expected[0]:
        raise ConfigError(
            f"~{key}: expected it to be {delete.expected[0]!r}, got {node.get(last)!r}"
        )
    node.pop(last, None)


def _resolved(config: Plain) -> Plain:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        container = OmegaConf.to_container(
            OmegaConf.create(config), resolve=True, throw_on_missing=True
        )
    except OmegaConfBaseException as error:
        where = f"{error.full_key}: " if error.full_key else ""
        raise ConfigError(f"{where}{first_line(error)}") from error
    assert isinstance(container, dict)
    return {str(k): v for k, v in container.items()}


def check_literal(value: Any, where: str) -> None:
    """Refuse interpolations in a value from a store: they could read environment variables.

    Args:
        where: what the value is, for the message.

    Raises:
        ConfigError: a text holds an interpolation.
    """
    if isinstance(value, str) and "${" in value:
        raise ConfigError(
            f"{where}: expected plain values from the store, got an interpolation, {value[:60]!r}"
        )
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple)):
        inner = value
    for each in inner:
        check_literal(each, where)


@dataclass(frozen=True)
class PartialKey:
    """A parameter that some of the chosen components have and others lack."""

    key: str
    having: Sequence[str]
    lacking: Sequence[str]

    def __str__(self) -> str:
        return (
            f"{self.key}: set for {', '.join(self.having)} alone, as {_have(self.lacking)} "
            f"no such parameter"
        )


Kind = tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]
"""A block, the members that are chosen in it, and the keys of its values."""


class PointComposer:
    """Composes the configs of the points of a sweep.

    Args:
        points: all points; their keys and names are checked here.
        optional: keys that are left out for components that lack them, as long as another
            chosen component has them. Any other key that a component lacks is an error.

    Attributes:
        partial_keys: the optional keys that were left out for some components.

    Raises:
        ConfigError: a key or a name does not exist. The message lists all that do not.
    """

    def __init__(
        self, groups: ConfigGroups, points: Iterable[Point], optional: Collection[str] = ()
    ) -> None:
        self._groups = groups
        self._errors: dict[tuple[str, str, str], ConfigError | None] = {}
        self._members: dict[tuple[str, str], str] = {}
        kinds = {kind for point in points if (kind := self._kind(point)) is not None}
        errors = [error for error in self._errors.values() if error is not None]
        foreign, self._partial = self._check_parameters(kinds, frozenset(optional))
        if errors := [*errors, *foreign]:
            raise errors[0] if len(errors) == 1 else _joined(errors)

    @property
    def partial_keys(self) -> list[PartialKey]:
        return list(self._partial.values())

    def config(self, point: Point) -> tuple[Plain, Mapping[str, Any]]:
        """Compose the config of a point.

        Returns:
            The config, and the values that were set in it by dotted key.

        Raises:
            ConfigError: as `ConfigGroups.compose` and `patch`.
        """
        choices, values = self._split(point.assignment)
        composition = self._groups.compose(choices)
        for key in [*values] if self._partial else ():
            group, _, rest = key.partition(".")
            partial = self._partial.get((group, rest.split(".")[0]))
            if partial is not None and composition.config[group]["name"] in partial.lacking:
                del values[key]
        return patch(self._groups, composition, values), values

    def _split(self, assignment: Assignment) -> tuple[dict[str, str], dict[str, Any]]:
        """Divide an assignment into the members that are chosen and the values to set."""
        choices: dict[str, str] = {}
        values: dict[str, Any] = {}
        for key, value in assignment.items():
            if key not in self._groups.names:
                values[key] = value
            elif (member := self._members.get((key, repr(value)))) is not None:
                choices[key] = member
        return choices, values

    def _kind(self, point: Point) -> Kind | None:
        """Check a point's keys and names. Points of one kind differ in their values alone.

        Returns:
            The kind; None if a name does not exist.
        """
        keys = []
        exist = True
        for key, value in point.assignment.items():
            is_group = key in self._groups.names
            if self._passes(key, value, is_group, point.where):
                if not is_group:
                    keys.append(key)
            elif is_group:
                exist = False
        choices, _ = self._split(point.assignment)
        return (point.where, tuple(choices.items()), tuple(keys)) if exist else None

    def _passes(self, key: str, value: Any, is_group: bool, where: str) -> bool:
        """Whether a key, or the member of a group, exists; checked once for each block."""
        checked = (key, repr(value) if is_group else "", where)
        if checked not in self._errors:
            try:
                self._choose(key, value) if is_group else self._groups.check_key(key)
                self._errors[checked] = None
            except ConfigError as error:
                self._errors[checked] = type(error)(f"{error}{_in(where)}")
        return self._errors[checked] is None

    def _choose(self, group: str, value: Any) -> None:
        """Remember the member of a group that a value stands for."""
        if value is None or isinstance(value, Delete):
            if group in PRESET_GROUPS:
                return  # No preset.
            members = ", ".join(self._groups.members(group))
            raise ConfigError(f"{group}: expected one of {members}, as every run has one")
        self._members[group, repr(value)] = self._groups.member(group, value)

    def _check_parameters(
        self, kinds: Collection[Kind], optional: Collection[str]
    ) -> tuple[list[ConfigError], dict[tuple[str, str], PartialKey]]:
        """Find parameters that some of the chosen components lack.

        Building the runs would report each run by itself. Here all components are known that a
        parameter is set for, so that one message can name them.
        """
        receivers: dict[tuple[str, str], dict[tuple[str, str], type[Component]]] = {}
        required: set[tuple[str, str]] = set()
        for where, choices, keys in kinds:
            config = self._groups.compose(dict(choices)).config
            for key in keys:
                group, *path = key.split(".")
                node = config.get(group)
                if not path or group not in self._groups.registries:
                    continue
                if isinstance(node, Mapping) and "name" in node:
                    name = str(node["name"])
                    cls = self._groups.registries[group].get(name, where=group)
                    receivers.setdefault((group, path[0]), {})[name, where] = cls
                    if key not in optional:
                        required.add((group, path[0]))
        errors: list[ConfigError] = []
        partial: dict[tuple[str, str], PartialKey] = {}
        for (group, parameter), classes in sorted(receivers.items()):
            fields = {n: {f.name for f in dataclasses.fields(c)} for (n, _), c in classes.items()}
            having = sorted(name for name in fields if parameter in fields[name])
            lacking = sorted(name for name in fields if parameter not in fields[name])
            if lacking and having and (group, parameter) not in required:
                key = f"{group}.{parameter}"
                partial[group, parameter] = PartialKey(key, having, lacking)
            elif lacking:
                errors.append(_lacking_error(group, parameter, classes, having, lacking))
        return errors, partial


def _lacking_error(
    group: str,
    parameter: str,
    classes: Mapping[tuple[str, str], type[Component]],
    having: list[str],
    lacking: list[str],
) -> ConfigError:
    """Name the components that lack a parameter, and the blocks that set it for them."""
    blocks = ", ".join(sorted({where for name, where in classes if where and name in lacking}))
    message = f"{group}.{parameter}: {_have(lacking)} no parameter '{parameter}'"
    if having:
        return ConfigError(
            f"{message}, {_have(having)}; set it only for {', '.join(having)}, in a block of a "
            f"sweep file or in another sweep{_in(blocks)}"
        )
    known = {field.name for cls in classes.values() for field in dataclasses.fields(cls)}
    hints = [install_command(parameter) or nearest(parameter, known)]
    hints += sorted({cls.elsewhere for cls in classes.values() if cls.elsewhere})
    return UnknownNameError(f"{message}; {'; '.join(hints)}{_in(blocks)}")


class MessageCounts:
    """Messages with the number of runs that each concerns.

    Args:
        runs: the number of all runs.
    """

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._counts: Counter[str] = Counter()

    def add(self, *messages: str) -> None:
        self._counts.update(messages)

    def lines(self, kind: str) -> list[str]:
        """Return the first messages, each with its number of runs unless it concerns all.

        Args:
            kind: what the messages are, such as `warnings`.
        """
        lines = []
        for message, count in list(self._counts.items())[:LISTED_MESSAGES]:
            some = f" ({counted(count, 'run')})" if count < self._runs else ""
            lines.append(f"{message}{some}")
        if (more := len(self._counts) - LISTED_MESSAGES) > 0:
            lines.append(f"... and {more} {kind} more")
        return lines

    def check(self) -> None:
        """Raise the messages, if there are any, as one error.

        Raises:
            ConfigError: there are messages.
        """
        if not self._counts:
            return
        lines = self.lines("errors")
        if len(lines) > 1:
            head = f"{self._counts.total()} of {self._runs} runs cannot be built:"
            lines = [head, *(f"  {line}" for line in lines)]
        raise ConfigError("\n".join(lines))


def _have(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'}"


def _in(where: str) -> str:
    return f" (in {where})" if where else ""


def _joined(errors: Sequence[ConfigError]) -> ConfigError:
    first = f"{len(errors)} keys or names of the sweep do not fit:"
    return ConfigError("\n  ".join([first, *map(str, errors)]))
